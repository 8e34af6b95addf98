"""Tests of statistics between walls and in planes, against quadrature and Fourier transforms of NumPy."""

import contextlib
import itertools

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import spectral

from helpers import assert_close, make_mesh, random_field


F, H, C, S, T = dops.Fourier(), dops.Fourier(half=True), dops.Cosine, dops.Sine, dops.Chebyshev
CELLS = dops.Cells((0.0, 0.1, 0.3, 0.35, 0.6, 0.9, 1.0))
LENGTHS = (2.0, 3.0, 1.5)
BOX = dops.Box(LENGTHS)


def quadrature(basis, n: int) -> np.ndarray:
    """Return a matrix A. The sum of |A u|² is the mean of |u|² along an axis of `n` points."""
    match basis:
        case dops.Chebyshev():  # Gauss's rule is exact for the square of the polynomial through the points.
            to_unit = lambda s: 1 - 2 * s
            nodes, weights = np.polynomial.legendre.leggauss(n + 1)
            vandermonde = lambda s: np.polynomial.chebyshev.chebvander(s, n - 1)
            values = vandermonde(nodes) @ np.linalg.inv(vandermonde(to_unit(basis.points(n))))
            return np.sqrt(weights / 2)[:, None] * values
        case dops.Cells():
            return np.diag(np.sqrt(np.diff(basis.faces)))
        case dops.Cosine(type=1) | dops.Sine(type=1):  # The trapezoidal rule. Sines are zero at both walls.
            s = np.linspace(0, 1, n) if isinstance(basis, dops.Cosine) else np.linspace(0, 1, n + 2)[1:-1]
            ends = np.where((s == 0) | (s == 1), 0.5, 1) / (n - 1 if isinstance(basis, dops.Cosine) else n + 1)
            return np.diag(np.sqrt(ends))
        case dops.Cosine(type=3):
            return np.diag(np.sqrt(np.where(np.arange(n) == 0, 0.5, 1) / n))
        case dops.Sine(type=3):
            return np.diag(np.sqrt(np.where(np.arange(n) == n - 1, 0.5, 1) / n))
    return np.eye(n) / np.sqrt(n)


def mean_square(u: np.ndarray, bases) -> np.ndarray:
    for axis, basis in enumerate(bases):
        place = axis - len(bases)
        u = np.moveaxis(np.tensordot(quadrature(basis, u.shape[place]), u, (1, place)), 0, place)
    return np.sum(abs(u) ** 2, tuple(range(-len(bases), 0)))


CASES = [
    ((T(1), F, H), (9, 6, 8), (2, 2), "explicit", {}),
    ((T(2), F, H), (9, 6, 8), (2, 2), "auto", {"modes": (7, 4, 6), "nyquist": True, "norm": "forward"}),
    ((T(1), H), (8, 6), (2,), "auto", {"modes": (8, 4), "axes": "x"}),
    ((C(1), F, H), (9, 6, 8), (2, 2), "auto", {"modes": (6, 6, 4), "nyquist": True}),
    ((C(2), S(2), H), (8, 10, 9), (2, 4), "explicit", {"norm": "ortho"}),
    ((S(1), H, C(3)), (7, 8, 9), (8,), "auto", {}),
    ((S(3), C(4), F), (6, 4, 6), (1, 1), "auto", {"norm": "forward", "modes": (6, 4, 4), "nyquist": True}),
    ((CELLS, F, H), (6, 4, 6), (2, 2), "auto", {"norm": "ortho"}),
]


@pytest.mark.parametrize(("bases", "shape", "sizes", "kind", "options"), CASES)
def test_mean_square_is_quadrature(bases, shape, sizes, kind, options):
    mesh = make_mesh(sizes, kind)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.Transform(mesh, bases=bases, shape=shape, box=dops.Box(LENGTHS[: len(shape)]), pad=True, **options)
        dec = fft.decomposition
        u = random_field((2, *shape), complex if bases[-1] == F else float)
        run = jax.jit(lambda u: (spectral.mean_square(fft, k := fft(u)), fft.inverse(k)))
        found, back = run(dec.shard(u))
    assert_close(found, mean_square(dec.gather(back), bases), 1e-12)


