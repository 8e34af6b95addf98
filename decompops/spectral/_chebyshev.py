"""Series of Chebyshev polynomials along the first axis of spectra: derivatives, integrals, and equations between walls.

An equation `(a - ∂²/∂x²) u = f` is solved in the form in which it is integrated twice: the coefficients of u are then
those of a tridiagonal system for the even polynomials and another one for the odd ones, of condition numbers that do
not grow with their number, and f is never differentiated (Greengard, SIAM J. Numer. Anal. 28, 1991).
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._box import Number
from ._tridiagonal import moved, times, tridiagonal_solve


class Solution(NamedTuple):
    """A particular solution `u` with all that may be added to it: `free`, times a number for each parity.

    Both are pairs; the coefficients of T_0 and T_1 are zero in `u` and one in `free`.
    """

    u: Array
    free: Array


@dataclass(frozen=True)
class Lines:
    """Lines of `modes` Chebyshev coefficients along the first axis of spectra of `ndim` axes, of length `length`.

    *Pairs* are coefficients with the even ones and the odd ones side by side, in an axis of two behind the first axis
    of the grid: a number of coefficients that is odd is padded by a zero.
    """

    modes: int
    ndim: int

    @property
    def _numbers(self) -> np.ndarray:
        """The number of each polynomial, in pairs."""
        return np.arange(2 * ((self.modes + 1) // 2)).reshape(-1, 2)

    def _along(self, values: np.ndarray, like: Array) -> Array:
        """Values for each coefficient, broadcastable against pairs, in their precision."""
        return jnp.asarray(values.reshape(-1, 2, *[1] * (self.ndim - 1)), jnp.finfo(like.dtype).dtype)

    @property
    def axis(self) -> int:
        """The axis of pairs along which they stand."""
        return -self.ndim - 1

    def pairs(self, u: Array) -> Array:
        """Coefficients in pairs."""
        if self.modes % 2:
            u = jnp.pad(u, [(0, int(axis == u.ndim - self.ndim)) for axis in range(u.ndim)])
        lead = u.shape[: u.ndim - self.ndim]
        return u.reshape(*lead, (self.modes + 1) // 2, 2, *u.shape[u.ndim - self.ndim + 1 :])

    def coefficients(self, pairs: Array) -> Array:
        """The coefficients of pairs."""
        lead = pairs.shape[: self.axis]
        u = pairs.reshape(*lead, -1, *pairs.shape[self.axis + 2 :])
        return lax.slice_in_dim(u, 0, self.modes, axis=u.ndim - self.ndim)

    def swapped(self, pairs: Array) -> Array:
        """The odd coefficients in the place of the even ones, and the other way round."""
        return jnp.flip(pairs, self.axis + 1)

    def derivative(self, pairs: Array) -> Array:
        """`du/dξ` on -1 < ξ < 1."""
        k = self._numbers
        sums = lax.cumsum(times(self._along(2.0 * k, pairs), pairs), axis=pairs.ndim + self.axis, reverse=True)
        even, odd = (lax.slice_in_dim(sums, i, i + 1, axis=self.axis + 1) for i in (0, 1))
        slopes = jnp.concatenate([odd, moved(even, -1, self.axis)], axis=self.axis + 1)
        return times(self._along(np.where(k == 0, 0.5, 1.0) * (k < self.modes), pairs), slopes)

    def integral(self, pairs: Array) -> Array:
        """An antiderivative with respect to ξ, without its coefficients of T_0 and T_1."""
        k = self._numbers
        even, odd = (lax.slice_in_dim(pairs, i, i + 1, axis=self.axis + 1) for i in (0, 1))
        below = jnp.concatenate([moved(odd, 1, self.axis), even], axis=self.axis + 1)
        above = jnp.concatenate([odd, moved(even, -1, self.axis)], axis=self.axis + 1)
        weight = np.where((k >= 2) & (k < self.modes), 0.5 / np.maximum(k, 1), 0)
        return times(self._along(weight, pairs), below - above)

    @property
    def _twice(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The matrix of two integrations with respect to ξ: from T_{k-2}, T_k and T_{k+2} to T_k, for k ≥ 2."""
        k = np.maximum(self._numbers, 2).astype(float)
        rows = (self._numbers >= 2) & (self._numbers < self.modes)
        lower = np.where(self._numbers == 2, 2.0, 1.0) / (4 * k * (k - 1))
        upper = np.where(self._numbers + 2 < self.modes, 1 / (4 * k * (k + 1)), 0)
        return np.where(rows, lower, 0), np.where(rows, -1 / (2 * (k**2 - 1)), 0), np.where(rows, upper, 0)

    def double_integral(self, pairs: Array) -> Array:
        """`integral` twice, without the coefficients of T_0 and T_1 after both."""
        lower, diagonal, upper = (self._along(values, pairs) for values in self._twice)
        below, above = moved(pairs, 1, self.axis), moved(pairs, -1, self.axis)
        return times(lower, below) + times(diagonal, pairs) + times(upper, above)

    def solve(self, coefficient: Array, integrated: Array) -> Array:
        """The u without T_0 and T_1 for which `coefficient * u - d²u/dξ² = f`, from `double_integral(f)`, in pairs.

        The coefficient is at least zero, and broadcastable against pairs.
        """
        return tridiagonal_solve(*self._matrix(coefficient, integrated), -integrated, axis=self.axis, row_sums=True)

    def free(self, coefficient: Array) -> Array:
        """The u with `coefficient * u = d²u/dξ²` whose coefficients of T_0 and T_1 are one, in pairs, real."""
        first = self._along(np.where(self._numbers < 2, 1.0, 0.0), coefficient)
        second = self._along(np.where(np.isin(self._numbers, (2, 3)), self._twice[0], 0), coefficient)
        like = jnp.broadcast_to(coefficient, jnp.broadcast_shapes(coefficient.shape, first.shape))
        return first + tridiagonal_solve(*self._matrix(coefficient, like), second * like, axis=self.axis, row_sums=True)

    def _matrix(self, coefficient: Array, like: Array) -> tuple[Array, Array, Array]:
        """`1 - coefficient * double_integral` for the polynomials from T_2 on, by its off-diagonals and row sums."""
        lower, _, upper = self._twice
        inner = np.where(self._numbers >= 4, lower, 0)
        # Rows add up to zero, but for those in which T_0, T_1 or polynomials beyond the last do not count.
        rows = (self._numbers >= 2) & (self._numbers < self.modes)
        k = np.maximum(self._numbers, 2).astype(float)
        whole = (self._numbers >= 4) & (self._numbers + 2 < self.modes)
        sums = np.where(rows & ~whole, 1 / (2 * (k**2 - 1)) - inner - upper, 0)
        scaled = [coefficient * self._along(values, like) for values in (-inner, sums, -upper)]
        return scaled[0], 1 + scaled[1], scaled[2]

    def wall_sums(self, pairs: Array) -> Array:
        """The even and the odd part of u at ξ = 1: half the sum and half the difference of its values at the walls."""
        return jnp.sum(pairs, axis=self.axis, keepdims=True)

    def wall_slopes(self, pairs: Array) -> Array:
        """The derivatives with respect to ξ, at ξ = 1, of the even and the odd part of u."""
        return jnp.sum(times(self._along(1.0 * self._numbers**2, pairs), pairs), axis=self.axis, keepdims=True)


def squared_scale(length: Number, dtype: np.dtype) -> Array:
    """The factor between `d²/dξ²` and `d²/dx²` on an axis of that length: `ξ = 1 - 2x / length`."""
    return (2 / jnp.asarray(length, dtype)) ** 2
