"""Boxes in units of length that make squares of wavenumbers too small or too large for single precision."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral

from helpers import assert_close, make_mesh


def transform(length):
    return dops.FFT2D(make_mesh((2,)), shape=(8, 8), real=True, box=dops.Box(length))


def wave(dtype):
    x = np.arange(8) * np.pi / 4
    return (np.sin(x)[:, None] * np.cos(x)).astype(dtype)


def rate(equation, fields):
    return equation(0.0, equation.state(fields))


USES = {
    "Poisson": lambda fft, f: spectral.Poisson(fft)(f),
    "InverseCurl": lambda fft, f: spectral.InverseCurl(fft)(f),
    "LerayProjection": lambda fft, f: spectral.LerayProjection(fft)(jnp.stack([f, f])),
    "GaussianFilter": lambda fft, f: spectral.GaussianFilter(fft, 0.1 * fft.box_lengths[0])(f),
    "power_spectrum": lambda fft, f: spectral.power_spectrum(fft, f),
    "energy_spectrum": lambda fft, f: spectral.energy_spectrum(fft, jnp.stack([f, f])),
    "correlation_function": lambda fft, f: spectral.correlation_function(fft, f),
    "turbulence_scales": lambda fft, f: spectral.turbulence_scales(fft, jnp.stack([f, f]), 0.1),
    "Convolution": lambda fft, f: spectral.Convolution(fft, spectral.PoissonKernel())(f),
    "NavierStokes": lambda fft, f: rate(pde.NavierStokes(fft, 0.1), jnp.stack([f, f])),
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("length", [3e21, 1e20, 1e-19])
def test_they_are_refused(name, length):
    with (
        jax.enable_x64(False),
        pytest.raises(
            ValueError, match=r"^`box` must have lengths between .* and .* in float32; got .* Choose another"
        ),
    ):
        USES[name](transform(length), jnp.asarray(wave(np.float32)))


@pytest.mark.parametrize(
    ("length", "dtype"),
    [(3e21, np.float64), (1e99, np.float64), (1e-19, np.float64), (1e18, np.float32)],
)
def test_what_fits_is_right(length, dtype):
    fft, f, k = transform(length), wave(dtype), 2 * np.pi / length
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    assert_close(spectral.InverseCurl(fft)(f) * k, spectral.InverseCurl(transform(2 * np.pi))(f), tolerance)
    assert_close(spectral.Poisson(fft)(f) * k * k, -f / 2, tolerance)
    sums = np.sum(spectral.energy_spectrum(fft, np.stack([f, f])).energy * k)
    assert_close(sums, np.mean(f**2), tolerance)
    scales = spectral.turbulence_scales(fft, np.stack([f, f]), 0.1 * length)  # Both modes have |k| = √2 k.
    assert_close(scales.energy, np.mean(f**2), tolerance)
    assert_close(scales.dissipation * length, 0.4 * (2 * np.pi) ** 2 * np.mean(f**2), tolerance)


@pytest.mark.parametrize("length", [1e-17, 1e18])
def test_statistics_without_powers_of_the_volume(length):
    """In single precision, the volume of this box is zero or infinite, and so is the cube of the viscosity."""
    u = np.random.default_rng(2).normal(size=(3, 8, 8, 8)).astype(np.float32)

    def statistics(length):
        fft = dops.FFT3D(make_mesh((2,)), shape=(8, 8, 8), real=True, box=dops.Box(length))
        return spectral.energy_spectrum(fft, u), spectral.turbulence_scales(fft, u, 0.1 * length)

    (spectrum, scales), (expected, known) = statistics(length), statistics(1.0)
    assert_close(spectrum.energy / length, np.asarray(expected.energy), 1e-5)
    assert_close(scales.kolmogorov_scale / length, np.asarray(known.kolmogorov_scale), 1e-5)
    assert_close(scales.taylor_scale / length, np.asarray(known.taylor_scale), 1e-5)


def between_walls(basis):
    """Return a function that solves Poisson's equation between walls across x."""

    def apply(fft, f):
        bases = (basis, dops.Fourier(), dops.Fourier(half=True))
        transform = dops.Transform(make_mesh((2,)), shape=f.shape, bases=bases, box=fft.decomposition.box, pad=True)
        return spectral.Poisson(transform, ("dirichlet", "neumann"))(f)

    return apply