def test_the_mean_square_of_a_parabola():
    fft = dops.Transform(make_mesh((1,)), bases=(T(1), H), shape=(9, 4), box=dops.Box(2.0), axes="x")
    u = np.broadcast_to(1 - (1 - 2 * T(1).points(9)[:, None]) ** 2, (9, 4))
    assert float(spectral.mean_square(fft, fft(u))) == pytest.approx(8 / 15, rel=1e-14)


def histogram(u, lengths, edges, sines=()):
    """Return the mean k, the mean power and the number of modes of each shell, for a periodic field of any axes.

    Along the axes `sines`, the mode zero does not count.
    """
    ndim = len(lengths)
    axes = tuple(range(-ndim, 0))
    shape = u.shape[-ndim:]
    k = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, d / n) for n, d in zip(shape, lengths)), indexing="ij")
    counts = np.logical_and.reduce([k[axis] != 0 for axis in sines], initial=True)
    k = np.sqrt(sum(part**2 for part in k))
    power = abs(np.fft.fftn(u, axes=axes)) ** 2 * np.prod(lengths) / np.prod(shape) ** 2
    shells = [counts & (lower <= k) & (k < upper) for lower, upper in itertools.pairwise(edges)]
    mean = lambda values: np.stack([values[..., shell].mean(-1) for shell in shells], -1)
    return mean(k), mean(power), np.array([shell.sum() for shell in shells])


def continued(u: np.ndarray, basis, axis: int) -> np.ndarray:
    """Return one period of the field beyond its walls, for types 1 and 2."""
    u = np.moveaxis(u, axis, -1)
    sign, zero = (1, []) if isinstance(basis, C) else (-1, [np.zeros((*u.shape[:-1], 1))])
    mirror = u[..., ::-1]
    match basis.type, sign:
        case 1, 1:
            u = np.concatenate([u, mirror[..., 1:-1]], -1)
        case 1, -1:
            u = np.concatenate([*zero, u, *zero, -mirror], -1)
        case _:
            u = np.concatenate([u, sign * mirror], -1)
    return np.moveaxis(u, -1, axis)


@pytest.mark.parametrize(
    ("bases", "shape", "sizes", "kind"),
    [
        ((C(2), F, H), (8, 6, 10), (2, 4), "auto"),
        ((F, H, C(1)), (6, 8, 7), (2, 2), "explicit"),
        ((S(2), S(1)), (6, 8), (2,), "auto"),
    ],
)
def test_power_spectra_between_walls(bases, shape, sizes, kind):
    """The power spectrum is the power spectrum of the periodic field that continues the field beyond its walls.

    Its integral is the mean of |u|², by quadrature.
    """
    mesh, ndim = make_mesh(sizes, kind), len(shape)
    axes = {"axes": "x"} if len(sizes) == 1 else {}
    u, lengths = random_field((2, *shape)), list(LENGTHS[:ndim])
    edges, whole = (0.1, 3.0, 5.0, 6.0), (-1.0, 1e3)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.Transform(
            mesh, bases=bases, shape=shape, box=dops.Box(LENGTHS[:ndim]), pad=True, norm="forward", **axes
        )
        measure = jax.jit(lambda u: [spectral.power_spectrum(fft, u, edges=e) for e in (edges, whole)])
        found, total = measure(fft.decomposition.shard(u))
    for axis, basis in enumerate(bases):
        if not isinstance(basis, dops.Fourier):
            lengths[axis] *= 2
    longer = u
    for axis, basis in enumerate(bases):
        longer = longer if isinstance(basis, dops.Fourier) else continued(longer, basis, axis - ndim)
    sines = [axis for axis, basis in enumerate(bases) if isinstance(basis, S)]
    for got, expected in zip(found, histogram(longer, lengths, edges, sines)):
        assert_close(got, expected, 1e-12)
    integral = total.power[..., 0] * total.modes[0] / np.prod(lengths)
    assert_close(integral, mean_square(u, bases), 1e-12)


