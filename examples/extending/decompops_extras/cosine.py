"""A basis: cosines, for fields between two walls at which the normal derivative is zero."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from decompops.extend import AbstractBasis, AbstractLineTransform, Run


@dataclass(frozen=True)
class Cosine(AbstractBasis):
    """Cosines `cos(π k s)` with k = 0, 1, ..., for points `s = (j + 1/2) / n` of an axis of length one."""

    @property
    def kinds(self):
        return None, None  # Coefficients are real or complex, as the field is.

    @property
    def forward(self):
        return DCT()

    def joined(self, last):
        return None

    def stored(self, n):
        return n

    def wavenumbers(self, n, *, nyquist=True):
        return np.pi * np.arange(n)

    def multiplicity(self, n, kept):
        return np.where(np.arange(kept) == 0, 1.0, 2.0)  # Each cosine is two exponentials, with k and with -k.

    def truncation(self, n, kept, *, nyquist):
        return (Run(0, 0, kept),)

    def derivative(self, order):
        if order % 2:
            raise ValueError(f"`order` must be even, because odd derivatives of cosines are sines; got {order}.")
        return (-1) ** (order // 2)


@dataclass(frozen=True)
class DCT(AbstractLineTransform):
    """`diag(mean, 1, 1, ...) @ C` with `C[k, j] = 2 cos(π k (2j + 1) / 2n)`, or with `backward` its transpose.

    `C` is the DCT-II of SciPy. As a matrix product it takes n² operations a line; an FFT of 2n points would take fewer.
    """

    backward: bool = False
    mean: float = 1.0

    @property
    def to_points(self):
        return self.backward

    def transpose(self):
        return replace(self, backward=not self.backward)

    def conjugate(self):
        return self

    def inverse(self):
        return DCT(not self.backward, 1 / (2 * self.mean))  # C.T @ diag(1/2, 1, 1, ...) @ C = 2n

    def inverse_scale(self, points):
        return 1 / (2 * points[0])

    def input_dtype(self, dtype):
        return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.zeros(()).dtype

    def result_dtype(self, dtype):
        return dtype

    def apply(self, block, axes, points):
        k, j = np.arange(points[0]), np.arange(points[0])
        matrix = 2 * np.cos(np.pi * np.outer(k, 2 * j + 1) / (2 * points[0]))
        matrix[0] *= self.mean
        matrix = jnp.asarray(matrix.T if self.backward else matrix, block.dtype)
        lines = jnp.moveaxis(block, axes[0], -1)
        return jnp.moveaxis(jnp.matmul(lines, matrix.T, precision=jax.lax.Precision.HIGHEST), -1, axes[0])
