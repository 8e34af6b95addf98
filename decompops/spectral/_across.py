"""`AbstractAcross`: how an equation with a second derivative is solved along the first axis, between two walls."""

import abc
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jax import Array

from .._common.box import Number


Wall = Literal["dirichlet", "neumann"]


@dataclass(frozen=True, eq=False)
class AbstractAcross(abc.ABC):
    """The solver of `(added - ∂²/∂x²) u = f` along the first axis, for each mode along the walls (the other axes).

    - `walls`: the condition at the first wall, x = 0, and the condition at the last wall.
    - `length`: the distance between the walls.
    - `ndim`: the number of axes of the grid.
    """

    walls: tuple[Wall, Wall]
    length: Number
    ndim: int

    @property
    @abc.abstractmethod
    def adds_values(self) -> bool:
        """Whether wall values enter the equation through the right-hand side.

        If true, the field of wall values (see `profile`) is added to the right-hand side. If false, `solve` takes the
        spectrum of this field.
        """

    @abc.abstractmethod
    def profile(self, wall: int, dtype: np.dtype) -> Array:
        """Return one factor for each point along the first axis.

        The factors multiply the values at a wall: `wall` is 0 for the first wall, 1 for the last wall.

        At each wall, these factors times the values at the wall give a field. The *field of wall values* is the sum of
        the two fields.
        """

    @abc.abstractmethod
    def solve(self, added: Array, f: Array, values: Array | None, free: Array | None) -> Array:
        """Return the spectrum of u.

        - `added`: a nonnegative real array that broadcasts against `f`.
        - `f`: the spectrum of the right-hand side.
        - `values`: the spectrum of the field of wall values. `None` if all values are zero, or if `adds_values` is
            true.
        - `free`: a Boolean array that marks the modes whose solution is known only up to a constant. The solution with
            zero mean is returned. `None` if no mode is free.
        """
