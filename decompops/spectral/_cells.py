"""`CellsAcross`: finite volumes between two walls, one tridiagonal system for each mode along the walls."""

import functools
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._common.broadcast import aligned
from ._across import AbstractAcross
from ._tridiagonal import tridiagonal_solve
from ._vector import times


@dataclass(frozen=True, eq=False)
class CellsAcross(AbstractAcross):
    """Second differences of cell means, with errors of second order in the cell widths.

    - `widths`: the cell widths, as fractions of the distance between the walls.
    """

    widths: np.ndarray

    @property
    def adds_values(self) -> bool:
        return True

    def profile(self, wall: int, dtype: np.dtype) -> Array:
        row, line = -wall, np.zeros(len(self.widths))
        # A wall is half a cell from the centre of the cell next to it. The slope out of the channel is `-∂u/∂x` at the
        # first wall.
        if self.walls[wall] == "dirichlet":
            line[row] = 2 / self.widths[row] ** 2
            return jnp.asarray(line, dtype) / jnp.asarray(self.length, dtype) ** 2
        line[row] = (1 if wall else -1) / self.widths[row]
        return jnp.asarray(line, dtype) / jnp.asarray(self.length, dtype)

    def solve(self, added: Array, f: Array, values: Array | None, free: Array | None) -> Array:
        dtype = jnp.finfo(f.dtype).dtype
        lower, sums, upper = (values.reshape(-1, *[1] * (self.ndim - 1)) for values in self._laplacian(dtype))
        solve = functools.partial(tridiagonal_solve, axis=-self.ndim, row_sums=True)
        if free is None:
            return solve(lower, sums + added, upper, f)
        # Where `free` is true, the matrix is singular. A positive number added to its first diagonal entry makes it
        # regular. Let w be the solution of the regular system for f. Let c be the solution of the regular system for
        # the constant right-hand side that makes c one in the first cell. Then w - w[0] c is zero in the first cell, so
        # the added number does not matter, and w - w[0] c solves the singular system for f minus the mean of f. The
        # result is w - w[0] c minus its mean.
        widths = jnp.asarray(self.widths, dtype).reshape(lower.shape)
        first = jnp.arange(len(lower)).reshape(lower.shape) == 0
        entry = jnp.where(first, 1 / jnp.asarray(self.length * self.widths[0], dtype) ** 2, jnp.zeros((), dtype))
        w = solve(lower, sums + added + jnp.where(free, entry, jnp.zeros((), dtype)), upper, f)
        mean = jnp.sum(times(widths, w), -self.ndim, keepdims=True)
        of_constant = jnp.asarray(self._solution_for_a_constant(), dtype).reshape(lower.shape)
        of_first = jnp.sum(jnp.where(aligned(first, w), w, jnp.zeros((), w.dtype)), -self.ndim, keepdims=True)
        excess = mean + times(of_constant, of_first)
        return w - jnp.where(aligned(free, w), excess, jnp.zeros((), w.dtype))

    def _laplacian(self, dtype: np.dtype) -> tuple[Array, Array, Array]:
        """Return three numbers for each row of the matrix of `-∂²/∂x²`: lower entry, sum of the row, upper entry."""
        widths = self.widths
        between = (widths[1:] + widths[:-1]) / 2  # the distances between cell centres
        lower = np.append(0, -1 / (widths[1:] * between))
        upper = np.append(-1 / (widths[:-1] * between), 0)
        sums = np.zeros(len(widths))
        for row, wall in zip((0, -1), self.walls):
            if wall == "dirichlet":
                sums[row] += 2 / widths[row] ** 2  # The wall is half a cell from the centre of the cell next to it.
        scale = 1 / jnp.asarray(self.length, dtype) ** 2
        return jnp.asarray(lower, dtype) * scale, jnp.asarray(sums, dtype) * scale, jnp.asarray(upper, dtype) * scale

    def _solution_for_a_constant(self) -> np.ndarray:
        """Return c minus its mean, for the solution c that a comment in `solve` describes.

        c is one in the first cell. Its flux decreases linearly from the first wall to zero at the last wall.
        """
        widths = self.widths
        faces, between = np.cumsum(widths)[:-1], (widths[1:] + widths[:-1]) / 2
        values = np.append(1, 1 + np.cumsum(between * (1 - faces)) / widths[0])
        return values - widths @ values
