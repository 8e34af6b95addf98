"""Tests of points exactly on the bounds of shells, against counts in integers. Each belongs to the upper shell."""

import itertools

import decompops as dops
import numpy as np
import pytest
from decompops import spectral

from helpers import make_mesh, random_field, thinned


SHAPE = (12, 12, 12)
# Rounding moves some points off the bounds. Which points these are depends on the length of the box.
CASES = thinned(
    [(length, dtype) for length in (0.7, 1.0, 3.0, 7.3, 1000.0, 2 * np.pi) for dtype in (np.float32, np.float64)],
    lambda length, dtype: (length, dtype) in {(0.7, np.float32), (1000.0, np.float64)},
)


def counts(squares: np.ndarray, bounds) -> np.ndarray:
    """Return how many of the integers `squares` are in the shells between the squares of integers."""
    return np.array([np.sum((low**2 <= squares) & (squares < high**2)) for low, high in itertools.pairwise(bounds)])


def squares(factors, shape=SHAPE) -> np.ndarray:
    """Return the sums of the squares of integers, times `factors`."""
    integers = np.meshgrid(*[np.rint(np.fft.fftfreq(n, 1 / n)).astype(int) for n in shape], indexing="ij")
    return sum((factor * one) ** 2 for factor, one in zip(factors, integers))


@pytest.mark.parametrize(("length", "dtype"), CASES)
def test_modes_on_bounds(length, dtype):
    """In a box with the sides 1, 3/2 and 2, modes are multiples of 6, 4 and 3 sixths of the smallest wavenumber."""
    box = dops.Box((length, 1.5 * length, 2 * length))
    fft = dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, pad=True, real=True, box=box)
    u = random_field(SHAPE, dtype)
    bounds = np.arange(2, 28, 2)
    expected = counts(squares((6, 4, 3)), bounds)
    edges = 2 * np.pi / length * bounds / 6
    assert spectral.power_spectrum(fft, u, edges=edges).modes.tolist() == expected.tolist()
    assert spectral.power_multipoles(fft, u, edges=edges).modes.tolist() == expected.tolist()
    # The mean wavenumber tells which modes the shells of other statistics have.
    k = spectral.power_spectrum(fft, u, edges=edges).k
    for statistic in (spectral.energy_spectrum, spectral.energy_transfer):
        np.testing.assert_allclose(statistic(fft, np.stack([u] * 3), edges=edges).k, k, rtol=1e-6)
    bases = (dops.Points(), dops.Fourier(), dops.Fourier(half=True))
    planes = dops.Transform(fft.decomposition, bases=bases, box=box)
    in_planes = counts(squares((0, 4, 3), (1, *SHAPE[1:])), bounds)
    assert spectral.plane_spectra(planes, u, edges=edges).modes.tolist() == in_planes.tolist()


@pytest.mark.parametrize(("length", "dtype"), CASES)
def test_triangles_of_modes_on_bounds(length, dtype):
    shape, bounds = (10, 14), (4, 8, 10, 16, 20)
    fft = dops.FFT2D(make_mesh((2,)), shape=shape, real=True, box=dops.Box((length, 1.5 * length)))
    found = spectral.bispectrum(fft, random_field(shape, dtype), 2 * np.pi / length * np.array(bounds) / 6)
    modes = [(i, j) for i in range(-4, 5) for j in range(-6, 7)]
    bands = [(low**2, high**2) for low, high in itertools.pairwise(bounds)]
    shells = [[(i, j) for i, j in modes if low <= (6 * i) ** 2 + (4 * j) ** 2 < high] for low, high in bands]
    closing = lambda a, b, c: sum((-p[0] - q[0], -p[1] - q[1]) in shells[c] for p in shells[a] for q in shells[b])
    assert found.number.tolist() == [closing(*triangle) for triangle in found.triangles.tolist()]


@pytest.mark.parametrize(("length", "dtype"), CASES)
def test_separations_on_bounds(length, dtype):
    """Separations are multiples of 2, 3 and 4 quarters of the default width of a bin; bounds are at odd halves."""
    shape = (24, 16, 12)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, real=True, box=dops.Box(length))
    found = spectral.correlation_function(fft, random_field(shape, dtype))
    assert found.separations.tolist() == counts(squares((2, 3, 4), shape), np.arange(1, 27, 2)).tolist()
