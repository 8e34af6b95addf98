"""Tests of equations in Nyquist modes: odd derivatives are zero, even derivatives and inverses use all wavenumbers."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import pde

from helpers import assert_close, make_mesh, random_field


LENGTHS = (1.0, 2.0)
BOX = dops.Box(LENGTHS)
SHAPE = (8, 6)


def waves(nyquist):
    k = [2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(SHAPE, LENGTHS)]
    ends = [np.arange(n) * 2 == n for n in SHAPE]
    kx, ky = (values if nyquist else np.where(end, 0, values) for values, end in zip(k, ends))
    return kx[:, None], ky[None]


def test_the_velocity_of_a_vorticity():
    """The rate of a vorticity equals NumPy's. All modes of the vorticity are alive."""
    fft = dops.FFT2D(make_mesh((2,)), shape=SHAPE, box=BOX, real=True, pad=True)
    equation = pde.VorticityNavierStokes(fft, 0.1, dealiasing=None)
    w = random_field(SHAPE)
    rate = jax.jit(lambda w: equation.fields(equation(0.0, equation.state(w))))(fft.decomposition.shard(w))
    (kx, ky), (qx, qy) = waves(True), waves(False)
    there, back, k2 = np.fft.fft2, lambda s: np.fft.ifft2(s).real, kx**2 + ky**2
    stream = there(w) * np.divide(1, k2, out=np.zeros_like(k2), where=k2 > 0)
    a, b = back(1j * qy * stream), back(-1j * qx * stream)
    expected = (qx**2 - qy**2) * there(a * b) + qx * qy * there(b**2 - a**2) - 0.1 * k2 * there(w)
    assert_close(fft.decomposition.gather(rate), back(expected), 1e-12)


@pytest.mark.parametrize("name", ["dispersion", "korteweg-de vries"])
def test_third_derivatives(name):
    """In `∂/∂x ∇²`, a Nyquist mode along y keeps its second derivative along y."""
    fft = dops.FFT2D(make_mesh((2,)), shape=SHAPE, box=BOX, real=True, pad=True)
    if name == "dispersion":
        equation, c = pde.Dispersion(fft, (0.3, -0.2)), (0.3, -0.2)
    else:
        equation, c = pde.KortewegDeVries(fft, scale=0.0, dealiasing=None), (-1.0, -1.0)
    u = random_field(SHAPE)
    rate = jax.jit(lambda u: equation.fields(equation(0.0, equation.state(u))))(fft.decomposition.shard(u))
    (kx, ky), (qx, qy) = waves(True), waves(False)
    symbol = -1j * (c[0] * qx + c[1] * qy) * (kx**2 + ky**2)
    assert_close(fft.decomposition.gather(rate), np.fft.ifft2(symbol * np.fft.fft2(u)).real, 1e-12)


@pytest.mark.parametrize("flow", ["channel", "channel in three dimensions", "convection"])
def test_diffusion_between_walls(flow):
    """An implicit step damps Nyquist modes along the walls by their whole wavenumber, and keeps the divergence zero."""
    shape, lengths = ((20, 8, 6), (1.0, 3.0, 2.0)) if flow == "channel in three dimensions" else ((20, 8), (1.0, 3.0))
    bases = (dops.Chebyshev(), *[dops.Fourier()] * (len(shape) - 2), dops.Fourier(half=True))
    mesh = make_mesh((2,))
    fft = dops.Transform(mesh, shape=shape, bases=bases, box=dops.Box(lengths), axes="x", pad=True)
    grid = np.meshgrid(*(b.points(n) for b, n in zip(bases, shape)), indexing="ij")
    last = np.cos(np.pi * shape[-1] * grid[-1])  # (-1)^j, the Nyquist mode along the last axis
    mode = np.sin(np.pi * grid[0]) * last
    squared = np.pi**2 + (np.pi * shape[-1] / lengths[-1]) ** 2
    h = 0.01
    if flow == "convection":
        equation = pde.RayleighBenard(fft, 1e2, 1.0, bottom=0.0, top=0.0, dealiasing=None)
        u, diffusivity = np.stack([0 * mode, mode, 2 * mode]), 0.1
    else:
        equation = pde.Channel(fft, 0.5, dealiasing=None)
        diffusivity = 0.5
        if len(shape) == 3:
            mode = mode * np.cos(2 * np.pi * grid[1])
            squared += (2 * np.pi / lengths[1]) ** 2
        u = np.stack([*[0 * mode] * (len(shape) - 1), mode])

    @jax.jit
    def step(u, noise):
        v = equation.resolvent(equation.state(noise), h)
        return equation.fields(equation.resolvent(equation.state(u), h)), equation.divergence(v), equation.fields(v)

    shard, gather = fft.decomposition.shard, fft.decomposition.gather
    noise = random_field(u.shape)
    v, divergence, damped = step(shard(u), shard(noise))
    assert_close(gather(v), u / (1 + h * diffusivity * squared), 1e-10)
    assert np.abs(np.asarray(divergence)).max() < 1e-9 * np.abs(noise).sum()
    weights = bases[0].weights(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    assert np.sum(weights * gather(damped) ** 2) < np.sum(weights * noise**2)
