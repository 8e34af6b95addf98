"""`KernelLines`: from the values of an even or odd kernel along one axis, or its symbol, to its spectrum there."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._basis.base import AbstractLineTransform


@dataclass(frozen=True)
class KernelLines(AbstractLineTransform):
    """The discrete Fourier transform of `2 n` values of a kernel that is even or odd along one axis.

    The transform of an odd kernel is imaginary: the result is its imaginary part. So the matrix is real.

    - `n`: the points of the grid along the axis.
    - `count`: the number of cells before the transform. With `period` 2, these are the `n + 1` values at the distances
        from 0 to n. With a longer `period`, these are the modes, from 0 to the Nyquist mode, of a function of this
        period in boxes; its values at the distances from 0 to n are transformed.
    - `whole`: return all `2 n` modes, and not only the first `n + 1`, which determine the others.
    """

    n: int
    period: int
    odd: bool
    whole: bool
    transposed: bool = False

    @property
    def count(self) -> int:
        return self.period * self.n // 2 + 1

    @property
    def results(self) -> int:
        """The number of cells after the transform."""
        return 2 * self.n if self.whole else self.n + 1

    @property
    def to_points(self) -> bool:
        return False

    def transpose(self) -> "KernelLines":
        return replace(self, transposed=not self.transposed)

    def conjugate(self) -> "KernelLines":
        return self

    def inverse(self) -> "KernelLines":
        raise ValueError("the spectrum of a kernel has no inverse.")

    def inverse_scale(self, points: tuple[int, ...]) -> float:
        raise ValueError("the spectrum of a kernel has no inverse.")

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        return dtype

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        return dtype

    def apply(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        return self._of_lines(block, *axes)

    def _of_lines(self, block: Array, axis: int) -> Array:
        if jnp.iscomplexobj(block):  # The matrix is real.
            return lax.complex(self._of_lines(block.real, axis), self._of_lines(block.imag, axis))
        if not self.transposed:
            return self._spectrum(block, axis)
        at = block.ndim + axis
        shape = (*block.shape[:at], self.count, *block.shape[at + 1 :])
        (result,) = jax.linear_transpose(lambda x: self._spectrum(x, axis), jnp.zeros_like(block, shape=shape))(block)
        return result

    def _spectrum(self, x: Array, axis: int) -> Array:
        n, sign = self.n, -1 if self.odd else 1
        if self.period > 2:
            none = jnp.zeros_like(x)
            modes = lax.complex(none, x) if self.odd else lax.complex(x, none)
            x = lax.slice_in_dim(jnp.fft.irfft(modes, self.period * n, axis), 0, n + 1, axis=axis)
        if self.odd:  # The values at the distances n and -n share one point of the doubled grid.
            none = jnp.zeros_like(lax.slice_in_dim(x, 0, 1, axis=axis))
            x = jnp.concatenate([none, lax.slice_in_dim(x, 1, n, axis=axis), none], axis=axis)
        modes = jnp.fft.rfft(mirrored(x, axis, sign), axis=axis)
        x = modes.imag if self.odd else modes.real
        return mirrored(x, axis, sign) if self.whole else x


def mirrored(x: Array, axis: int, sign: int) -> Array:
    """Return the `2 n` values of an even (`sign` 1) or odd (`sign` -1) function, from its values from 0 to n."""
    others = jnp.flip(lax.slice_in_dim(x, 1, x.shape[axis] - 1, axis=axis), axis)
    return jnp.concatenate([x, sign * others], axis=axis)
