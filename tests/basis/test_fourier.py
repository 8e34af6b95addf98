"""Tests of Fourier modes and their transforms against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from decompops.extend import DFT, AbstractBasis, Cosine, Fourier, Run

from dense import run_matrix
from helpers import assert_close, random_field


FULL, HALF = Fourier(), Fourier(half=True)
POINTS = [1, 2, 3, 4, 5, 8]


def analysed(basis, u):
    return (np.fft.rfft if basis.half else np.fft.fft)(u)


def synthesised(basis, k, n):
    return np.fft.irfft(k, n) if basis.half else np.fft.ifft(k)


def test_properties_of_the_basis():
    assert (FULL.kinds, HALF.kinds) == ((None, "complex"), ("real", "complex"))
    assert (FULL.forward, HALF.forward) == (DFT("c2c", -1), DFT("r2c", -1))
    assert FULL.joined(HALF) == DFT("r2c", -1)
    assert FULL.joined(FULL) == DFT("c2c", -1)
    assert FULL.orthogonalized() == FULL
    assert HALF.is_transformed
    assert HALF.joined(FULL) is HALF.joined(HALF) is FULL.joined(Cosine(2)) is None


@pytest.mark.parametrize("n", POINTS)
@pytest.mark.parametrize("basis", [FULL, HALF])
def test_modes(basis, n):
    u = random_field((n,))
    k = analysed(basis, u)
    assert basis.stored(n) == len(k)
    modes = basis.wavenumbers(n) / (2 * np.pi)
    assert_close(modes, (np.fft.rfftfreq if basis.half else np.fft.fftfreq)(n, 1 / n))
    nyquist = np.isclose(abs(modes), n / 2)
    assert_close(basis.wavenumbers(n, nyquist=False), 2 * np.pi * np.where(nyquist, 0, modes))
    assert nyquist.sum() == (n % 2 == 0)
    # Parseval's theorem counts each mode with its multiplicity in the full spectrum.
    counts = basis.multiplicity(n, n)
    assert np.isclose(np.sum(counts * abs(k) ** 2), n * np.sum(u**2))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("basis", [FULL, HALF])
def test_derivative(basis, order):
    """The derivative of a trigonometric polynomial on an axis of length one is exact."""
    n = 16
    x = basis.points(n)
    u = np.sin(2 * np.pi * x) + 0.3 * np.cos(2 * np.pi * 3 * x)
    phase = order * np.pi / 2  # A derivative shifts each term by a quarter wavelength.
    expected = (2 * np.pi) ** order * np.sin(2 * np.pi * x + phase)
    expected += 0.3 * (6 * np.pi) ** order * np.cos(2 * np.pi * 3 * x + phase)
    rule = basis.derivative(n, order)
    assert (rule.basis, rule.points, rule.runs) == (basis, n, (Run(0, 0, basis.stored(n)),))
    k = rule.factor * basis.wavenumbers(n) ** order * analysed(basis, u)
    assert_close(synthesised(basis, k, n).real, expected)


@pytest.mark.parametrize("basis", [FULL, HALF])
@pytest.mark.parametrize(("n", "kept"), [(n, kept) for n in (1, 2, 3, 6, 7, 8) for kept in range(1, n)])
def test_truncation(basis, n, kept):
    """Truncation gives the trigonometric polynomial of lower order at fewer points, as SciPy's resampling does."""
    u = random_field((n,), seed=n)

    def cut(nyquist):
        matrix = run_matrix(basis.truncation(n, kept, nyquist=nyquist), basis.stored(n), basis.stored(kept))
        return matrix @ analysed(basis, u)

    assert_close(synthesised(basis, cut(True), kept).real * kept / n, scipy.signal.resample(u, kept))
    modes = basis.wavenumbers(kept, nyquist=False)
    ambiguous = (np.arange(len(modes)) == kept // 2) if kept % 2 == 0 else np.zeros(len(modes), bool)
    assert_close(cut(False), np.where(ambiguous, 0, cut(True)))
    runs = basis.truncation(n, kept, nyquist=True)
    assert [run.target for run in runs] == sorted(run.target for run in runs)
    # Parseval's theorem also holds for the truncated polynomial.
    short, counts = cut(False), basis.multiplicity(n, kept)
    values = synthesised(basis, short, kept)
    assert np.isclose(np.sum(counts * abs(short) ** 2), kept * np.sum(abs(values) ** 2))


def test_runs():
    assert FULL.truncation(8, 4, nyquist=False) == (Run(0, 0, 2), Run(7, 3, 1))
    assert FULL.truncation(8, 4, nyquist=True) == (Run(0, 0, 2), Run(2, 2, 1), Run(6, 2, 1), Run(7, 3, 1))
    assert HALF.truncation(8, 4, nyquist=True) == (Run(0, 0, 2), Run(2, 2, 1, 2.0, real=True))
    assert HALF.truncation(8, 5, nyquist=True) == (Run(0, 0, 3),)


KINDS = ["c2c", "r2c", "c2r"]
TRANSFORMS = [
    DFT(kind, sign, weighted, normalised)
    for kind in KINDS
    for sign in (-1, 1)
    for weighted in (False, True)
    for normalised in (False, True)
    if not (kind == "c2c" and weighted)
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: f"{t.kind}{t.sign:+d}{t.weighted:d}{t.normalised:d}")
@pytest.mark.parametrize("n", [4, 5])
def test_transforms(transform, n):
    """Transforms along the first and last axis equal NumPy's. tests/plan/test_stages.py tests several devices."""
    axes, points = (-3, -1), (3, n)
    half = (3, 2, n // 2 + 1)
    x = random_field(half if transform.kind == "c2r" else (3, 2, n), np.float64 if transform.kind == "r2c" else complex)
    weights = np.where((np.arange(n // 2 + 1) * 2) % n == 0, 1, 2)
    conj = np.conj if transform.sign == (-1 if transform.kind == "c2r" else 1) else np.asarray
    size = 1 if transform.normalised else 3 * n  # NumPy normalises inverse transforms.
    match transform.kind:
        case "c2c":
            expected = np.conj(np.fft.fftn(np.conj(x), axes=axes)) if transform.sign == 1 else np.fft.fftn(x, axes=axes)
            expected = expected * size / (3 * n)
        case "r2c":
            expected = conj(np.fft.rfftn(x, axes=axes)) * (weights if transform.weighted else 1) * size / (3 * n)
        case "c2r":
            spectrum = conj(x) / (weights if transform.weighted else 1)
            expected = np.fft.irfftn(spectrum, points, axes=axes) * size
    assert_close(transform.apply(jnp.asarray(x), axes, points), expected)
    assert transform.to_points == (transform.kind == "c2r")
    assert transform.multiplies == transform.weighted
    assert transform.transpose().transpose() == transform
    assert transform.conjugate().conjugate() == transform
    # The inverse is tested on the spectrum of a real field.
    spectral = transform.inverse().apply(transform.apply(jnp.asarray(x), axes, points), axes, points)
    again = transform.apply(spectral * transform.inverse_scale(points), axes, points)
    assert_close(again, expected)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_transforms_that_xla_computes(platform):
    """`computed` returns the transform that XLA runs, and the factor that undoes XLA's normalisation.

    The factor is needed because XLA's inverse transforms divide by the number of points. On GPUs, a transform of a
    single axis from a half spectrum to a real field is marked `clean`. Before this transform, the imaginary parts
    that vanish in the spectrum of a real field must be set to zero.
    """
    one, two = (8,), (4, 8)
    for points in (one, two):
        clean = platform == "gpu" and points == one
        size = float(np.prod(points))
        assert DFT("c2c", 1).computed(points, platform) == (DFT("c2c", 1, normalised=True), size)
        assert DFT("c2r", -1, True).computed(points, platform) == (DFT("c2r", -1, True, True, clean), size)
        for same in (DFT("c2c", -1), DFT("r2c", 1, True), DFT("c2r", 1, normalised=True)):
            assert same.computed(points, platform) == (same, 1.0)
    clean = DFT("c2r", 1, clean=True)
    assert not clean.transpose().clean
    assert not clean.inverse().clean


def test_bases_are_abstract():
    with pytest.raises(TypeError, match="abstract"):
        AbstractBasis()
