"""A basis: the functions of Hartley's transform, for real periodic fields."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from decompops.extend import AbstractBasis, AbstractLineTransform, DerivativeRule, Fourier, Run


@dataclass(frozen=True)
class Hartley(AbstractBasis):
    """The functions `cos(2π k s) + sin(2π k s)` for points `s = j / n` of a periodic axis.

    Coefficients lie in the order of a complex FFT: k = 0, 1, ..., -2, -1.
    """

    @property
    def kinds(self):
        return "real", "real"

    @property
    def is_transformed(self):
        return True

    @property
    def is_diagonal(self):
        return True  # The derivative of mode k is a multiple of mode -k.

    @property
    def forward(self):
        return DHT()

    def joined(self, last):
        return None

    def orthogonalized(self):
        return self  # The matrix, times the root of 1 / n, is orthogonal.

    def stored(self, n):
        return n

    def points(self, n):
        return np.arange(n) / n

    def weights(self, n):
        return np.full(n, 1 / n)

    def wavenumbers(self, n, *, nyquist=True):
        return Fourier().wavenumbers(n, nyquist=nyquist)

    def multiplicity(self, n, kept):
        return np.ones(kept)

    def truncation(self, n, kept, *, nyquist):
        return Fourier().truncation(n, kept, nyquist=nyquist)

    def points_below(self, n, fraction):
        return Fourier().points_below(n, fraction)

    def derivative(self, n, order):
        # The slope of cos φ + sin φ is cos(-φ) + sin(-φ): the coefficients of k and -k change
        # places.
        runs = tuple(Run(k, -k % n, 1) for k in range(n)) if order % 2 else (Run(0, 0, n),)
        return DerivativeRule(self, n, (1.0, 1.0, -1.0, -1.0)[order % 4], runs)


@dataclass(frozen=True)
class DHT(AbstractLineTransform):
    """Hartley's transform: the real, symmetric matrix `cos(2π j k / n) + sin(2π j k / n)`."""

    @property
    def to_points(self):
        return False  # There are as many coefficients as points.

    def transpose(self):
        return self

    def conjugate(self):
        return self

    def inverse(self):
        return self

    def inverse_scale(self, points):
        return 1 / points[0]

    def input_dtype(self, dtype):
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise TypeError(f"`x` must be real for Hartley's transform; got {dtype}.")
        return (
            jnp.finfo(dtype).dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.zeros(()).dtype
        )

    def result_dtype(self, dtype):
        return dtype

    def apply(self, block, axes, points):
        spectrum = jnp.fft.fft(block, axis=axes[0])
        return spectrum.real - spectrum.imag
