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
    """Solves `(added - ∂²/∂x²) u = f` along the first axis, for each mode along the walls by itself.

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
        """One number for each point across, by which the values at wall 0 or 1 are multiplied.

        Both walls' products are added up: this is the field of wall values.
        """

    @abc.abstractmethod
    def solve(self, added: Array, f: Array, values: Array | None, free: Array | None) -> Array:
        """The spectrum of u, from that of f.

        - `added`: a real array of at least zero, broadcastable against `f`.
        - `values`: the spectrum of the field of wall values. `None` if they are zero, or if `adds_values`.
        - `free`: where, for some mode, a constant may be added to u, whose mean is then zero; `None` for nowhere.
        """
