"""The second derivative across a channel, between two walls: what the bases that stand there have in common."""

import abc
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jax import Array

from .._box import Number


Wall = Literal["dirichlet", "neumann"]


@dataclass(frozen=True, eq=False)
class AbstractAcross(abc.ABC):
    """The equations `(added - ∂²/∂x²) u = f` along the first axis, one for each mode along the walls.

    - `walls`: the condition at the first wall, x = 0, and at the last one.
    - `length`: the distance of the walls.
    - `ndim`: the number of axes of the grid.
    """

    walls: tuple[Wall, Wall]
    length: Number
    ndim: int

    @property
    @abc.abstractmethod
    def adds_values(self) -> bool:
        """Whether the field of wall values is added to the right-hand side. Else `solve` takes its spectrum."""

    @abc.abstractmethod
    def profile(self, wall: int, dtype: np.dtype) -> Array:
        """The line of a field, one number for each point, by which values at wall 0 or 1 are multiplied.

        The field of wall values is the sum of both products.
        """

    @abc.abstractmethod
    def solve(self, added: Array, f: Array, values: Array | None, free: Array | None) -> Array:
        """The spectrum of u, from that of f.

        - `added`: a real array of at least zero, broadcastable against `f`.
        - `values`: the spectrum of the field of wall values, unless `adds_values`; `None` for zeros.
        - `free`: where, for some mode, a constant may be added to u, whose mean is then zero; `None` for nowhere.
        """
