"""Tests of derivatives and translations against exact results, and of the identities of vector calculus."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import spectral

from helpers import assert_close, make_mesh, random_field


LENGTHS = (1.0, 2 * np.pi, 0.3)
BOX = dops.Box(LENGTHS)
ORDERS = [(0, 0, 0), (1, 0, 0), (0, 0, 1), (0, 2, 0), (1, 1, 0), (0, 0, 3), (1, 2, 1), (0, 3, 2)]


def angles(shape):
    """Return the three coordinates, each from 0 to 2π across the box."""
    return np.meshgrid(*[2 * np.pi * np.arange(n) / n for n in shape], indexing="ij")


def wave(modes, shape, orders=(0, 0, 0), phases=(0.1, 0.7, -0.4), *, real=True):
    """Return the exact derivative of a product of waves, one wave along each axis."""
    result = np.ones(shape)
    for m, angle, order, phase, length in zip(modes, angles(shape), orders, phases, LENGTHS):
        k = 2 * np.pi * m / length
        if real:
            result = result * k**order * np.cos(m * angle + phase + order * np.pi / 2)
        else:
            result = result * (1j * k) ** order * np.exp(1j * (m * angle + phase))
    return result


@pytest.mark.parametrize(("sizes", "shape", "real"), [((2, 4), (9, 10, 11), True), ((8, 1), (10, 7, 8), False)])
def test_derivatives_of_any_order_are_exact(sizes, shape, real):
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, box=BOX, pad=True, real=real)
    waves = [((3, -2, 1), 1.0), ((1, 3, 3), -2.0), ((-4, 0, 2), 0.5)]
    field = lambda orders: sum(a * wave(modes, shape, orders, real=real) for modes, a in waves)
    u = fft.decomposition.shard(field((0, 0, 0)))
    results = jax.jit(lambda u: [spectral.Derivative(fft, orders)(u) for orders in ORDERS])(u)
    for orders, result in zip(ORDERS, results):
        assert_close(fft.decomposition.gather(result), field(orders), rtol=1e-12)


@pytest.mark.parametrize(("axis", "real"), [(0, True), (1, False), (2, True)])
def test_nyquist_modes_have_even_derivatives_only(axis, real):
    """Only even derivatives of a Nyquist mode are nonzero.

    The samples of cos(n/2 x) are (-1)^i. Odd derivatives are multiples of sin(n/2 x), whose samples are zero.
    """
    shape = (8, 6, 4)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, box=BOX, pad=True, real=real)
    modes = [1, 1, 1]
    modes[axis] = shape[axis] // 2
    phases = np.array([0.1, 0.7, -0.4])
    phases[axis] = 0
    exact = lambda orders: wave(modes, shape, orders, phases)
    u = fft.decomposition.shard(exact((0, 0, 0)).astype(float if real else complex))
    unit = np.eye(3, dtype=int)
    along, across = unit[axis], unit[axis - 1]
    orders = [2 * along, 2 * along + across, 4 * along, along, 3 * along + 2 * across, along + across]
    everything = lambda u: (
        [spectral.Derivative(fft, o)(u) for o in orders],
        spectral.Gradient(fft)(u),
        spectral.Laplacian(fft)(u),
    )
    derivatives, gradient, laplacian = jax.tree.map(fft.decomposition.gather, jax.jit(everything)(u))
    scale = [np.prod((2 * np.pi * np.array(modes) / LENGTHS) ** o) for o in orders]
    for i, order in enumerate(orders):
        expected = exact(order) if i < 3 else np.zeros(shape)
        np.testing.assert_allclose(derivatives[i], expected, rtol=0, atol=1e-12 * scale[i])
    for component, order in zip(gradient, unit):
        expected = exact(order) if order[axis] == 0 else np.zeros(shape)
        np.testing.assert_allclose(component, expected, rtol=0, atol=1e-10)
    assert_close(laplacian, sum(exact(2 * order) for order in unit), rtol=1e-12)


def test_the_identities_of_vector_calculus():
    """The identities hold for any field, also for Nyquist modes of even grids, with batch axes and under `vmap`."""
    shape = (8, 6, 5)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, box=BOX, pad=True, real=True)
    dec = fft.decomposition
    grad, div, curl = (kind(fft) for kind in (spectral.Gradient, spectral.Divergence, spectral.Curl))
    u, v = random_field((2, 2, *shape)), random_field((2, 2, 3, *shape), seed=1)
    v -= v.mean((-3, -2, -1), keepdims=True)

    @jax.jit
    def everything(u, v):
        rotation = curl(v)
        both = jax.vmap(jax.vmap(lambda u, rotation: (curl(grad(u)), div(rotation))), 1, 1)
        return *both(u, rotation), curl(rotation), grad(div(v)), spectral.Poisson(fft)(v)

    curl_grad, div_curl, curl_curl, grad_div, potential = map(dec.gather, everything(dec.shard(u), dec.shard(v)))
    assert curl_grad.shape == (2, 2, 3, *shape)
    assert div_curl.shape == (2, 2, *shape)
    scale = np.abs(grad_div).max()
    assert np.abs(curl_grad).max() < 1e-12 * scale
    assert np.abs(div_curl).max() < 1e-12 * scale
    # ∇²v = ∇(∇·v) - ∇×(∇×v) holds only without Nyquist modes. `Laplacian` inverts `Poisson` in all modes.
    inner = dops.FFT3D(make_mesh((1, 1)), shape=shape, box=BOX, real=True, modes=(7, 5, 5))
    low = lambda v: np.asarray(inner.inverse(inner(v)))
    back = spectral.Laplacian(fft)
    lap_v = dec.gather(jax.jit(back)(dec.shard(v)))
    assert_close(low(lap_v), low(grad_div - curl_curl), rtol=1e-12)
    assert_close(dec.gather(jax.jit(back)(dec.shard(potential))), v)


@pytest.mark.parametrize(("shape", "real"), [((8, 6, 10), True), ((5, 9, 8), False)])
def test_translations(shape, real):
    """A translation by whole cells is exact in all modes.

    A translation by a part of a cell is exact in all modes except Nyquist modes.
    """
    lengths, cells = (2.0, 1.0, 5.0), (1, -2, 3)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, box=dops.Box(lengths), pad=True, real=real)
    u = random_field(shape, np.float64 if real else np.complex128)
    steps = [n * length / size for n, length, size in zip(cells, lengths, shape)]
    phase = lambda by: lambda *k: jnp.exp(sum(jax.lax.complex(0 * q, -q * s) for q, s in zip(k, by)))
    whole = jax.jit(spectral.SpectralOperator(fft, phase(steps)))
    assert_close(fft.decomposition.gather(whole(fft.decomposition.shard(u))), np.roll(u, cells, (0, 1, 2)))
    part = jax.jit(spectral.SpectralOperator(fft, phase((0.1, 0.2, 0.3)), nyquist=False))
    wave = lambda x, y, z: np.cos(np.pi * x) * np.sin(4 * np.pi * y) * np.cos(0.4 * np.pi * z + 1)
    grid = np.meshgrid(*[np.arange(n) * length / n for n, length in zip(shape, lengths)], indexing="ij")
    expected = wave(*(x - s for x, s in zip(grid, (0.1, 0.2, 0.3))))
    got = fft.decomposition.gather(part(fft.decomposition.shard(wave(*grid).astype(u.dtype))))
    assert_close(got, expected, rtol=1e-12)
