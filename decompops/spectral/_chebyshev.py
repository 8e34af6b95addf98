"""`Lines` differentiates and integrates Chebyshev series along the first axis of spectra, and solves equations."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._basis.short_lines import multiply
from .._common.broadcast import aligned
from ._eigenfunctions import eigenfunctions
from ._tridiagonal import moved
from ._vector import times, total


@dataclass(frozen=True)
class Lines:
    """Lines of Chebyshev coefficients along the first grid axis of a spectrum.

    *Pairs* store each even coefficient and the next odd coefficient side by side, in an axis of length two after the
    first grid axis. If the number of coefficients is odd, a zero is appended.

    - `modes`: the number of coefficients.
    - `ndim`: the number of axes of the grid.
    """

    modes: int
    ndim: int

    @property
    def _numbers(self) -> np.ndarray:
        """The degree of each polynomial, in pairs."""
        return np.arange(2 * ((self.modes + 1) // 2)).reshape(-1, 2)

    def _along(self, values: np.ndarray, like: Array) -> Array:
        """Return `values`, one for each coefficient, as an array that broadcasts against pairs.

        The array has the precision of `like`.
        """
        return jnp.asarray(values.reshape(-1, 2, *[1] * (self.ndim - 1)), jnp.finfo(like.dtype).dtype)

    @property
    def axis(self) -> int:
        """In an array of pairs, the axis that counts the pairs."""
        return -self.ndim - 1

    def pairs(self, u: Array) -> Array:
        """Return coefficients as pairs."""
        if self.modes % 2:
            u = jnp.pad(u, [(0, int(axis == u.ndim - self.ndim)) for axis in range(u.ndim)])
        lead = u.shape[: u.ndim - self.ndim]
        return u.reshape(*lead, (self.modes + 1) // 2, 2, *u.shape[u.ndim - self.ndim + 1 :])

    def coefficients(self, pairs: Array) -> Array:
        """Return pairs as coefficients."""
        lead = pairs.shape[: self.axis]
        u = pairs.reshape(*lead, -1, *pairs.shape[len(lead) + 2 :])
        return lax.slice_in_dim(u, 0, self.modes, axis=u.ndim - self.ndim)

    def parts(self, pairs: Array) -> tuple[Array, Array]:
        """Return the even and the odd coefficients; the axis of length two becomes an axis of length one."""
        even, odd = (lax.slice_in_dim(pairs, i, i + 1, axis=self.axis + 1) for i in (0, 1))
        return even, odd

    def joined(self, even: Array, odd: Array) -> Array:
        """Return the pairs whose `parts` are `even` and `odd`."""
        return jnp.concatenate([even, odd], axis=self.axis + 1)

    def derivative(self, pairs: Array) -> Array:
        """Return `du/dξ` on -1 < ξ < 1."""
        k = self._numbers
        sums = lax.cumsum(times(self._along(2.0 * k, pairs), pairs), axis=pairs.ndim + self.axis, reverse=True)
        even, odd = self.parts(sums)
        slopes = self.joined(odd, moved(even, -1, self.axis))
        return times(self._along(np.where(k == 0, 0.5, 1.0) * (k < self.modes), pairs), slopes)

    def integral(self, pairs: Array) -> Array:
        """Return an antiderivative with respect to ξ, with zeros in place of the coefficients of T_0 and T_1."""
        k = self._numbers
        even, odd = self.parts(pairs)
        below = self.joined(moved(odd, 1, self.axis), even)
        above = self.joined(odd, moved(even, -1, self.axis))
        weight = np.where((k >= 2) & (k < self.modes), 0.5 / np.maximum(k, 1), 0)
        return times(self._along(weight, pairs), below - above)

    @property
    def _twice(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Three factors for each k ≥ 2.

        Coefficient k of the double integral of a series is the sum of the coefficients k-2, k and k+2 of the series,
        each multiplied by its factor.
        """
        k = np.maximum(self._numbers, 2).astype(float)
        rows = (self._numbers >= 2) & (self._numbers < self.modes)
        lower = np.where(self._numbers == 2, 2.0, 1.0) / (4 * k * (k - 1))
        upper = np.where(self._numbers + 2 < self.modes, 1 / (4 * k * (k + 1)), 0)
        return np.where(rows, lower, 0), np.where(rows, -1 / (2 * (k**2 - 1)), 0), np.where(rows, upper, 0)

    def double_integral(self, pairs: Array) -> Array:
        """Integrate twice with respect to ξ. The coefficients of T_0 and T_1 of the result are zero."""
        lower, diagonal, upper = (self._along(values, pairs) for values in self._twice)
        below, above = moved(pairs, 1, self.axis), moved(pairs, -1, self.axis)
        return times(lower, below) + times(diagonal, pairs) + times(upper, above)

    def solve(
        self, shift: Array, diffusivity: Array, integrated: Array | None = None, walls: Array | None = None
    ) -> Array:
        """Return the solution u of `shift * u - diffusivity * d²u/dξ² = f`, in pairs.

        Small coefficients of u have small absolute errors. The slopes at the walls need this accuracy, because they
        multiply the coefficient of T_k by k².

        - `shift`, `diffusivity`: real arrays that broadcast against pairs; nonnegative, and never both zero.
        - `integrated`: `double_integral(f)`; `None` for f = 0.
        - `walls`: the even and the odd part of u at ξ = 1, as `wall_sums` returns them; `None` if u is zero at the
            walls.
        """
        solved = (self._solved(parity, shift, diffusivity, integrated, walls) for parity in (0, 1))
        return self.joined(*solved)

    def _solved(
        self, parity: int, shift: Array, diffusivity: Array, integrated: Array | None, walls: Array | None
    ) -> Array:
        """Return the even (`parity` 0) or odd (1) coefficients of the solution, in the form that `parts` returns."""
        functions = eigenfunctions(self.modes, parity)
        padding = len(self._numbers) - len(functions.series)
        along = lambda numbers: jnp.asarray(numbers.reshape(-1, *[1] * self.ndim), shift.dtype)
        shift = aligned(shift, along(functions.eigenvalues))
        inverse = 1 / (shift + diffusivity * along(functions.eigenvalues))
        amounts, lines = [], []
        if integrated is not None:
            matrix = np.pad(-functions.eigenvalues[:, None] * functions.of_integral, [(0, 0), (1, padding)])
            amounts.append(times(inverse, multiply(matrix, self.parts(integrated)[parity], self.axis)))
        if walls is not None:
            # Add the linear function that has these values at the walls, and subtract the eigenfunctions that cancel
            # its residual in the equation.
            at_wall = self.parts(walls)[parity]
            amounts.append(-times(shift * inverse * along(functions.of_line), at_wall))
            lines.append(times(along(np.eye(len(self._numbers))[0]), at_wall))
        matrix = np.pad(functions.series, [(0, padding), (0, 0)])
        return total([multiply(matrix, total(amounts), self.axis), *lines])

    def wall_sums(self, pairs: Array) -> Array:
        """Return the even and the odd part of u at ξ = 1.

        The two parts are half the sum and half the difference of the values of u at the walls.
        """
        return jnp.sum(pairs, axis=self.axis, keepdims=True)

    def wall_slopes(self, pairs: Array) -> Array:
        """Return the derivatives of the even and the odd part of u with respect to ξ, at ξ = 1."""
        return jnp.sum(times(self._along(1.0 * self._numbers**2, pairs), pairs), axis=self.axis, keepdims=True)
