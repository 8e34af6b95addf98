"""Tests of Poisson's and Helmholtz' equations with known solutions, and of the projection on divergence-free fields."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import spectral
from hypothesis import HealthCheck, given, settings, strategies as st

from helpers import assert_close, finite_difference, make_mesh, random_field


SETTINGS = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
LENGTHS = st.lists(st.floats(0.1, 100), min_size=3, max_size=3).map(tuple)
SHAPES = st.lists(st.integers(1, 12), min_size=3, max_size=3).map(tuple)


def laplacian(u, lengths):
    k = [2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(u.shape, lengths)]
    kx, ky, kz = np.meshgrid(*k, indexing="ij")
    return np.fft.ifftn(-(kx**2 + ky**2 + kz**2) * np.fft.fftn(u))


@SETTINGS
@given(shape=SHAPES, lengths=LENGTHS, real=st.booleans(), sizes=st.sampled_from([(2, 4), (8, 1), (3, 2)]))
def test_manufactured_solutions(shape, lengths, real, sizes):
    """If a right-hand side is computed from a known field, the solution is this field."""
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, box=dops.Box(lengths), pad=True, real=real)
    dec = fft.decomposition
    u = random_field(shape, np.float64 if real else np.complex128)
    image = laplacian(u, lengths)
    image = image.real if real else image
    shift = (2 * np.pi / min(lengths)) ** 2
    offset = 3.0  # `Poisson` ignores the mean of a right-hand side.
    solve = lambda f, g: (spectral.Poisson(fft)(f), spectral.Helmholtz(fft, shift)(g))
    poisson, helmholtz = jax.jit(solve)(dec.shard(image + offset), dec.shard(shift * u - image))
    np.testing.assert_allclose(dec.gather(poisson), u - u.mean(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(dec.gather(helmholtz), u, rtol=0, atol=1e-9)


def test_helmholtz_equation_of_waves():
    """Check `(∇² + κ²) u = -f`, whose symbol has both signs, and the derivative with respect to the shift."""
    shape, lengths, kappa = (9, 10, 11), (1.0, 2.0, 0.5), 10.0
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, box=dops.Box(lengths), pad=True, real=True)
    u = random_field(shape)
    f = fft.decomposition.shard(-(laplacian(u, lengths).real + kappa**2 * u))
    loss = jax.jit(jax.value_and_grad(lambda shift: jnp.sum(spectral.Helmholtz(fft, shift)(f) ** 2)))
    value, slope = loss(-(kappa**2))
    assert float(value) == pytest.approx(np.sum(u**2), rel=1e-10)
    assert float(slope) == pytest.approx(finite_difference(lambda s: loss(s)[0], -(kappa**2), 1.0, 1e-4), rel=1e-6)


@pytest.mark.parametrize(
    ("shift", "lengths"),
    [
        (0, 1.0),
        (-16.0, 2 * np.pi),
        (-(5.0**2 + 4.0**2 + 3.0**2), 2 * np.pi),
        (-sum((2 * np.pi * m / length) ** 2 for m, length in zip((1, 3, 2), (0.7, 1.3, 31.0))), (0.7, 1.3, 31.0)),
        (np.nan, 1.0),
        (-np.inf, 1.0),
    ],
)
def test_resonances_are_refused(plain, shift, lengths):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(10, 8, 7), box=plain.Box(lengths), real=True)
    with pytest.raises(ValueError, match=r"`shift` must (not be minus the square of a wavenumber .*|be finite); got"):
        plain.spectral.Helmholtz(fft, shift)


def test_shifts_without_resonance_are_accepted():
    fft = dops.FFT3D(make_mesh((1, 1)), shape=(10, 8, 7), real=True)
    # None of these shifts is minus an eigenvalue. Every eigenvalue is a sum of three squares: 7 is no sum of three
    # squares, 1.001 is only close to 1, and 51 is a sum only of wavenumbers that are too high for the grid.
    for shift in (-7.0, -1.001, -51.0, jnp.asarray(-7.0)):
        assert spectral.Helmholtz(fft, shift).shift is shift
    assert spectral.Helmholtz(spectral.dealiased(fft), -16.0).transform.modes == (7, 5, 5)  # Mode 4 is not kept.


@pytest.mark.parametrize("shift", ["1", None, 1j, np.ones(3), jnp.ones((1, 1, 1))])
def test_a_shift_is_one_real_number(plain, shift):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True)
    with pytest.raises(TypeError, match="`shift` must be one real number; got"):
        plain.spectral.Helmholtz(fft, shift)


def test_a_traced_shift_is_one_number_too(plain):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True)
    with pytest.raises(TypeError, match="`shift` must be one real number; got"):
        jax.jit(lambda shift: plain.spectral.Helmholtz(fft, shift)(np.ones((4, 4, 4))))(np.ones(4))


@pytest.mark.parametrize(("sizes", "shape", "real"), [((2, 4), (8, 6, 4), True), ((8, 1), (9, 5, 6), False)])
def test_projection(sizes, shape, real):
    """The projection makes random fields divergence-free, is orthogonal, keeps curls, and removes gradients.

    Random fields on even grids have Nyquist modes.
    """
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, box=dops.Box((1.0, 0.5, 3.0)), pad=True, real=real)
    dec = fft.decomposition
    dtype = np.float64 if real else np.complex128
    u, phi = random_field((2, 3, *shape), dtype) + 1, random_field((2, *shape), dtype, seed=1)
    project, div, curl = (kind(fft) for kind in (spectral.LerayProjection, spectral.Divergence, spectral.Curl))

    @jax.jit
    def everything(u, phi):
        p, rotation = project(u), curl(u)
        return p, project(p), div(p), div(u), project(rotation), rotation, project(spectral.Gradient(fft)(phi))

    p, twice, div_p, div_u, kept, rotation, dropped = map(dec.gather, everything(dec.shard(u), dec.shard(phi)))
    assert_close(twice, p, rtol=1e-13)
    assert np.abs(div_p).max() < 1e-12 * np.abs(div_u).max()
    assert_close(kept, rotation, rtol=1e-12)
    np.testing.assert_allclose(p.mean((-3, -2, -1)), u.mean((-3, -2, -1)), rtol=1e-12)
    np.testing.assert_allclose(dropped, 0, atol=1e-12)
    # The removed part is orthogonal to the kept part, and it is not zero.
    assert abs(np.vdot(p, u - p)) < 1e-12 * np.vdot(u, u).real
    assert np.abs(u - p).max() > 0.1
