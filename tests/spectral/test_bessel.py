"""Tests of Bessel functions against SciPy, at all sizes of arguments."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from decompops import spectral
from decompops.spectral import _bessel

from helpers import make_mesh


DERIVATIVES = {
    "j0": lambda x: -scipy.special.j1(x),
    "j1": lambda x: scipy.special.j0(x) - scipy.special.j1(x) / x,
    "y0": lambda x: -scipy.special.y1(x),
    "y1": lambda x: scipy.special.y0(x) - scipy.special.y1(x) / x,
    "k0": lambda x: -scipy.special.k1(x),
    "k1": lambda x: -scipy.special.k0(x) - scipy.special.k1(x) / x,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_values_and_derivatives(name, dtype):
    """The arguments include those at which one formula replaces another one."""
    x = np.array([1e-15, 1e-12, 1e-9, 1e-5, 0.01, 0.5, 0.99, 1, 1.01, 2, 4.9, 5, 5.1, 8, 20, 49.9, 50, 50.1, 70], dtype)
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(getattr(_bessel, name))))(x)
    double = x.astype(float)
    # Oscillating functions have zeros, so these errors count relative to their amplitude.
    scale = np.sqrt(2 / (np.pi * double)) if name[0] in "jy" else 0
    rounding = 200 * np.finfo(dtype).eps * np.maximum(1, double / 10)
    for got, expected in (
        (value, getattr(scipy.special, name)(double)),
        (slope, DERIVATIVES[name](double)),
    ):
        assert got.dtype == dtype
        relative = np.abs(np.asarray(got, float) - expected) / np.maximum(np.abs(expected), scale * (double > 1))
        assert (relative <= rounding).all(), np.stack([x, relative / rounding])


@pytest.mark.parametrize("screening", [1e-4, 1e-11, 1e-14])
@pytest.mark.parametrize("method", ["truncated", "sampled"])
def test_weak_screening_on_two_open_axes(method, screening):
    """For small `λ r`, the Green's function is `-(log(λ r / 2) + γ) / 2π`: a constant more than that of Poisson."""
    fft = dops.FFT2D(make_mesh((4,)), axes="x", shape=(12, 16), real=True, box=dops.Box((1.5, 2.0)))
    x, y = np.meshgrid(0.125 * (np.arange(12) - 6), 0.125 * (np.arange(16) - 8), indexing="ij")
    f = np.exp(-((x / 0.25) ** 2) - (y / 0.25) ** 2)
    screened, plain = (
        fft.decomposition.gather(jax.jit(lambda f, kernel=kernel: spectral.Convolution(fft, kernel)(f))(jnp.asarray(f)))
        for kernel in (spectral.YukawaKernel(screening, method), spectral.PoissonKernel(method))
    )
    constant = -f.sum() * (0.125**2) * (np.log(screening / 2) + np.euler_gamma) / (2 * np.pi)
    assert np.abs(screened - (constant - plain)).max() < 1e-6 * np.abs(constant)
