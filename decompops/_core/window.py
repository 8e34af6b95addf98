"""`Window`: how the value of one point is shared among its neighbouring cells."""

import functools
import math
from dataclasses import dataclass

import numpy as np
from jax import Array
from numpy.polynomial import Polynomial
from numpy.polynomial.legendre import leggauss


@dataclass(frozen=True)
class Window:
    """A function of one coordinate that is a polynomial between the cells, and zero outside of `width` cells.

    A point at the coordinate s, in cells, touches the cells `first + j` with `first = floor(s - width/2 + 1)` and `j`
    from 0 to `width - 1`. The share of cell j is a polynomial of the fraction `t = s - width/2 + 1 - first`, from 0
    to 1.

    - `pieces`: for each j, the coefficients of the polynomial, the constant first.
    """

    pieces: tuple[tuple[float, ...], ...]

    @property
    def width(self) -> int:
        """The number of cells that a point touches along one axis."""
        return len(self.pieces)

    def halo(self, offset: float = 0.0) -> tuple[int, int]:
        """Return the number of cells before and after a block that points inside of the block may touch.

        `offset` is how far the grid is shifted, in cells.
        """
        reach = self.width / 2 + offset
        return math.ceil(reach) - 1, self.width - math.floor(reach)

    def derivative(self, order: int) -> tuple[tuple[float, ...], ...]:
        """Return the pieces of the derivative of this order."""
        return _differentiated(self, order)

    def shares(self, t: Array, order: int) -> list[Array]:
        """Return the share of each cell, or the derivative of this order of the share."""
        return [_horner(piece, t) for piece in self.derivative(order)]

    def transform(self, frequencies: np.ndarray) -> np.ndarray:
        """Return the Fourier transform of an even window, at angular frequencies in radians per cell."""
        nodes, weights = leggauss(32)  # Exact for the polynomials, and for several periods of the wave in each cell.
        t, total = (nodes + 1) / 2, np.zeros(np.shape(frequencies))
        for j, piece in enumerate(self.pieces):
            distance = t + self.width / 2 - 1 - j
            total += np.cos(np.multiply.outer(frequencies, distance)) @ (weights / 2 * Polynomial(piece)(t))
        return total


@functools.cache
def _differentiated(window: Window, order: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(Polynomial(piece).deriv(order).coef.tolist()) for piece in window.pieces)


def _horner(coefficients: tuple[float, ...], t: Array) -> Array:
    result = 0 * t + coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        result = result * t + coefficient
    return result