@pytest.mark.parametrize(
    ("bases", "shape", "sizes", "kind", "across"),
    [
        ((T(1), F, H), (9, 6, 8), (2, 2), "auto", 0),
        ((F, H, C(2)), (6, 8, 7), (2, 4), "explicit", 2),
        ((CELLS, H), (6, 8), (4,), "auto", 0),
    ],
)
def test_spectra_in_planes(bases, shape, sizes, kind, across):
    mesh, ndim = make_mesh(sizes, kind), len(shape)
    axes = {"axes": "x"} if len(sizes) == 1 else {}
    u, lengths = random_field((2, *shape)), [length for axis, length in enumerate(LENGTHS[:ndim]) if axis != across]
    edges, whole = (0.1, 5.0, 9.0), (-1.0, 1e3)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.Transform(mesh, bases=bases, shape=shape, box=dops.Box(LENGTHS[:ndim]), pad=True, **axes)
        measure = jax.jit(lambda u: [spectral.plane_spectra(fft, u, edges=e) for e in (edges, whole)])
        found, total = measure(fft.decomposition.shard(u))
    assert found.power.shape == (2, shape[across], 2)
    for got, expected in zip(found, histogram(np.moveaxis(u, across - ndim, 1), lengths, edges)):
        assert_close(got, expected, 1e-12)
    integral = total.power[..., 0] * total.modes[0] / np.prod(lengths)
    planes = tuple(axis - ndim for axis in range(ndim) if axis != across)
    assert_close(integral, np.mean(u**2, planes), 1e-12)


@pytest.mark.parametrize(
    ("bases", "function", "message"),
    [
        (
            lambda d: (d.Chebyshev(1), d.Fourier(), d.Fourier(half=True)),
            "power_spectrum",
            r"got Chebyshev\(type=1\) along x\. .* call `plane_spectra`",
        ),
        (
            lambda d: (d.Cosine(2, orthogonal=True), d.Fourier(), d.Fourier(half=True)),
            "power_spectrum",
            r"without orthogonal weights; .* Use `Cosine\(2\)`",
        ),
        (
            lambda d: (d.Cosine(1, orthogonal=True), d.Fourier(), d.Fourier(half=True)),
            "mean_square",
            r"must not have orthogonal weights along x.*`fft.volume_mean\(abs",
        ),
        (
            lambda d: (d.Fourier(), d.Fourier(half=True), d.Chebyshev(1)),
            "mean_square",
            r"got Chebyshev\(type=1\)\. For the field u, compute `fft.volume_mean\(abs",
        ),
        (
            lambda d: (d.Fourier(), d.Fourier(), d.Fourier(half=True)),
            "plane_spectra",
            "must have one axis that is not periodic",
        ),
        (
            lambda d: (d.Chebyshev(1), d.Cosine(2), d.Fourier(half=True)),
            "plane_spectra",
            "must have one axis that is not periodic",
        ),
        (
            lambda d: (d.Cosine(2), d.Fourier(), d.Fourier(half=True)),
            "GaussianRandomField",
            r"must be periodic along x.*got Cosine\(type=2.*`IsotropicFilter`",
        ),
        (lambda d: (d.Chebyshev(1), d.Fourier(), d.Fourier(half=True)), "plot", "call `plane_spectra`"),
    ],
)
def test_what_cannot_be_computed_is_refused(plain, bases, function, message):
    fft = plain.Transform(make_mesh((2, 2)), bases=bases(plain), shape=(8, 8, 8), box=plain.Box(), pad=True)
    u = fft.decomposition.shard(np.ones((8, 8, 8)))
    calls = {
        "mean_square": lambda: plain.spectral.mean_square(fft, fft(u)),
        "GaussianRandomField": lambda: plain.spectral.GaussianRandomField(fft, abs),
        "plot": lambda: plain.plot.spectrum(fft, u),
    }
    with pytest.raises(ValueError, match=message):
        calls.get(function, lambda: getattr(plain.spectral, function)(fft, u))()


def test_two_points_on_walls_have_no_orthogonal_weights(plain):
    """Both points have the same weight, but half of that of other points."""
    bases = (plain.Cosine(1), plain.Fourier(half=True))
    make = lambda norm: plain.Transform(make_mesh((1,)), axes="x", shape=(2, 4), bases=bases, norm=norm)
    u = random_field((2, 4))
    for norm in ("backward", "forward"):
        fft = make(norm)
        assert_close(plain.spectral.mean_square(fft, fft(u)), np.mean(u**2), 1e-12)
    with pytest.raises(ValueError, match="must not have orthogonal weights along x"):
        plain.spectral.mean_square(make("ortho"), make("ortho")(u))
