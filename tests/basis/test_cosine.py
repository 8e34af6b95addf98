"""Tests of cosines, sines and points, alone and with Fourier modes, against SciPy, matrices and exact functions."""

import itertools
import math
from dataclasses import replace

import decompops as dops
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from decompops._basis import real_to_real as lines_by_fft
from decompops._basis.points import Identity
from decompops.extend import Cosine, Points, RealToReal, Run, Sine

from dense import real_to_real, run_matrix
from helpers import assert_close, make_mesh, random_field, thinned


SCIPY = {"dct": scipy.fft.dct, "dst": scipy.fft.dst}
TRANSFORMS = [RealToReal(kind, type) for kind in ("dct", "dst") for type in (1, 2, 3, 4)]
BASES = [basis(type) for basis in (Cosine, Sine) for type in (1, 2, 3, 4)]
named = pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: f"{t.kind}-{t.type}")
of_bases = pytest.mark.parametrize("basis", BASES, ids=repr)


def by_fft(transform: RealToReal, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Apply the transform by FFT, as `transform.apply` does for long lines."""
    weights = [transform.weights(x.shape[axis]) for axis in axes]
    return lines_by_fft.apply(transform.kind, transform.type, weights, x, axes)


def applied(transform: RealToReal, x: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(lambda x: transform.apply(x, (-1,), x.shape[-1:]))(x))


def check_matrix(transform: RealToReal, n: int) -> None:
    """Compare the transform, its matrix, its transpose and its inverse with the matrix of its definition."""
    matrix = real_to_real(transform, n)
    assert_close(applied(transform, np.eye(n)).T, matrix, rtol=1e-14)
    assert_close(jax.jit(lambda x: by_fft(transform, x, (-1,)))(np.eye(n)).T, matrix, rtol=1e-14)
    assert_close(transform.matrix(n), matrix, rtol=1e-14)
    assert_close(real_to_real(transform.transpose(), n), matrix.T, rtol=1e-13)
    assert transform.conjugate() == transform
    inverse = real_to_real(transform.inverse(), n) * transform.inverse_scale((n,))
    assert_close(inverse @ matrix, np.eye(n), rtol=1e-12)
    assert transform.transpose().transpose() == transform.inverse().inverse() == transform


@named
@hypothesis.given(n=st.integers(2, 12), before=st.integers(-2, 3), after=st.integers(-2, 3))
@hypothesis.settings(max_examples=4, deadline=None)
def test_matrices(transform, n, before, after):
    check_matrix(replace(transform, before=before, after=after), n)


@named
def test_short_lines(transform):
    for n in (1, 2, 3):
        if (transform.kind, transform.type, n) != ("dct", 1, 1):
            check_matrix(replace(transform, before=1, after=2), n)


# Each case has a shape, a dtype, and the axes that are transformed.
CASES = [
    ((4, 3, 6), np.float64, (-2,)),
    ((4, 3, 6), np.float32, (-1, -3)),
    ((4, 3, 6), np.complex64, (-3, -2, -1)),
    ((2, 2, 3, 2, 5), np.complex128, (-4, -3, -2, -1)),
    ((20, 64, 131), np.float32, (-3, -2, -1)),
]


@named
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_values(transform, everything):
    """Both ways to compute a transform, `apply` and `by_fft`, give the results of SciPy.

    One compiled program runs all cases. Without `everything`, `by_fft` runs every second case, and `apply` the others:
    the sine transform of a type runs in either way what the cosine transform leaves out.
    """
    inputs = [random_field(shape, dtype) for shape, dtype, _ in CASES]
    first = (transform.type + (transform.kind == "dst")) % 2
    some, others = [slice(None) if everything else slice(start, None, 2) for start in (first, 1 - first)]

    @jax.jit
    def program(*inputs):
        each = list(zip(inputs, (axes for *_, axes in CASES)))
        products = [transform.apply(x, axes, tuple(x.shape[i] for i in axes)) for x, axes in each[others]]
        return products + [by_fft(transform, x, axes) for x, axes in each[some]]

    cases = list(zip(inputs, CASES))
    for result, (u, (_, dtype, axes)) in zip(program(*inputs), cases[others] + cases[some], strict=True):
        expected = u
        for axis in axes:
            expected = SCIPY[transform.kind](expected, transform.type, axis=axis)
        assert result.dtype == dtype
        assert_close(result, expected, rtol=4 * np.finfo(dtype).eps)


@named
@pytest.mark.parametrize(
    ("n", "dtype"),
    thinned(
        itertools.product([129, 1009, 4096], [np.float32, np.float64]),
        lambda n, dtype: (dtype == np.float32) == (n == 1009),
    ),
)
def test_rounding_errors(transform, n, dtype):
    """Rounding errors of short, prime and long lengths are at most three times as large as SciPy's."""
    u = random_field((n,), dtype)
    by_scipy = SCIPY[transform.kind](u, transform.type)
    exact = SCIPY[transform.kind](u.astype(np.longdouble), transform.type)
    error = lambda found: np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert error(applied(transform, u)) <= 3 * max(error(by_scipy), np.finfo(dtype).eps / 2)


@named
def test_dtypes(transform):
    for given, cast in {
        "float16": "float32",
        "bfloat16": "float32",
        "int8": "float64",
        "complex64": "complex64",
    }.items():
        dtype = transform.input_dtype(jnp.dtype(given))
        assert dtype == np.dtype(cast)
        assert transform.result_dtype(dtype) == dtype


@named
def test_jax_transforms_it(transform):
    """`jax.grad` and `jax.vmap` of `apply` equal products with the transform's matrix."""
    u, v = random_field((3, 6)), random_field((3, 6), seed=1)
    line = lambda x: transform.apply(x, (-1,), (6,))
    matrix = real_to_real(transform, 6)
    both = jax.jit(lambda x: (jax.grad(lambda x: jnp.sum(line(x) * v))(x), jax.vmap(line)(x)))
    gradient, batch = both(u)
    assert_close(gradient, v @ matrix)
    assert_close(batch, u @ matrix.T)


@of_bases
@pytest.mark.parametrize("n", [2, 3, 6])
def test_orthogonal_forms(basis, n):
    ours = applied(basis.orthogonalized().forward, np.eye(n)).T * math.sqrt(basis.forward.inverse_scale((n,)))
    assert_close(ours, SCIPY[basis.kind](np.eye(n), basis.type, norm="ortho").T)
    assert_close(ours @ ours.T, np.eye(n))


def modes_of(basis, n: int, s: np.ndarray) -> np.ndarray:
    """Return the values of the functions of the expansion at positions `s`. Each function has one column."""
    function = {"dct": np.cos, "dst": np.sin}[basis.kind]
    return function(np.outer(s, basis.wavenumbers(n)))


def series(basis, n: int, coefficients: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return the values, at positions `s`, of the series that has these unnormalised coefficients.

    A coefficient counts `multiplicity` times: once for each complex exponential that has this coefficient.
    """
    return modes_of(basis, n, s) @ (basis.multiplicity(n, n) * coefficients) * basis.forward.inverse_scale((n,))


@of_bases
def test_points_modes_and_parseval(basis):
    n = 6
    assert basis.stored(n) == n
    u = random_field((n,))
    coefficients = SCIPY[basis.kind](u, basis.type)
    assert_close(series(basis, n, coefficients, basis.points(n)), u)
    # Points on a wall have half the weight of inner points.
    s = basis.points(n)
    weights = np.where(np.isclose(s, 0) | np.isclose(s, 1), 0.5, 1.0)
    cells = 0.5 / basis.forward.inverse_scale((n,))
    energy = np.sum(basis.multiplicity(n, n) * (coefficients * basis.forward.inverse_scale((n,))) ** 2)
    assert energy == pytest.approx(np.sum(weights * u**2) / cells)
    # With orthogonal matrices, every coefficient and every point has the same weight.
    orthogonal = basis.orthogonalized()
    coefficients = SCIPY[basis.kind](u, basis.type, orthogonalize=True)
    energy = np.sum(orthogonal.multiplicity(n, n) * (coefficients * basis.forward.inverse_scale((n,))) ** 2)
    assert energy == pytest.approx(np.sum(u**2) / cells)


@of_bases
def test_nyquist_modes(basis):
    """`nyquist=False` sets a wavenumber to zero if, and only if, the mode's derivative is zero at all points."""
    n = 5
    slopes = {"dct": np.sin, "dst": np.cos}[basis.kind](np.outer(basis.points(n), basis.wavenumbers(n)))
    vanishing = np.all(np.isclose(slopes, 0), axis=0) & (basis.wavenumbers(n) > 0)
    assert_close(basis.wavenumbers(n, nyquist=False), np.where(vanishing, 0, basis.wavenumbers(n)))
    assert vanishing.sum() == ((basis.kind, basis.type) in (("dct", 1), ("dst", 2)))


@of_bases
@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("kept", [2, 3, 5])
def test_truncation(basis, orthogonal, kept):
    """Truncating a function with few modes gives the same function at fewer points."""
    n = 7
    wanted = random_field((n,)) * (np.arange(n) < kept)
    function = lambda s: modes_of(basis, n, s) @ wanted
    norm = {"orthogonalize": orthogonal}
    coefficients = SCIPY[basis.kind](function(basis.points(n)), basis.type, **norm)
    basis = replace(basis, orthogonal=orthogonal)
    runs = basis.truncation(n, kept, nyquist=True)
    short = run_matrix(runs, n, kept) @ coefficients * basis.forward.inverse_scale((n,))
    inverse = {"dct": scipy.fft.idct, "dst": scipy.fft.idst}[basis.kind]
    if not (orthogonal and basis.type in (1, 3)):  # Orthogonal types 1 and 3 multiply values at walls by a weight.
        back = inverse(short / basis.forward.inverse_scale((kept,)), basis.type, **norm)
        assert_close(back, function(basis.points(kept)))
    # With `nyquist=False`, only the Nyquist mode is missing.
    without = run_matrix(basis.truncation(n, kept, nyquist=False), n, kept)
    is_nyquist = basis.wavenumbers(kept, nyquist=False) != basis.wavenumbers(kept)
    assert_close(without @ coefficients, np.where(is_nyquist, 0, run_matrix(runs, n, kept) @ coefficients))
    assert basis.truncation(n, n, nyquist=False) == (Run(0, 0, n),)


@of_bases
@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("n", [3, 6])
def test_derivatives(basis, order, n):
    """The derivative of a sum of all modes is exact at the points of the derivative's basis."""
    for orthogonal in (False, True):
        own = replace(basis, orthogonal=orthogonal)
        if orthogonal and order and (basis.kind, basis.type) in (("dct", 1), ("dct", 3), ("dst", 3)):
            with pytest.raises(ValueError, match=r"a derivative needs the unweighted .*, but (Cosine|Sine)\(type="):
                own.derivative(n, order)
            continue
        k = own.wavenumbers(n, nyquist=order % 2 == 0)
        weights = random_field((n,)) * ((k > 0) | (own.wavenumbers(n) == 0))
        u = modes_of(own, n, own.points(n)) @ weights
        rule = own.derivative(n, order)
        coefficients = rule.factor * k**order * SCIPY[own.kind](u, own.type, orthogonalize=orthogonal)
        mapped = run_matrix(rule.runs, n, rule.points) @ coefficients
        inverse = {"dct": scipy.fft.idct, "dst": scipy.fft.idst}[rule.basis.kind]
        found = inverse(mapped, rule.basis.type, orthogonalize=rule.basis.orthogonal)
        shift = order + (1 if own.kind == "dst" else 0)  # A sine is a cosine shifted by a quarter wavelength.
        phases = np.outer(rule.basis.points(rule.points), k) + (order - (shift - order)) * np.pi / 2
        assert_close(found, np.cos(phases) @ (k**order * weights), rtol=1e-9)


def test_bases_of_derivatives():
    assert [Cosine(type).derivative(5, 1).basis for type in (1, 2, 3, 4)] == [Sine(type) for type in (1, 2, 3, 4)]
    assert [Sine(type).derivative(5, 3).points for type in (1, 2, 3, 4)] == [7, 5, 5, 5]
    assert Cosine(2).derivative(1, 1).runs == ()


def test_points_are_not_transformed():
    points = Points()
    assert (points.kinds, points.is_transformed, points.stored(5)) == ((None, None), False, 5)
    assert points.orthogonalized() == points
    assert_close(points.points(4), np.arange(4) / 4)
    assert_close(points.wavenumbers(3), np.zeros(3))
    assert_close(points.multiplicity(3, 3), np.ones(3))
    assert points.truncation(4, 4, nyquist=True) == points.derivative(4, 0).runs == (Run(0, 0, 4),)
    assert points.joined(points) is None
    identity = points.forward
    assert identity == Identity() == identity.transpose() == identity.conjugate() == identity.inverse()
    assert (identity.to_points, identity.inverse_scale((4,))) == (False, 1.0)
    assert identity.input_dtype(np.dtype("int8")) == identity.result_dtype(np.dtype("int8")) == np.dtype("int8")
    u = jnp.asarray(random_field((3,)))
    assert identity.apply(u, (-1,), (3,)) is u


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda d: d.Cosine(5), ValueError, r"`type` must be one of \(1, 2, 3, 4\); got 5"),
        (lambda d: d.Sine("2"), ValueError, r"`type` must be one of \(1, 2, 3, 4\); got '2'"),
        (lambda d: d.Cosine(2, orthogonal=1), TypeError, "`orthogonal` must be True or False; got 1"),
        (lambda d: replace(d.Cosine(2).forward, kind="fft"), ValueError, '`RealToReal` must be of kind "dct" or "dst"'),
        (lambda d: d.Cosine(1).stored(1), ValueError, r"`Cosine\(1\)` needs at least 2 points along its axis; got 1"),
        (lambda d: d.Cosine(1).forward.inverse_scale((1,)), ValueError, "needs at least 2 points"),
        (lambda d: d.Cosine(1).forward.apply(jnp.ones(1), (-1,), (1,)), ValueError, "needs at least 2 points"),
        (lambda d: d.Cosine(1).derivative(2, 1), ValueError, r"an odd derivative .* needs at least 3 points; got 2"),
        (lambda d: d.Points().truncation(4, 3, nyquist=True), ValueError, "`modes` must be 4 along an axis of `Points"),
        (
            lambda d: d.Points().derivative(4, 1),
            ValueError,
            r"`order` must be 0 along an axis of `Points\(\)`.*; got 1",
        ),
    ],
)
def test_bad_input(wrong, error, message, plain):
    with pytest.raises(error, match=message):
        wrong(plain)


