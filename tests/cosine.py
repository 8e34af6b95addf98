"""A basis of cosines, as another package would write it: DCT-II and DCT-III, as products with matrices."""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from decompops._basis.base import AbstractBasis, AbstractLineTransform, Run


@dataclass(frozen=True)
class DCT(AbstractLineTransform):
    """`X[k] = 2 sum_j x[j] cos(pi k (2j + 1) / 2n)`, as `scipy.fft.dct`; `to_points`, its transpose.

    `weighted` halves the first coefficient: the weighted transpose, divided by 2n, is the inverse.
    """

    to_points: bool = False
    weighted: bool = False

    def transpose(self):
        return replace(self, to_points=not self.to_points)

    def conjugate(self):
        return self

    def inverse(self):
        return DCT(not self.to_points, not self.weighted)

    def inverse_scale(self, points):
        return 1 / math.prod(2 * n for n in points)

    def input_dtype(self, dtype):
        return dtype if dtype.kind in "fc" else np.dtype(np.float64)

    def result_dtype(self, dtype):
        return dtype

    def matrix(self, n: int) -> np.ndarray:
        """By definition, in NumPy."""
        k, j = np.arange(n)[:, None], np.arange(n)
        matrix = 2 * np.cos(np.pi * k * (2 * j + 1) / (2 * n))
        if self.weighted:
            matrix[0] /= 2
        return matrix.T if self.to_points else matrix

    def apply(self, block, axes, points):
        for axis, n in zip(axes, points):
            matrix = jnp.asarray(self.matrix(n)).astype(block.dtype)
            block = jnp.moveaxis(jnp.tensordot(block, matrix, ((axis,), (1,))), -1, axis)
        return block


@dataclass(frozen=True)
class Cosine(AbstractBasis):
    """Cosines of half-integer cells: fields with zero slope at both ends."""

    kinds = (None, None)

    @property
    def forward(self):
        return DCT()

    def joined(self, last):
        return DCT() if isinstance(last, Cosine) else None

    def stored(self, n):
        return n

    def wavenumbers(self, n, *, nyquist=True):
        del nyquist
        return math.pi * np.arange(n)

    def multiplicity(self, n, kept):
        del n
        return np.ones(kept)

    def truncation(self, n, kept, *, nyquist):
        del n, nyquist
        return (Run(0, 0, kept),)

    def derivative(self, order):
        if order % 2:
            raise ValueError(f"`order` must be even for cosines; got {order}.")
        return complex((-1) ** (order // 2))
