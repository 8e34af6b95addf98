"""Equations between walls in Chebyshev polynomials, solved by eigenfunctions of the second derivative.

For an eigenfunction that vanishes at both walls, solving the equation is one division. One matrix product splits a
field into eigenfunctions, and a second matrix product adds the eigenfunctions up again. All modes along the walls use
the same two matrices (Haidvogel and Zang, J. Comput. Phys. 30, 1979). Linear functions are added to meet the conditions
at the walls.

The equations are integrated twice before they are solved (Greengard, SIAM J. Numer. Anal. 28, 1991). The matrices are
computed so that no rounding error grows with the number of polynomials.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._basis.chebyshev import Chebyshev
from .._basis.short_lines import folded, halved, multiply, unfolded
from .._common.broadcast import aligned
from ._across import AbstractAcross, Wall
from ._vector import times


class Eigenfunctions(NamedTuple):
    """The even or the odd eigenfunctions of `-d²/dξ²` on -1 < ξ < 1 that vanish at both ends.

    A *series* holds the coefficients of the even or of the odd polynomials. An *amount* is the coefficient of an
    eigenfunction in a field. The *line* is a linear function: T_0 = 1 for even functions, T_1 = ξ for odd functions.

    - `eigenvalues`: the eigenvalues λ, which are positive.
    - `amounts`: the matrix that turns the series of a field into its amounts.
    - `of_integral`: the matrix that turns the double integral of a field into the amounts of the field, each divided
        by -λ. It takes the series of the double integral without its T_0 or T_1.
    - `series`: the matrix that turns amounts into the series of the field.
    """

    eigenvalues: np.ndarray
    amounts: np.ndarray
    of_integral: np.ndarray
    series: np.ndarray

    @property
    def of_line(self) -> np.ndarray:
        """The amounts of the line."""
        return self.amounts[:, 0]


@functools.lru_cache(maxsize=32)
def eigenfunctions(modes: int, parity: int) -> Eigenfunctions:
    """Return the even (`parity` 0) or odd (1) eigenfunctions, approximated by the first `modes` polynomials.

    For the coefficients u_k, the equation `-d²u/dξ² = λ u` becomes `u_k = -λ (J u)_k` for k ≥ 2. The tridiagonal matrix
    J integrates twice. The function computes the eigenvalues -1/λ of J. Their rounding errors are as large as the last
    digit of the largest eigenvalue of J. The largest eigenvalue of J belongs to the smallest λ, so the errors do no
    harm to this λ.
    """
    k = np.arange(parity, modes, 2)
    above = np.maximum(k, 2.0)
    integrate = np.diag(-1 / (2 * (above**2 - 1)))
    integrate += np.diag((np.where(k == 2, 2, 1) / (4 * above * (above - 1)))[1:], -1)
    integrate += np.diag((1 / (4 * above * (above + 1)))[:-1], 1)
    # The coefficients of T_2, T_4, ... or of T_3, T_5, ... determine a polynomial that vanishes at the walls.
    complete = np.concatenate([np.full((1, len(k) - 1), -1.0), np.eye(len(k) - 1)])
    matrix = (integrate @ complete)[1:]
    inverse, vectors = map(np.real, np.linalg.eig(matrix))
    eigenvalues = -1 / inverse
    # There is one polynomial, `unseen`, whose double integral has only zeros among the coefficients that are kept. So
    # the integrated equation does not change if a multiple of `unseen` is subtracted from a field. After the right
    # multiple is subtracted, the field is zero at the walls, and therefore a sum of eigenfunctions.
    unseen = np.where(k == 0, 0.5, 1 - (k / (k[-1] + 2)) ** 2)
    rest = np.eye(len(k)) - unseen[:, None] / np.sum(unseen)
    split = np.linalg.inv(vectors)
    # High eigenfunctions have small coefficients in low polynomials. One step of inverse iteration also makes the
    # errors of these coefficients small.
    low = k[1:] ** 2 < eigenvalues[:, None]
    of_integral = np.where(low, (split @ np.linalg.inv(matrix)) / -eigenvalues[:, None], split)
    # Low eigenfunctions have small coefficients of high polynomials. A slope at a wall multiplies the coefficient of
    # polynomial k by k², so these coefficients need small errors. One more integration makes the errors small.
    series = complete @ (-eigenvalues * (matrix @ vectors))
    return Eigenfunctions(eigenvalues, split @ rest[1:], of_integral, series)


class AtPoints(NamedTuple):
    """The even or the odd eigenfunctions, for fields that are given by their values at points.

    The first half of the points determines an even or odd field, so all points here are in the first half.

    - `amounts`: the matrix that turns the values of a field at the points into its amounts.
    - `values`: the matrix that turns amounts into values at the points.
    - `slopes`: the slope of each eigenfunction at ξ = 1.
    - `line`, `parabola`: the values of the line (see `Eigenfunctions`) and of the polynomial T_2 at the points.
    """

    amounts: np.ndarray
    values: np.ndarray
    slopes: np.ndarray
    line: np.ndarray
    parabola: np.ndarray


@functools.lru_cache(maxsize=32)
def at_points(basis: Chebyshev, n: int, modes: int, parity: int) -> AtPoints:
    """Return the eigenfunctions, approximated by the first `modes` polynomials, at the `n` points of `basis`."""
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
    """Exact second derivatives of Chebyshev series.

    - `basis`: the basis along the first axis.
    - `n`: the number of points.
    - `modes`: the number of polynomials.
    """

    basis: Chebyshev
    n: int
    modes: int

    @property
    def adds_values(self) -> bool:
        return False

    def profile(self, wall: int, dtype: np.dtype) -> Array:
        line = jnp.zeros(self.n, dtype).at[-wall].set(1)
        # Convert the slopes `∂u/∂x` at the wall to derivatives with respect to ξ in the direction out of the channel.
        return line if self.walls[wall] == "dirichlet" else line * (jnp.asarray(self.length, dtype) * (wall - 0.5))

    def solve(self, added: Array, f: Array, values: Array | None, free: Array | None) -> Array:
        axis, dtype = -self.ndim, jnp.finfo(f.dtype).dtype
        scale = (2 / jnp.asarray(self.length, dtype)) ** 2  # `d²/dx² = scale * d²/dξ²`, because ξ = 1 - 2x / length
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
        # The condition at a wall needs either the value or the outward slope there. Compute it for the even and the odd
        # part, and for the even and the odd line.
        seen = [[each.at(wall, part) for each, part in zip(parities, parts)] for wall in self.walls]
        (even, odd), (even_last, odd_last) = ([each.line_at(wall) for each in parities] for wall in self.walls)
        # All these values and slopes are computed at ξ = 1. An even function has the same value and the same outward
        # slope at both walls. An odd function has the opposite value and slope at the last wall. No value or slope of a
        # line is negative, so no terms cancel in the determinant below.
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
        return u - jnp.where(aligned(free, u), mean, jnp.zeros((), u.dtype))


@dataclass(frozen=True, eq=False)
class _Parity:
    """The solver for the even or the odd part of `coefficient * u - d²u/dξ² = f`.

    - `free`: the modes in which the mean of u is arbitrary. In these modes, u solves the equation for f plus some
        constant.
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
        """The factors that turn the amounts of f into amounts of u."""
        return 1 / (self._along(self.functions.eigenvalues) + self.coefficient)

    def amounts(self, f: Array) -> Array:
        """Return the amounts of the even or odd part `f` of a field."""
        return multiply(self.points.amounts, f, -self.ndim)

    def at(self, wall: Wall, amounts: Array) -> Array:
        """Return what the condition `wall` needs of a sum of eigenfunctions at ξ = 1: the value (zero) or the slope."""
        slopes = self._along(self.points.slopes if wall == "neumann" else 0 * self.points.slopes)
        return jnp.sum(times(slopes, amounts), axis=-self.ndim, keepdims=True)

    def line_at(self, wall: Wall) -> Array:
        """Return what the condition `wall` needs of `field(0, 1)` at ξ = 1: the value or the slope."""
        if wall == "dirichlet":
            return jnp.ones_like(self.coefficient)
        slope = self.parity - self.at(wall, self._of_line)
        return slope if self._parabola is None else jnp.where(self._parabola, jnp.full_like(slope, 4), slope)

    def field(self, amounts: Array, line: Array | None = None) -> Array:
        """Return a sum of eigenfunctions at the points, plus `line` times the solution for f = 0 with u(1) = 1."""
        if line is None:
            return multiply(self.points.values, amounts, -self.ndim)
        one = self._along(self.points.line)
        if self._parabola is not None:
            one = jnp.where(self._parabola, self._along(self.points.parabola), one)
        u = multiply(self.points.values, amounts - times(self._of_line, line), -self.ndim)
        return u + times(one, line)

    @property
    def _of_line(self) -> Array:
        """The amounts to subtract from the line, so that the difference solves the equation for f = 0."""
        return self.coefficient * self.inverse * self._along(self.functions.of_line)

    @property
    def _parabola(self) -> Array | None:
        """The modes that use T_2 in place of the even line, because this line has slope 0. T_2 adds a constant to f."""
        return None if self.parity else self.free