SHAPE = (8, 8, 4)
FULL, HALF = dops.Fourier(), dops.Fourier(half=True)
MIXED = [
    ((FULL, FULL, Cosine(2)), "ortho"),
    ((Cosine(1), Sine(2), HALF), "backward"),
    ((Sine(3), Points(), Cosine(4)), "forward"),
    ((FULL, Cosine(3), Sine(1)), "backward"),
    ((Cosine(1), Cosine(1), Sine(4)), "ortho"),
]


def transformed(u: np.ndarray, basis, axis: int, norm: str) -> np.ndarray:
    if basis == Points():
        return u
    if isinstance(basis, dops.Fourier):
        return (np.fft.rfft if basis.half else np.fft.fft)(u, axis=axis, norm=norm)
    return SCIPY[basis.kind](u, basis.type, axis=axis, norm=norm)


@pytest.mark.parametrize(("bases", "norm"), MIXED)
def test_mixed_bases(bases, norm):
    transform = dops.Transform(make_mesh((2, 4)), shape=SHAPE, bases=bases, norm=norm)
    u = random_field(SHAPE)
    expected = u
    for axis in (2, 1, 0):
        expected = transformed(expected, bases[axis], axis, norm)
    energy = lambda x: jnp.sum(jnp.abs(transform(x)) ** 2) / 2

    @jax.jit
    def everything(u, v):
        k = transform(u)
        return k, transform.inverse(k), transform(v), transform.T(k), transform.H(k), jax.grad(energy)(u)

    u, v = (transform.in_layout.shard(field) for field in (u, random_field(SHAPE, seed=1)))
    k, back, image, transposed, adjoint, slope = jax.device_get(everything(u, v))
    u, v = jax.device_get((u, v))
    true = tuple(map(slice, expected.shape))
    assert_close(k[true], expected)
    assert_close(back, u)
    # The transpose satisfies sum(k * A v) = sum(A^T k * v). The adjoint satisfies sum(conj(k) * A v) =
    # sum(conj(A^H k) * v).
    assert_close(np.sum(k * image).real, np.sum(transposed * v).real)
    assert_close(np.sum(np.conj(k) * image).real, np.sum(np.conj(adjoint) * v).real)
    # The gradient of half the sum of squares is the adjoint applied to the spectrum.
    assert_close(slope, adjoint.real)
