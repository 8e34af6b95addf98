"""Axes of one cell, and axes that a transform leaves alone: sums, widths and modes count only what varies there."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral
from decompops.testing import assert_transposed

from helpers import assert_close, make_mesh, random_field


BOX = (1.0, 2.0, 3.0)


def cylinder(x, y, *rest):
    return jnp.sqrt((x - np.pi) ** 2 + (y - np.pi) ** 2) - 1 + sum(0 * axis for axis in rest)


def test_scales_of_a_turbulent_flow_in_planes():
    fft = dops.FFT(make_mesh((2,)), shape=(6, 5, 4), real=True, transformed=(0, 1), box=dops.Box(BOX), pad=True)
    v = random_field((3, 6, 5, 4))
    found = spectral.turbulence_scales(fft, fft.decomposition.shard(v), 0.1)
    rest = v - v.mean((1, 2), keepdims=True)
    assert_close(found.energy, np.mean(np.sum(rest**2, 0)) / 2)
    k = [2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip((6, 5), BOX)]
    squares = (abs(np.fft.fft2(v, axes=(1, 2))) ** 2).sum((0, 3)) / 30**2 / 4
    strain = np.sum(squares * (k[0][:, None] ** 2 + k[1] ** 2)) / 2
    assert_close(found.dissipation, 2 * 0.1 * strain)


@pytest.mark.parametrize("transformed", [(0, 2), (0, 1, 2)])
def test_particles_and_energies_of_a_condensate(transformed):
    fft = dops.FFT(make_mesh((2,)), shape=(4, 6, 5), transformed=transformed, box=dops.Box(BOX), pad=True)
    equation = pde.GrossPitaevskii(fft, 2.0)
    psi = random_field((4, 6, 5), np.complex128)
    u = equation.state(fft.decomposition.shard(psi))
    kept = np.asarray(fft.decomposition.gather(equation.fields(u)))  # The state has fewer modes than the grid.
    assert_close(equation.particles(u), np.mean(abs(kept) ** 2) * 6)
    along = [2j * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(kept.shape, BOX)]
    slopes = [
        np.fft.ifft(
            np.fft.fft(kept, axis=axis) * along[axis].reshape([-1 if a == axis else 1 for a in range(3)]), axis=axis
        )
        for axis in transformed
    ]
    assert_close(equation.energies(u)[0], np.mean(sum(abs(slope) ** 2 for slope in slopes)) / 2 * 6)
    ground = pde.ImaginaryTime(equation, 6.0)
    assert_close(ground.fields(ground.state(np.ones((4, 6, 5), complex))), np.ones((4, 6, 5)))


@pytest.mark.parametrize("shape", [(8, 8, 8), (8, 8, 1), (12, 12, 1)])
def test_the_amplitude_of_an_ornstein_uhlenbeck_force(shape):
    fft = dops.FFT3D(make_mesh((1, 1)), shape=shape, real=True, box=dops.Box(2 * np.pi))
    start = pde.NavierStokes(fft, 0.1).state(np.zeros((3, *shape)))

    def mean_square(key):
        force = pde.OrnsteinUhlenbeckForcing(fft, key, amplitude=0.5, time=0.4, shell=(1.0, 2.0))
        return jnp.sum(spectral.mean_square(force.transform, force(0.0, start)))

    keys = jax.random.split(jax.random.key(0), 200)
    found = jax.jit(lambda keys: jax.lax.map(mean_square, keys))(keys)
    assert abs(np.sqrt(np.mean(found)) - 0.5) < 0.03


@pytest.mark.parametrize("nz", [1, 2, 3, 4])
@pytest.mark.parametrize("transformed", [(0, 1), (0, 1, 2)])
def test_a_mask_keeps_the_mean(nz, transformed):
    fft = dops.FFT(make_mesh((1,)), shape=(6, 6, nz), real=True, transformed=transformed, pad=True)
    keep = spectral.Dealias(fft, dealiasing=spectral.Mask(2 / 3))
    wave = np.sin(2 * np.pi * np.arange(6) / 6)[None, :, None] + np.ones((6, 6, nz))
    assert_close(fft.decomposition.gather(keep(wave)), wave)


@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 1)])
def test_a_body_is_as_sharp_on_a_thin_grid(shape):
    fft = dops.FFT(make_mesh((1,)), shape=shape, real=True, box=dops.Box(2 * np.pi))
    mask = np.asarray(pde.Penalisation(fft, cylinder, viscosity=0.01).mask(np.float64))
    area = mask.mean() * (2 * np.pi) ** 2
    assert abs(area - np.pi) < 0.05
    assert mask.max() > 0.999
    assert mask.min() < 1e-6


def test_the_width_of_smagorinsky_is_that_of_the_plane():
    widths = []
    for shape in ((8, 16), (8, 16, 1)):
        fft = dops.FFT(make_mesh((1,)), shape=shape, real=True, box=dops.Box(2.0))
        widths.append(pde.Smagorinsky(fft, 0.17)._width())
    assert_close(widths, [np.sqrt(2 / 8 * 2 / 16)] * 2)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_kolmogorov_force_needs_periodic_axes(plain, axis):
    bases = [plain.Fourier(half=True), plain.Cosine(2)][:: 1 if axis else -1]
    fft = plain.Transform(make_mesh((1,)), shape=(8, 8), bases=tuple(bases), box=plain.Box(2 * np.pi))
    with pytest.raises(ValueError, match=r"^`fft` must be periodic along x and y"):
        plain.pde.KolmogorovForcing(fft, mode=1)


def test_default_shells_of_a_very_long_box(plain):
    fft = plain.FFT(make_mesh((1,)), shape=(16, 16), real=True, box=plain.Box((1.0, 1e5)))
    with pytest.raises(
        ValueError, match=r"^`edges` must be given for such a long box, .* 800\d\d\d shells for 256 modes"
    ):
        plain.spectral.energy_spectrum(fft, np.zeros((2, 16, 16)))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("basis", [dops.Chebyshev(), dops.Cells(np.linspace(0, 1, 25))], ids=["polynomials", "cells"])
def test_one_line_between_walls_on_one_device(basis, kind):
    """JAX forgets the sharding of one number: a spectrum of one mode, in planes or slices, has a single one."""
    bases, x = (basis, dops.Fourier()), basis.points(24)[:, None]
    transform = dops.Transform(make_mesh((1,), kind), shape=(24, 1), bases=bases, box=dops.Box((1.0, 1.0)))
    f, error = transform.decomposition.shard(np.cos(np.pi * x)), 1e-9 if isinstance(basis, dops.Chebyshev) else 2e-2
    for walls, exact in (("neumann", 0), ("dirichlet", 2 * x - 1)):
        poisson = spectral.Poisson(transform, walls)
        assert_close(poisson(f), -(np.cos(np.pi * x) + exact) / np.pi**2, error)
        assert_transposed(poisson, poisson.T, f, random_field((24, 1)))
    if isinstance(basis, dops.Chebyshev):
        gradient = spectral.Gradient(transform)
        assert_close(gradient(f)[0], -np.pi * np.sin(np.pi * x), 1e-9)
        assert_transposed(gradient, gradient.T, f, random_field((2, 24, 1)))