# Their results have the unit of the field times this power of the length.
POWERS = {
    "Poisson": (2, lambda fft, f: spectral.Poisson(fft)(f)),
    "Helmholtz": (2, lambda fft, f: spectral.Helmholtz(fft, (7 / float(fft.box_lengths[0])) ** 2)(f)),
    "Cells": (2, between_walls(dops.Cells.clustered(16, 1.0))),
    "Chebyshev": (2, between_walls(dops.Chebyshev())),
    "InverseDivergence": (1, lambda fft, f: spectral.InverseDivergence(fft)(f)),
    "InverseCurl": (1, lambda fft, f: spectral.InverseCurl(fft)(jnp.stack([f, 2 * f, -f]))),
    "Laplacian": (-2, lambda fft, f: spectral.Laplacian(fft)(f)),
}


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("norm", ["backward", "ortho"])
def test_modes_fit_where_the_result_does(name, norm):
    """The largest mode, of a smooth field, is as many times larger than the field as the grid has points."""
    power, apply = POWERS[name]
    x = np.arange(16) * np.pi / 8
    f = np.cos(x)[:, None, None] + np.cos(x)[:, None] + np.zeros(16)  # These are the modes with the smallest k².
    length = 8e18 if power > 0 else 2.5e-17

    def result(length):
        fft = dops.FFT3D(make_mesh((2,)), shape=f.shape, real=True, norm=norm, box=dops.Box(length))
        return np.asarray(apply(fft, jnp.asarray(f, np.float32)), float)

    with jax.enable_x64(False):
        assert_close(result(length) / length**power, result(1.0), 1e-5)


@pytest.mark.parametrize("basis", [dops.Cells.clustered(16, 1.0), dops.Chebyshev()])
@pytest.mark.parametrize("length", [1e20, 1e-19])
def test_walls_too_far_apart_or_too_close_are_refused(basis, length):
    """The length across the walls alone is wrong. No wavenumber depends on it."""
    bases = (basis, dops.Fourier(half=True))
    transform = dops.Transform(make_mesh((1,)), shape=(16, 4), axes="x", bases=bases, box=dops.Box((length, 1.0)))
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match=r"^`box` must have lengths between .* and .* in float32; got .*Choose"),
    ):
        spectral.Poisson(transform, "dirichlet")(np.ones((16, 4), np.float32))


def kernel_of_distance(length):
    return lambda x, y, z: 1 / jnp.sqrt(x * x + y * y + z * z + (0.1 * length) ** 2)


def ground(fft):
    return pde.GrossPitaevskii(fft.replace(real=False), 1.0)


def convolution(kernel, *, real=True, scale=2):
    """Return a function of a transform, a field and the length of the box, whose results have no unit."""

    def apply(fft, u, length):
        fft = fft if real else fft.replace(real=False)
        field = jnp.stack([u, 2 * u, -u]) if kernel is spectral.BiotSavartKernel else u
        made = kernel(length) if callable(kernel) and not isinstance(kernel, type) else kernel("sampled")
        return spectral.Convolution(fft, made)(field if real else field.astype(complex)) / length**scale

    return apply


# Each of them multiplies by a volume. Its result is about one for the field u and a box of any length.
VOLUMES = {
    "Poisson": convolution(spectral.PoissonKernel),
    "Yukawa": convolution(lambda length: spectral.YukawaKernel(3 / length, "sampled")),
    "Helmholtz": convolution(lambda length: spectral.HelmholtzKernel(3 / length, "sampled"), real=False),
    "BiotSavart": convolution(spectral.BiotSavartKernel, scale=1),
    "KernelValues": convolution(kernel_of_distance),
    "power": lambda fft, u, length: spectral.power_spectrum(fft, u / length).power / length,
    "multipoles": lambda fft, u, length: spectral.power_multipoles(fft, u / length).power / length,
    "random": lambda fft, u, length: (
        length * spectral.GaussianRandomField(fft, lambda k: length / (1 + (k * length) ** 2))(jax.random.key(0))
    ),
    "particles": lambda fft, u, length: ground(fft).particles(ground(fft).state((u / length).astype(complex))) / length,
    "energies": lambda fft, u, length: (
        ground(fft).energies(ground(fft).state((u / np.sqrt(length)).astype(complex)))[1:] / length
    ),
}


@pytest.mark.parametrize("length", [1e-13, 1e13])
@pytest.mark.parametrize("name", VOLUMES)
def test_results_fit_where_the_volume_does_not(name, length):
    u = np.random.default_rng(3).normal(size=(4, 4, 4)).astype(np.float32)

    def result(length):
        fft = dops.FFT3D(make_mesh((2,)), shape=u.shape, real=True, box=dops.Box((length, 1.5 * length, length)))
        return np.asarray(VOLUMES[name](fft, u, length))

    with jax.enable_x64(False):
        assert_close(result(length), result(1.0), 1e-4)


@pytest.mark.parametrize("length", [1e-7, 1e7])
def test_bispectra_fit_where_the_square_of_the_volume_does_not(length):
    u = np.random.default_rng(3).normal(size=(6, 6, 6)).astype(np.float32)

    def result(length):
        fft = dops.FFT3D(make_mesh((2,)), shape=u.shape, real=True, box=dops.Box(length))
        edges = np.array([0.5, 1.5, 2.5]) * 2 * np.pi / length
        return np.asarray(spectral.bispectrum(fft, u / np.float32(length), edges).bispectrum, float) / length**3

    assert_close(result(length), result(1.0), 1e-4)
