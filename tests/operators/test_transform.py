"""Tests of `Transform` with a basis for each axis, against NumPy and SciPy, and of norms and errors."""

import decompops as dops
import numpy as np
import pytest
import scipy.fft
from decompops.testing import assert_transposed

from helpers import assert_close, make_mesh, random_field


SHAPE = (8, 16, 8)
FULL, HALF = dops.Fourier(), dops.Fourier(half=True)
COSINE = dops.Cosine(2)


def expected(u: np.ndarray, bases: tuple, norm: str = "backward") -> np.ndarray:
    """Return the transform, computed along one axis after the other, the last axis first."""
    for axis in (2, 1, 0):
        transform = {FULL: np.fft.fft, HALF: np.fft.rfft, COSINE: scipy.fft.dct}[bases[axis]]
        u = transform(u, axis=axis, norm=norm)
    return u


def test_fourier_bases_are_the_fft():
    options = {"shape": SHAPE, "norm": "ortho", "modes": (8, 5, 4), "axis_contiguous": True}
    fft = dops.FFT3D(make_mesh((2, 4)), real=True, **options)
    transform = dops.Transform(make_mesh((2, 4)), bases=[FULL, FULL, HALF], **options)
    ours, theirs = transform.plan(), fft.plan()
    assert (ours.source, ours.stages, ours.scale) == (theirs.source, theirs.stages, theirs.scale)


@pytest.mark.parametrize(
    ("sizes", "bases", "norm"),
    [
        ((2, 4), (FULL, FULL, COSINE), "backward"),
        ((8,), (HALF, COSINE, COSINE), "forward"),
        ((1, 8), (FULL, HALF, COSINE), "ortho"),  # One FFT transforms x and y, with the halved axis y last.
    ],
)
def test_transforms_inverses_and_transposes(sizes, bases, norm):
    transform = dops.Transform(make_mesh(sizes), shape=SHAPE, bases=bases, norm=norm)
    u = random_field(SHAPE)
    k = transform(u)
    true = tuple(map(slice, transform.plan().target.true_shape))
    assert_close(k[true], expected(u, bases, norm))
    assert_close(transform.inverse(k), u)
    if not transform.plan().target.padded_axes:
        assert_transposed(transform, transform.T, u, random_field(k.shape, np.complex128, seed=1))


def test_wavenumbers_and_multiplicity_of_any_basis():
    transform = dops.Transform(make_mesh((2, 4)), shape=SHAPE, bases=(FULL, HALF, COSINE), modes=(8, 10, 6))
    kx, ky, kz = transform.replace(box=dops.Box((2 * np.pi, np.pi, 0.5))).wavenumbers()
    padded = transform.plan().target.shape
    assert kx.shape == (8, 1, 1)
    assert_close(kx[:, 0, 0], np.fft.fftfreq(8, 1 / 8))
    assert_close(ky[0, :6, 0], 2 * np.arange(6))
    assert_close(kz[0, 0, :6], 2 * np.pi * np.arange(6))
    assert (ky.shape, kz.shape) == ((1, padded[1], 1), (1, 1, padded[2]))
    # Parseval's theorem. `multiplicity` says how many exponentials share each coefficient of the spectrum.
    transform = dops.Transform(make_mesh((2, 4)), shape=SHAPE, bases=(FULL, HALF, COSINE), norm="forward")
    u = random_field(SHAPE)
    energy = np.sum(transform.multiplicity() * np.abs(transform(u)) ** 2)
    assert energy == pytest.approx(np.mean(u**2), rel=1e-12)


def test_fewer_coefficients_are_the_lowest_ones():
    bases, kept = (FULL, FULL, COSINE), (8, 16, 4)
    transform = dops.Transform(make_mesh((2, 4)), shape=SHAPE, bases=bases, modes=kept)
    u = random_field(SHAPE)
    k = transform(u)
    assert_close(k, expected(u, bases)[..., :4])
    low = scipy.fft.idct(np.pad(scipy.fft.dct(u)[..., :4], ((0, 0), (0, 0), (0, 4))))
    assert_close(transform.inverse(k), low)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bases": "FFF"}, TypeError, "`bases` must be bases such as `Fourier.*; got 'FFF'"),
        ({"bases": 3}, TypeError, "`bases` must be bases such as `Fourier.*; got 3"),
        ({"norm": "unit"}, ValueError, "`norm` must be one of .*; got 'unit'"),
        ({"modes": 4}, ValueError, "`shape` must be given with `modes`"),
    ],
)
def test_bad_input(options, error, message, plain):
    with pytest.raises(error, match=message):
        plain.Transform(make_mesh((2, 4)), **({"bases": (plain.Fourier(),) * 3} | options))


@pytest.mark.parametrize(
    ("bases", "message"),
    [
        (FULL, "`bases` must be 3 bases, one for each axis of the grid; got Fourier"),
        ((FULL, FULL), "`bases` must be 3 bases, one for each axis of the grid; got "),
        ((COSINE, HALF, HALF), r"at most one basis with real fields and complex coefficients.*; got \(Cosine"),
    ],
)
def test_bases_that_do_not_go_together(bases, message):
    with pytest.raises(ValueError, match=message):
        dops.Transform(dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8)), bases=bases)


def test_a_field_that_is_not_real_and_a_spectrum_that_says_too_little():
    transform = dops.Transform(make_mesh((2, 1)), bases=(COSINE, HALF, COSINE))
    with pytest.raises(TypeError, match="`x` must be real for a real transform; got complex128"):
        transform(random_field((8, 14, 8), np.complex128))
    with pytest.raises(ValueError, match="a half spectrum does not tell the length of the field along y"):
        transform.inverse(random_field((8, 8, 8), np.complex128))
