"""Tests of `Convolution` against direct sums, SciPy and closed forms; of its derivatives, communication and memory."""

import contextlib
import math

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
import scipy.special
from decompops import spectral
from decompops.tools.hlo import collectives

from helpers import assert_adjoint, assert_close, assert_transposed, finite_difference, make_mesh, random_field


LENGTHS = (1.0, 1.5, 2.0)


def transform(sizes, shape, *, real=True, kind="auto", lengths=LENGTHS, **options):
    """Return a transform of a grid of one to three axes, in a box with these lengths."""
    mesh = make_mesh(sizes, kind)
    box = dops.Box(lengths[: len(shape)])
    return dops.FFT(mesh, shape=shape, real=real, pad=True, box=box, **options)


def direct(f, kernel, *, transposed=False):
    """Return the sum of `kernel[i - j] f[j]` over all j; if `transposed`, of `kernel[j - i] f[j]`."""
    result = np.zeros(f.shape, np.result_type(f, kernel))
    for index in np.ndindex(f.shape):
        row = kernel
        for axis, j in enumerate(index):
            i = np.arange(f.shape[axis])
            row = np.take(row, (j - i if transposed else i - j) % kernel.shape[axis], axis)
        result += row * f[index]
    return result


def doubled(shape, axes):
    return tuple(2 * n if axis in axes else n for axis, n in enumerate(shape))


def cell(fft):
    return math.prod(length / n for length, n in zip(fft.box_lengths, fft.decomposition.shape))


@pytest.mark.parametrize(
    ("sizes", "shape", "axes"),
    [
        ((1,), (5,), (0,)),
        ((1, 1), (4, 5), (1,)),
        ((8,), (6, 5), (0, 1)),
        ((1, 1), (4, 5, 3), (0, 1, 2)),
        ((2, 4), (6, 7, 5), (0, 1, 2)),
        ((2, 4), (5, 8, 6), (2,)),
        ((8,), (5, 4, 6), (0, 2)),
        ((2, 4), (5, 6, 4), (1, 2)),
        ((4, 2), (5, 6, 4), (0, 1)),
        ((8,), (5, 3, 6), (1,)),
        ((2, 4), (4, 8, 4), (0,)),
    ],
)
@pytest.mark.parametrize("real", [True, False])
def test_convolution_equals_direct_sums(sizes, shape, axes, real):
    dtype = np.float64 if real else np.complex128
    fft = transform(sizes, shape, real=real)
    kernel, f = random_field(doubled(shape, axes), dtype), random_field((2, *shape), dtype, seed=1)
    convolution, gather = spectral.Convolution(fft, kernel, axes), fft.decomposition.gather
    expected = [np.stack([direct(part, kernel, transposed=t) for part in f]) for t in (False, True)]
    assert_close(gather(convolution(f)) / cell(fft), expected[0], 1e-12)
    assert_close(gather(convolution.T(f)) / cell(fft), expected[1], 1e-12)


def test_convolution_equals_scipy():
    fft = transform((2, 4), (8, 9, 10), lengths=(8.0, 9.0, 10.0))
    f, g = random_field((8, 9, 10)), random_field((5, 3, 7), seed=1)
    kernel = np.zeros((16, 18, 20))
    kernel[:5, :3, :7] = g
    kernel = np.roll(kernel, (-2, -1, -3), (0, 1, 2))  # The middle of g belongs to the distance zero.
    convolution, gather = spectral.Convolution(fft, jnp.asarray(kernel)), fft.decomposition.gather
    assert_close(gather(convolution(f)), scipy.signal.fftconvolve(f, g, mode="same"), 1e-12)
    assert_close(gather(convolution.T(f)), scipy.signal.correlate(f, g, mode="same"), 1e-12)


def gaussian(fft, width, centre=0.51):
    """Return the distances from a centre, along each axis, and a Gaussian of unit integral."""
    shape, lengths = fft.decomposition.shape, fft.box_lengths
    x = np.meshgrid(*[np.arange(n) * (h / n) - centre * h for n, h in zip(shape, lengths)], indexing="ij")
    square = sum(part**2 for part in x)
    return x, np.exp(-square / (2 * width**2)) / (2 * math.pi * width**2) ** (len(shape) / 2)


def screened_gaussian(r, width, screening):
    """Return the convolution of the Gaussian with `exp(-λr) / 4πr`, for a real or imaginary λ."""
    a, s = screening * width, math.sqrt(2)
    erfc = scipy.special.erfc
    near = np.exp(-screening * r) * erfc((a - r / width) / s) - np.exp(screening * r) * erfc((a + r / width) / s)
    return np.exp(a * a / 2) / (8 * math.pi * r) * near


