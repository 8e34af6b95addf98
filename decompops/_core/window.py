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
    """How a particle is shared among its neighbouring cells along one axis: a polynomial between the cells.

    The names of a `ParticleMesh`, such as "tsc", stand for common windows; any other one is made of its pieces. Along
    each axis, a particle at the coordinate s, in cells, touches `width` cells: those with the numbers `first + j` for j
    from 0 to `width - 1`, where `first = floor(s - width/2 + 1)`. The share of cell j is a polynomial of the fraction
    `t = s - width/2 + 1 - first`, from 0 to 1. As a function of the distance d between particle and cell, in cells,
    it is the window at `d = t + width/2 - 1 - j`.

    The shares should add up to 1, so that deposits conserve what they add and a constant field is read exactly. For
    `transform`, which statistics and `Deconvolution` use, the window must be even. With at most 16 cells, the compiled
    kernels deposit and read.

    !!! example

        ```python
        linear = particles.Window(((1.0, -1.0), (0.0, 1.0)))   # "cic": 1 - t for the first cell, and t
        pm = particles.ParticleMesh(dec, linear)
        ```

    **Arguments:**

    - `pieces`: for each cell that a particle touches, the coefficients of its polynomial of t, the constant first.

    **Raises:** `ValueError` unless there are one or more pieces, each of one or more finite numbers.
    """

    pieces: tuple[tuple[float, ...], ...]

    def __post_init__(self):
        try:
            pieces = tuple(tuple(map(float, piece)) for piece in self.pieces)
        except (TypeError, ValueError):
            pieces = ()
        if not pieces or not all(piece and all(map(math.isfinite, piece)) for piece in pieces):
            raise ValueError(
                "`pieces` must be the coefficients of a polynomial for each cell, such as ((1, -1), (0, 1)); got "
                f"{self.pieces!r}."
            )
        object.__setattr__(self, "pieces", pieces)

    @property
    def width(self) -> int:
        """The number of cells that a particle touches along one axis."""
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
