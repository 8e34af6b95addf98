"""Tests of Green's functions in open space against closed forms."""

import math

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from decompops import spectral

from helpers import assert_close, make_mesh, thinned


def transform(sizes, shape, *, real=True, lengths):
    """Return a transform by the kernels, which compile faster than XLA's transforms of several grids."""
    box = dops.Box(lengths)
    return dops.FFT3D(make_mesh(sizes), shape=shape, real=real, pad=True, box=box, backend="native")


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


def error(fft, kernel, f, expected, axes=None):
    got = fft.decomposition.gather(jax.jit(lambda f: spectral.Convolution(fft, kernel, axes)(f))(f))
    return np.abs(got - expected).max() / np.abs(expected).max()


def test_potential_of_a_gaussian_is_exact():
    fft = transform((2, 4), (64, 64, 64), lengths=(1.0, 1.0, 1.0))
    x, f = gaussian(fft, 1 / 22)
    r = np.sqrt(sum(part**2 for part in x))
    expected = -scipy.special.erf(r * 22 / math.sqrt(2)) / (4 * math.pi * r)
    assert error(fft, spectral.PoissonKernel(), f, expected) < 1e-13


@pytest.mark.parametrize(
    ("kernel", "expected", "real"),
    [
        pytest.param(spectral.PoissonKernel, lambda r, s: -screened_gaussian(r, s, 0.0), True, marks=pytest.mark.sweep),
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

    def value(r):
        terms = np.exp(-(q**2) * t - r[:, None] ** 2 / (2 * spread)) / (2 * math.pi * spread) ** (axes / 2)
        start = np.exp(-21) * np.exp(-(r**2) / (2 * width**2)) / (2 * math.pi * width**2) ** (axes / 2)
        return terms @ (12 * weights * t) + start

    return interpolated(value, r)


def interpolated(function, r):
    """Return `function(r)`, by a polynomial: integrals at all points of a grid would take seconds."""
    return np.polynomial.Chebyshev.interpolate(function, 80, (0, r.max()))(r)


@pytest.mark.parametrize(
    ("axes", "mode"), thinned([((0,), 0), ((2,), 2), ((0, 1), 0), ((1, 2), 1)], lambda axes, _: axes != (1, 2))
)
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
        errors[method, factor] = error(fft, spectral.PoissonKernel(method), f, expected, axes)
    assert errors["truncated", 1] < 1e-9
    assert 3.3 < errors["sampled", 1] / errors["sampled", 2] < 4.7


def outgoing_mode(r, width, kappa, axes):
    """Return the outgoing solution of `(-κ² - ∇²) u = Gaussian` on one or two axes, for a real or imaginary κ."""
    if axes == 1:
        sides = [
            np.exp(1j * kappa * x) * scipy.special.erfc(-(x / width + 1j * kappa * width) / math.sqrt(2))
            for x in (r, -r)
        ]
        return 1j / (4 * kappa) * np.exp(-(kappa**2) * width**2 / 2) * sum(sides)
    nodes, weights = np.polynomial.legendre.leggauss(100)
    inside, j0, hankel = (nodes + 1) / 2, lambda x: scipy.special.jv(0, kappa * x), scipy.special.hankel1

    def integral(function, s, step):
        gaussian = np.exp(-(s**2) / (2 * width**2)) / (2 * math.pi * width**2)
        return np.sum(weights * step / 2 * function(s) * s * gaussian, axis=1)

    def value(r):  # Graf's addition theorem.
        far = r[:, None]
        near = integral(j0, far * inside, far)
        rest = integral(lambda s: hankel(0, kappa * s), far + 9 * width * inside**2, 18 * width * inside)
        return 1j * math.pi / 2 * (hankel(0, kappa * r) * near + j0(r) * rest)

    return interpolated(value, r)


@pytest.mark.parametrize(
    ("axes", "mode", "wavenumber"),
    thinned(
        [((0,), 1, 9.0), ((2,), 2, 9.0), ((0, 1), 0, -9.0), ((1, 2), 2, 9.0)],
        lambda axes, mode, wavenumber: axes in {(2,), (0, 1)},
    ),
)
def test_outgoing_waves_with_periodic_axes(axes, mode, wavenumber):
    """Waves along the periodic axis are longer or shorter than `2π / κ`: they radiate or decay along the others."""
    errors, shape = {}, [4, 6, 6]
    for axis in axes:
        shape[axis] = 40 if len(axes) == 1 else 30
    for method, factor in (("truncated", 1), ("sampled", 1), ("sampled", 2)):
        grid = tuple(factor * n if axis in axes else n for axis, n in enumerate(shape))
        fft = transform((2, 2), grid, real=False, lengths=(1.0, 1.2, 1.1))
        lengths, width = fft.box_lengths, 0.07
        x = np.meshgrid(*[np.arange(n) * (h / n) for n, h in zip(grid, lengths)], indexing="ij")
        r = np.sqrt(sum((x[axis] - 0.51 * lengths[axis]) ** 2 for axis in axes))
        periodic = max(axis for axis in range(3) if axis not in axes)
        q = 2 * math.pi * mode / lengths[periodic]
        wave = np.cos(q * x[periodic])
        f = wave * np.exp(-(r**2) / (2 * width**2)) / (2 * math.pi * width**2) ** (len(axes) / 2)
        expected = wave * outgoing_mode(r, width, np.sqrt(wavenumber**2 - q**2 + 0j), len(axes))
        expected = np.conj(expected) if wavenumber < 0 else expected
        errors[method, factor] = error(fft, spectral.HelmholtzKernel(wavenumber, method), f + 0j, expected, axes)
    assert errors["truncated", 1] < 1e-6  # The Gaussian itself has this resolution.
    assert 3.3 < errors["sampled", 1] / errors["sampled", 2] < 4.7


def test_traced_boxes():
    mesh, shape = make_mesh((2,)), (5, 4, 6)
    f = np.random.default_rng(0).standard_normal(shape)

    def energy(length):
        fft = dops.FFT3D(mesh, shape=shape, real=True, pad=True, box=dops.Box((length, 1.2, 1.1 * length)))
        return jnp.sum(jnp.square(spectral.Convolution(fft, spectral.PoissonKernel())(f)))

    compiled = jax.jit(jax.value_and_grad(energy))
    value, slope = compiled(1.0)
    assert abs(float(value / energy(1.0)) - 1) < 1e-13
    expected = (compiled(1.0 + 1e-4)[0] - compiled(1.0 - 1e-4)[0]) / 2e-4
    assert abs(float(slope / expected) - 1) < 1e-6
    assert np.isnan(float(compiled(0.1)[0]))  # The diagonal is more than 3 times the shortest side.


@pytest.mark.parametrize("method", ["truncated", "sampled"])
def test_biot_savart(method):
    """The velocity is `∇×(0, 0, g) + ∇×(g, 0, 0)` with a Gaussian g; its vorticity follows by hand."""
    fft, s = transform((2, 4), (24, 30, 36), lengths=(1.0, 1.25, 1.5)), 0.075
    (x, y, z), _ = gaussian(fft, s)
    g = np.exp(-(x**2 + y**2 + z**2) / (2 * s**2))
    velocity = np.stack([-y * g, (x - z) * g, y * g]) / s**2
    # w = ∇(∇·A) - ∇²A with A = (g, 0, g)
    hessian = [[(a * b / s**2 - (a is b)) * g / s**2 for b in (x, y, z)] for a in (x, y, z)]
    laplacian = sum(hessian[i][i] for i in range(3))
    vorticity = np.stack([hessian[i][0] + hessian[i][2] for i in range(3)])
    vorticity -= np.stack([laplacian, 0 * g, laplacian])
    got = fft.decomposition.gather(spectral.Convolution(fft, spectral.BiotSavartKernel(method))(vorticity))
    error = np.abs(got - velocity).max() / np.abs(velocity).max()
    assert error < (1e-6 if method == "truncated" else 0.1)


@pytest.mark.parametrize("kernel", [spectral.PoissonKernel, spectral.BiotSavartKernel])
def test_no_unit_of_length_adds_errors_with_two_open_axes(kernel):
    """Another unit of length adds a constant to log(r), and nothing else, also for fields that the grid resolves badly.

    The constant is the logarithm of the unit times the charge of a length of the periodic axis, over 2π.
    """
    shape = (3, 6, 4, 5)[kernel is spectral.PoissonKernel :]
    f = np.random.default_rng(2).normal(size=shape)

    @jax.jit
    def run(unit):
        fft = transform((2, 2), shape[-3:], lengths=(unit, 1.2 * unit, 0.8 * unit))
        return spectral.Convolution(fft, kernel(), ("x", "z"))(f)

    expected = np.asarray(run(1.0))
    for unit in (1e-12, 1e15, 1e60):
        got = np.asarray(run(unit)) / unit / (unit if kernel is spectral.PoissonKernel else 1)
        if kernel is spectral.PoissonKernel:
            got = got - math.log(unit) / (2 * math.pi) * f.mean() * 0.8
        assert_close(got, expected, 1e-12)


@pytest.mark.parametrize("axes", [("x",), ("x", "z"), None])
@pytest.mark.parametrize("kernel", [spectral.YukawaKernel, spectral.HelmholtzKernel])
def test_a_weak_screening_and_long_waves_lead_to_the_potential_of_poisson(kernel, axes):
    """The kernels are infinite in this limit, like `1 / 2λ` on one axis, but only by a constant."""
    fft = transform((2, 2), (6, 4, 5), real=kernel is spectral.YukawaKernel, lengths=(1.0, 1.2, 0.8))
    f = np.random.default_rng(3).normal(size=(6, 4, 5))
    f -= f.mean()
    expected = -fft.decomposition.gather(spectral.Convolution(fft, spectral.PoissonKernel(), axes)(f)).real
    assert error(fft, kernel(1e-7), f if fft.real else f + 0j, expected, axes) < 1e-5


@pytest.mark.parametrize("axes", [("x",), ("x", "y"), None])
@pytest.mark.parametrize(
    "kernel", [spectral.PoissonKernel(), spectral.YukawaKernel(2.0), spectral.HelmholtzKernel(2.5)], ids=repr
)
def test_kernels_without_64_bit_mode(kernel, axes):
    """In JAX's default mode, integers beyond 32 bits raise an error. The numbers are those of 64-bit mode, rounded."""
    fft = transform((2, 2), (6, 5, 4), real=False, lengths=(1.0, 1.2, 0.8))
    f = np.random.default_rng(5).normal(size=(6, 5, 4)).astype(np.complex64)
    run = lambda f: jax.jit(lambda f: spectral.Convolution(fft, kernel, axes)(f))(f)
    expected = np.asarray(run(f.astype(np.complex128)))
    with jax.enable_x64(False):
        got = run(f)
    assert got.dtype == np.complex64
    assert_close(got, expected, 1e-5)


def test_bad_kernels(plain):
    fft = transform((1, 1), (4, 4, 4), lengths=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="`method` must be one of"):
        plain.spectral.PoissonKernel("exact")
    with pytest.raises(ValueError, match="`screening` must be a positive"):
        plain.spectral.YukawaKernel(0.0)
    with pytest.raises(TypeError, match="`fft` must be complex for a complex kernel"):
        spectral.Convolution(fft, spectral.HelmholtzKernel(2.0))
    with pytest.raises(ValueError, match="must differ from the wavenumbers of the periodic axes"):
        spectral.Convolution(fft.replace(real=False), spectral.HelmholtzKernel(2 * math.pi), ("x",))
    flat = dops.FFT2D(make_mesh((1,)), shape=(4, 4), real=True)
    with pytest.raises(ValueError, match=r"`wavenumber` must not be zero on 2 open axes; got 0"):
        spectral.Convolution(flat.replace(real=False), spectral.HelmholtzKernel(0.0))
    with pytest.raises(ValueError, match="grid of three axes"):
        spectral.Convolution(flat, spectral.BiotSavartKernel())
