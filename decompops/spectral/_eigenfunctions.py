"""Equations between walls in Chebyshev polynomials, by the eigenfunctions of the second derivative across.

In an eigenfunction that vanishes at both walls, an equation is one division. Fields are split into eigenfunctions, and
put together again, by two products with matrices that are the same for all modes along the walls (Haidvogel and Zang,
J. Comput. Phys. 30, 1979). Linear functions are added for what the conditions at the walls leave over.

Equations are solved in the form in which they are integrated twice (Greengard, SIAM J. Numer. Anal. 28, 1991). The
matrices are computed so that no rounding error grows with the number of polynomials: see docs/performance.md.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._basis.chebyshev import Chebyshev
from .._basis.short_lines import folded, halved, multiply, unfolded
from ._across import AbstractAcross, Wall
from ._tridiagonal import times


class Eigenfunctions(NamedTuple):
    """The even or the odd eigenfunctions of `-d²/dξ²` on -1 < ξ < 1 that vanish at both ends.

    Series hold the coefficients of the even or of the odd polynomials. The *line* is the function with the value one at
    ξ = 1 that solves `d²u/dξ² = 0`: T_0 = 1, or T_1 = ξ.

    - `eigenvalues`: λ, all positive.
    - `amounts`: the matrix from the series of a field to the amount of each eigenfunction in it.
    - `of_integral`: the matrix from the series of its double integral, from T_2 or T_3 on, to the same amounts,
        each over -λ.
    - `series`: the matrix from the amounts of the eigenfunctions to the series of their sum.
    """

    eigenvalues: np.ndarray
    amounts: np.ndarray
    of_integral: np.ndarray
    series: np.ndarray

    @property
    def of_line(self) -> np.ndarray:
        """The amounts in the line."""
        return self.amounts[:, 0]


@functools.lru_cache(maxsize=32)
def eigenfunctions(modes: int, parity: int) -> Eigenfunctions:
    """The even (`parity` 0) or odd (1) eigenfunctions in the first `modes` polynomials.

    The equation `-d²u/dξ² = λ u` is `u_k = -λ (J u)_k` for k ≥ 2, where the matrix J integrates twice and has three
    diagonals. The eigenvalues -1/λ of J are computed: an error in the last digit of the largest one belongs to the
    smallest λ, where it does no harm.
    """
    k = np.arange(parity, modes, 2)
    above = np.maximum(k, 2.0)
    integrate = np.diag(-1 / (2 * (above**2 - 1)))
    integrate += np.diag((np.where(k == 2, 2, 1) / (4 * above * (above - 1)))[1:], -1)
    integrate += np.diag((1 / (4 * above * (above + 1)))[:-1], 1)
    # The coefficients from T_2 or T_3 on tell a polynomial that vanishes at the walls.
    complete = np.concatenate([np.full((1, len(k) - 1), -1.0), np.eye(len(k) - 1)])
    matrix = (integrate @ complete)[1:]
    inverse, vectors = map(np.real, np.linalg.eig(matrix))
    eigenvalues = -1 / inverse
    # One polynomial has no double integral, so the equation does not see it. A field is a sum of eigenfunctions after
    # subtracting as much of that polynomial as makes it vanish at the walls.
    unseen = np.where(k == 0, 0.5, 1 - (k / (k[-1] + 2)) ** 2)
    rest = np.eye(len(k)) - unseen[:, None] / np.sum(unseen)
    split = np.linalg.inv(vectors)
    # The amount of a high eigenfunction in a low polynomial is small. One step of inverse iteration makes its error
    # small, too.
    low = k[1:] ** 2 < eigenvalues[:, None]
    of_integral = np.where(low, (split @ np.linalg.inv(matrix)) / -eigenvalues[:, None], split)
    # A low eigenfunction has small coefficients of high polynomials. Slopes weight them by k², so their errors must be
    # small: one more integration does that.
    series = complete @ (-eigenvalues * (matrix @ vectors))
    return Eigenfunctions(eigenvalues, split @ rest[1:], of_integral, series)


class AtPoints(NamedTuple):
    """The same for fields at points, of which the first half tells an even or odd field.

    - `amounts`, `values`: the matrices from points to amounts, and from amounts to points.
    - `slopes`: the slope of each eigenfunction at ξ = 1.
    - `line`, `parabola`: the line, and the polynomial T_2.
    """

    amounts: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    line: np.ndarray
    parabola: np.ndarray


@functools.lru_cache(maxsize=32)
def at_points(basis: Chebyshev, n: int, modes: int, parity: int) -> AtPoints:
    """The eigenfunctions in `modes` polynomials on a grid of `n` points."""
    k, functions = np.arange(parity, modes, 2), eigenfunctions(modes, parity)
    from_points = basis.forward.matrix(n)[k] * (2 * basis.inverse_scale(n))
    half = basis.points(n)[: (n + 1) // 2]
    polynomials = np.cos(np.outer(2 * np.arcsin(np.sqrt(half)), np.append(k, 2)))
    return AtPoints(
        amounts=halved(functions.amounts @ from_points, 1 - 2 * parity),
        values=polynomials[:, :-1] @ functions.series,
        slopes=k**2.0 @ functions.series,
        line=polynomials[:, 0],
        parabola=polynomials[:, -1],
    )


@dataclass(frozen=True, eq=False)
class ChebyshevAcross(AbstractAcross):
    """Exact second derivatives of polynomials.

    - `basis`, `n`, `modes`: the points, their number, and the number of polynomials.
    """

    basis: Chebyshev
    n: int
    modes: int

    @property
    def adds_values(self) -> bool:
        return False

    def profile(self, wall: int, dtype: np.dtype) -> Array:
        line = jnp.zeros(self.n, dtype).at[-wall].set(1)
        # A slope is that with respect to ξ, out of the channel.
        return line if self.walls[wall] == "dirichlet" else line * (jnp.asarray(self.length, dtype) * (wall - 0.5))

    def solve(self, added: Array, f: Array, values: Array | None, free: Array | None) -> Array:
        axis, dtype = -self.ndim, jnp.finfo(f.dtype).dtype
        scale = (2 / jnp.asarray(self.length, dtype)) ** 2  # between `d²/dξ²` and `d²/dx²`: ξ = 1 - 2x / length
        coefficient = added / scale
        parities = [
            _Parity(
                eigenfunctions(self.modes, parity),
                at_points(self.basis, self.n, self.modes, parity),
                parity,
                self.ndim,
                coefficient,
                free,
            )
            for parity in (0, 1)
        ]
        parts = [times(each.inverse / scale, each.amounts(part)) for each, part in zip(parities, folded(f, axis))]
        if values is None and set(self.walls) == {"dirichlet"}:
            even, odd = (each.field(part) for each, part in zip(parities, parts))
            return unfolded(even, odd, self.n, axis)
        # What the conditions at both walls see of both parts, and of one line for each.
        seen = [[each.at(wall, part) for each, part in zip(parities, parts)] for wall in self.walls]
        (even, odd), (even_last, odd_last) = ([each.line_at(wall) for each in parities] for wall in self.walls)
        # At the last wall, odd functions and slopes of even ones have the other sign, which slopes out of the channel
        # have once more. So what the conditions see of the lines is at least zero, and no sum of it cancels.
        missing, missing_last = -(seen[0][0] + seen[0][1]), seen[1][1] - seen[1][0]
        if values is not None:
            missing += lax.slice_in_dim(values, 0, 1, axis=axis)
            missing_last += lax.slice_in_dim(values, self.n - 1, self.n, axis=axis)
        inverse = 1 / (even * odd_last + odd * even_last)
        lines = (
            times(odd_last * inverse, missing) + times(odd * inverse, missing_last),
            times(even_last * inverse, missing) - times(even * inverse, missing_last),
        )
        even, odd = (each.field(part, line) for each, part, line in zip(parities, parts, lines))
        u = unfolded(even, odd, self.n, axis)
        if free is None:
            return u
        weights = jnp.asarray(self.basis.weights(self.n), dtype).reshape(-1, *[1] * (self.ndim - 1))
        mean = jnp.sum(times(weights, u), axis=axis, keepdims=True)
        return u - jnp.where(free, mean, jnp.zeros((), u.dtype))


@dataclass(frozen=True, eq=False)
class _Parity:
    """The even or the odd part of `coefficient * u - d²u/dξ² = f`.

    - `free`: where it is solved up to a constant in f, with any mean of u.
    """

    functions: Eigenfunctions
    points: AtPoints
    parity: int
    ndim: int
    coefficient: Array
    free: Array | None

    def _along(self, numbers: np.ndarray) -> Array:
        return jnp.asarray(numbers.reshape(-1, *[1] * (self.ndim - 1)), self.coefficient.dtype)

    @property
    def inverse(self) -> Array:
        """What the equation multiplies each eigenfunction in f by."""
        return 1 / (self._along(self.functions.eigenvalues) + self.coefficient)

    def amounts(self, f: Array) -> Array:
        """The amount of each eigenfunction in the even or odd part of `f`."""
        return multiply(self.points.amounts, f, -self.ndim)

    def at(self, wall: Wall, amounts: Array) -> Array:
        """What the condition at a wall ξ = 1 sees of eigenfunctions: their slopes; their values are zero."""
        slopes = self._along(self.points.slopes if wall == "neumann" else 0 * self.points.slopes)
        return jnp.sum(times(slopes, amounts), axis=-self.ndim, keepdims=True)

    def line_at(self, wall: Wall) -> Array:
        """What it sees of `field(0, 1)`."""
        if wall == "dirichlet":
            return jnp.ones_like(self.coefficient)
        slope = self.parity - self.at(wall, self._of_line)
        return slope if self._parabola is None else jnp.where(self._parabola, jnp.full_like(slope, 4), slope)

    def field(self, amounts: Array, line: Array | None = None) -> Array:
        """Eigenfunctions at the points, plus `line` times the solution for f = 0 that has the value one at ξ = 1."""
        if line is None:
            return multiply(self.points.values, amounts, -self.ndim)
        one = self._along(self.points.line)
        if self._parabola is not None:
            one = jnp.where(self._parabola, self._along(self.points.parabola), one)
        u = multiply(self.points.values, amounts - times(self._of_line, line), -self.ndim)
        return u + times(one, line)

    @property
    def _of_line(self) -> Array:
        """The amounts that the line must lose to solve the equation for f = 0."""
        return self.coefficient * self.inverse * self._along(self.functions.of_line)

    @property
    def _parabola(self) -> Array | None:
        """Where a parabola stands in for the even line, which has no slope: a constant is then taken from f."""
        return None if self.parity else self.free