def error(fft, kernel, f, expected):
    got = fft.decomposition.gather(spectral.Convolution(fft, kernel)(f))
    return np.abs(got - expected).max() / np.abs(expected).max()


def test_potential_of_a_gaussian_is_exact():
    fft = transform((2, 4), (64, 64, 64), lengths=(1.0,) * 3)
    x, f = gaussian(fft, 1 / 22)
    r = np.sqrt(sum(part**2 for part in x))
    expected = -scipy.special.erf(r * 22 / math.sqrt(2)) / (4 * math.pi * r)
    assert error(fft, spectral.PoissonKernel(), f, expected) < 1e-13


@pytest.mark.parametrize(
    ("kernel", "expected", "real"),
    [
        (spectral.PoissonKernel, lambda r, s: -screened_gaussian(r, s, 0.0), True),
        (lambda method: spectral.YukawaKernel(3.0, method), lambda r, s: screened_gaussian(r, s, 3.0), True),
        (lambda method: spectral.HelmholtzKernel(9.0, method), lambda r, s: screened_gaussian(r, s, -9j), False),
    ],
)
def test_kernels_of_three_open_axes(kernel, expected, real):
    errors, shape = {}, (18, 24, 33)
    for method, factor in (("truncated", 1), ("sampled", 1), ("sampled", 2)):
        fft = transform((4, 2), tuple(factor * n for n in shape), real=real, lengths=(1.0, 1.3, 1.8))
        x, f = gaussian(fft, 0.082)
        r = np.sqrt(sum(part**2 for part in x))
        errors[method, factor] = error(fft, kernel(method), f if real else f + 0j, expected(r, 0.082))
    assert errors["truncated", 1] < 1e-6  # The Gaussian itself has this resolution.
    assert 3.3 < errors["sampled", 1] / errors["sampled", 2] < 4.7


def open_mode(r, width, q, axes):
    """Return the solution of `(q² - ∇²) u = Gaussian` on one or two axes, from the heat kernel or in closed form."""
    if q == 0 and axes == 1:
        z = r / (math.sqrt(2) * width)
        return -(r * scipy.special.erf(z) + width * math.sqrt(2 / math.pi) * np.exp(-(z**2))) / 2
    if q == 0:
        return -(np.log(r**2) + scipy.special.exp1(r**2 / (2 * width**2))) / (4 * math.pi)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    t = np.exp(12 * nodes - 9)  # The integral over t of exp(-q² t) times a Gaussian that spreads.
    spread = width**2 + 2 * t
    terms = np.exp(-(q**2) * t - r[..., None] ** 2 / (2 * spread)) / (2 * math.pi * spread) ** (axes / 2)
    start = np.exp(-21) * np.exp(-(r**2) / (2 * width**2)) / (2 * math.pi * width**2) ** (axes / 2)
    return terms @ (12 * weights * t) + start


@pytest.mark.parametrize(("axes", "mode"), [((0,), 0), ((2,), 2), ((0, 1), 0), ((1, 2), 1)])
def test_periodic_and_open_axes(axes, mode):
    """The field is a Gaussian along the open axes, and a wave along the others."""
    errors, shape = {}, [8, 8, 8]
    for axis in axes:
        shape[axis] = 40
    for method, factor in (("truncated", 1), ("sampled", 1), ("sampled", 2)):
        grid = tuple(factor * n if axis in axes else n for axis, n in enumerate(shape))
        fft = transform((2, 4), grid, lengths=(1.0, 1.2, 1.1))
        lengths, width = fft.box_lengths, 0.07
        x = np.meshgrid(*[np.arange(n) * (h / n) for n, h in zip(grid, lengths)], indexing="ij")
        r = np.sqrt(sum((x[axis] - 0.51 * lengths[axis]) ** 2 for axis in axes))
        periodic = [axis for axis in range(3) if axis not in axes]
        q = 2 * math.pi * mode / lengths[periodic[-1]]
        wave = np.cos(q * x[periodic[-1]])
        f = wave * np.exp(-(r**2) / (2 * width**2)) / (2 * math.pi * width**2) ** (len(axes) / 2)
        expected = -wave * open_mode(r, width, q, len(axes))
        got = fft.decomposition.gather(spectral.Convolution(fft, spectral.PoissonKernel(method), axes)(f))
        errors[method, factor] = np.abs(got - expected).max() / np.abs(expected).max()
    assert errors["truncated", 1] < 1e-9
    assert 3.3 < errors["sampled", 1] / errors["sampled", 2] < 4.7
