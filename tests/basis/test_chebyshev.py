"""Tests of Chebyshev polynomials against `numpy.polynomial`, and of the quadrature weights of every basis."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from decompops.extend import Run
from decompops.tools.hlo import collectives
from numpy.polynomial import chebyshev

from dense import real_to_real, run_matrix
from helpers import assert_close, finite_difference, make_mesh, random_field


BASES = [dops.Chebyshev(1), dops.Chebyshev(2)]
of_bases = pytest.mark.parametrize("basis", BASES, ids=repr)


def factor(basis, n: int) -> int:
    return n - 1 if basis.type == 1 else n


@of_bases
@pytest.mark.parametrize("n", [2, 3, 7, 8])
def test_coefficients_equal_those_of_numpy(basis, n):
    s = basis.points(n)
    known = {1: chebyshev.chebpts2, 2: chebyshev.chebpts1}[basis.type](n)  # ascending
    assert_close(1 - 2 * s, -known, rtol=1e-15)
    wanted = random_field((n,))
    u = chebyshev.chebval(1 - 2 * s, wanted)
    matrix = real_to_real(basis.forward, n)
    assert_close(matrix @ u, factor(basis, n) * wanted, rtol=1e-14)
    assert_close(np.asarray(basis.forward.apply(jnp.asarray(u), (-1,), (n,))), factor(basis, n) * wanted, rtol=1e-13)
    scale = basis.forward.inverse_scale((n,))
    assert scale == 1 / (2 * factor(basis, n))
    assert_close(real_to_real(basis.forward.inverse(), n) @ (factor(basis, n) * wanted) * scale, u, rtol=1e-14)
    # Parseval's theorem holds for the mean over the angle. In this mean, a point on a wall has half the weight of
    # an inner point.
    half = np.where((s == 0) | (s == 1), 0.5, 1.0)
    stored = matrix @ u * scale
    assert np.sum(basis.multiplicity(n, n) * stored**2) == pytest.approx(np.sum(half * u**2) / factor(basis, n))


@of_bases
@pytest.mark.parametrize("nyquist", [False, True])
def test_truncation_keeps_polynomials(basis, nyquist):
    n, kept = 8, 5
    wanted = random_field((n,))
    u = chebyshev.chebval(1 - 2 * basis.points(n), wanted)
    coefficients = run_matrix(basis.truncation(n, kept, nyquist=nyquist), n, kept) @ real_to_real(basis.forward, n) @ u
    assert_close(coefficients, factor(basis, n) * wanted[:kept], rtol=1e-13)
    # Parseval's theorem holds for the polynomial of the kept coefficients, evaluated on the fine grid.
    low = chebyshev.chebval(1 - 2 * basis.points(n), wanted[:kept])
    s = basis.points(n)
    half = np.where((s == 0) | (s == 1), 0.5, 1.0)
    energy = np.sum(basis.multiplicity(n, kept) * (coefficients * basis.forward.inverse_scale((n,))) ** 2)
    assert energy == pytest.approx(np.sum(half * low**2) / factor(basis, n))


@of_bases
@pytest.mark.parametrize("n", [3, 6, 7, 16])
def test_modes_that_stay_free_of_aliasing(basis, n):
    """If a product is computed at the points, the first `points_below` coefficients equal the result of `chebmul`."""
    kept = basis.points_below(n, 2 / 3)
    pair = random_field((2, kept))
    exact = chebyshev.chebmul(*pair)[:kept]
    product = np.prod([chebyshev.chebval(1 - 2 * basis.points(n), one) for one in pair], axis=0)
    if n > 3:  # Type 1 always keeps at least two polynomials.
        assert_close((real_to_real(basis.forward, n) @ product / factor(basis, n))[:kept], exact, rtol=1e-12)


@of_bases
def test_properties_of_the_basis(basis):
    assert (basis.kinds, basis.is_transformed, basis.is_diagonal) == ((None, None), True, False)
    assert basis.joined(basis) == basis.forward
    assert basis.joined(dops.Cosine(basis.type)) is None
    assert basis.derivative(5, 0).runs == (Run(0, 0, 5),)
    assert_close(basis.wavenumbers(5), np.zeros(5))


@pytest.mark.parametrize("n", [2, 3, 4, 9, 16, 33])
@of_bases
def test_polynomials_are_integrated_exactly(basis, n):
    weights, s = basis.weights(n), basis.points(n)
    assert weights.min() > 0
    for degree in range(n):
        assert weights @ s**degree == pytest.approx(1 / (degree + 1), rel=1e-13)
    assert_close(weights, weights[::-1], rtol=1e-14)


@pytest.mark.parametrize(
    ("basis", "walls"), [(dops.Cosine(1), 2), (dops.Cosine(3), 1), (dops.Sine(1), 0), (dops.Sine(3), 1)]
)
def test_only_points_on_walls_have_half_the_weight(basis, walls):
    """In a long line, the points next to a wall are on it to five digits."""
    weights = basis.weights(300_000)
    assert np.sum(weights < 0.75 * weights.max()) == walls


SERIES = [basis(type) for basis in (dops.Cosine, dops.Sine) for type in (1, 2, 3, 4)]


@pytest.mark.parametrize("basis", SERIES, ids=repr)
def test_weights_of_series(basis):
    """Test the quadrature weights of `Points`, and of cosine, sine and Fourier series.

    Weights of `Cosine(1)` and `Cosine(2)` are exact for a cosine. Weights of the other types have second-order errors.
    A wall where the field is zero has a weight but no point. So the weights of the points do not sum to one.
    """
    assert basis.is_diagonal
    assert dops.Fourier().is_diagonal
    assert dops.Points().is_diagonal
    for n in (2, 5, 8):
        s, weights = basis.points(n), basis.weights(n)
        spacing = np.diff(s)[0]
        missing = sum(spacing / 2 for wall in (0, 1) if basis.type in (1, 3) and not np.isclose(s, wall).any())
        assert weights.sum() + missing == pytest.approx(1)
        for values in (dops.Fourier().weights(n), dops.Points().weights(n), dops.Fourier(half=True).weights(n)):
            assert_close(values, np.full(n, 1 / n))
    errors = []
    for n in (200, 400):
        s = basis.points(n)
        k = np.pi if basis.type in (1, 2) else np.pi / 2
        exact = {"dct": np.sin(k) / k, "dst": (1 - np.cos(k)) / k}[basis.kind]
        u = {"dct": np.cos, "dst": np.sin}[basis.kind](k * s)
        errors.append(abs(basis.weights(n) @ u - exact))
    if isinstance(basis, dops.Cosine) and basis.type in (1, 2):
        assert max(errors) < 1e-14
    else:
        assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)


SHAPE = (9, 6, 7)
BOTH = (dops.Chebyshev(1), dops.Fourier(), dops.Chebyshev(2))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_means_over_the_volume(kind):
    """`Transform.mean` and its gradient equal NumPy's sums despite NaN in the padding.

    All communication is by all-reduces.
    """
    transform = dops.Transform(make_mesh((2, 4), kind), shape=SHAPE, bases=BOTH, pad=True)
    u = random_field((2, *SHAPE), np.complex128)
    weights = [basis.weights(n) for basis, n in zip(BOTH, SHAPE)]
    expected = np.einsum("bxyz,x,y,z->b", u, *weights)
    widths = [(0, have - want) for have, want in zip(transform.in_layout.shape, SHAPE)]
    x = jax.device_put(
        np.pad(u, [(0, 0), *widths], constant_values=np.nan), transform.in_layout.sharding_of((2, *SHAPE))
    )
    slope = lambda x: jax.grad(lambda x: jnp.sum(transform.volume_mean(x).real))(x)
    with jax.set_mesh(transform.decomposition.mesh):
        mean, gradient = jax.jit(lambda x: (transform.volume_mean(x), slope(x)))(x)
        program = jax.jit(jax.vmap(transform.volume_mean)).lower(x).compile().as_text()
    assert_close(mean, expected)
    assert_close(transform.volume_mean(u), expected)
    full = np.einsum("x,y,z->xyz", *weights) + np.zeros_like(u)
    assert_close(transform.in_layout.gather(gradient), full)
    assert np.isfinite(gradient).all()
    assert {one.kind for one in collectives(program)} == {"all-reduce"}


def test_means_of_other_dtypes_and_grids():
    transform = dops.Transform(make_mesh((2, 4)), shape=(8, 6, 8), bases=BOTH, pad=True)
    u = random_field((8, 6, 8), np.float16)
    weights = [basis.weights(n) for basis, n in zip(BOTH, u.shape)]
    expected = np.einsum("xyz,x,y,z->", u.astype(float), *weights)
    mean = transform.volume_mean(u)
    assert mean.dtype == np.float16
    assert float(mean) == pytest.approx(expected, abs=1e-3)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, pad=True)
    whole = np.arange(9 * 6 * 7).reshape(SHAPE)
    assert float(fft.volume_mean(fft.decomposition.shard(whole))) == pytest.approx(whole.mean())


def test_transform_and_its_derivatives():
    transform = dops.Transform(make_mesh((2, 4)), shape=SHAPE, bases=BOTH, pad=True, norm="forward")
    u, v = random_field((2, *SHAPE), np.complex128)
    expected = np.fft.fft(scipy.fft.dct(u, 2, axis=2), axis=1) / (6 * 14)
    expected = scipy.fft.dct(expected, 1, axis=0) / 16
    expected[..., 0] /= 2
    expected[[0, -1]] /= 2
    energy = lambda x: jnp.sum(jnp.abs(transform(x)) ** 2)

    @jax.jit
    def everything(u, v):
        k = transform(u)
        image, tangent = jax.jvp(energy, (u,), (v,))
        return k, transform.inverse(k), transform.H(transform(v)), jax.grad(energy)(u), image, tangent, transform(v)

    put = transform.in_layout.shard
    k, back, adjoint, gradient, value, tangent, image = jax.device_get(everything(put(u), put(v)))
    gather, spectral = transform.in_layout.gather, transform.out_layout.gather
    assert_close(spectral(k), expected)
    assert_close(gather(back), u)
    assert np.vdot(k, image) == pytest.approx(np.vdot(gather(transform.H(jnp.asarray(k))), v))
    assert np.vdot(u, gather(adjoint)) == pytest.approx(np.vdot(k, image))
    assert value == pytest.approx(np.linalg.norm(expected) ** 2)
    assert tangent == pytest.approx(2 * np.vdot(k, image).real)
    assert tangent == pytest.approx(np.sum(gather(gradient) * v).real)
    assert tangent == pytest.approx(finite_difference(lambda x: energy(put(x)), u, v, 1e-4), rel=1e-6)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda d: d.Chebyshev(3), ValueError, r"`type` must be one of \(1, 2\); got 3"),
        (lambda d: d.Chebyshev(2.0), ValueError, r"`type` must be one of \(1, 2\); got 2.0"),
        (lambda d: d.Chebyshev(1).stored(1), ValueError, r"`Chebyshev\(1\)` needs at least 2 points .*; got 1"),
        (lambda d: d.Chebyshev(2).derivative(4, 1), ValueError, "`order` must be 0 .*got 1. Use the operators for"),
        (
            lambda d: d.Transform(make_mesh((2,)), bases=(d.Chebyshev(1), d.Fourier()), norm="ortho"),
            ValueError,
            r'`norm` must be "backward" or "forward" for the basis Chebyshev\(type=1\); got "ortho"',
        ),
        (
            lambda d: d.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8)).volume_mean(np.ones((8, 8))),
            ValueError,
            r"`field` must have shape \(\*batch, 8, 8, 8\).*; got \(8, 8\)",
        ),
        (
            lambda d: jax.shard_map(
                d.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8)).volume_mean,
                mesh=make_mesh((2, 4)),
                in_specs=jax.P("x", "y"),
                out_specs=jax.P(),
            )(jnp.ones((8, 8, 8))),
            ValueError,
            "`field` must be a global field; got a block inside a `shard_map`",
        ),
    ],
)
def test_bad_input(wrong, error, message, plain):
    with pytest.raises(error, match=message):
        wrong(plain)
