"""The stage that reduces a field to one number."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .._common.blocks import Blocks
from .stage import AbstractStage, check_stage


# What becomes of the cells of a field.
Reduced = Literal["sum", "max", "min"]


@dataclass(frozen=True)
class Reduce(AbstractStage):
    """Reduce a field to one number, the same on every device: the sum, or the largest or smallest of all its cells.

    A number has the blocks of a grid with one cell. The transposed sum copies a number into every cell of a grid, also
    into its padding. Extremes are not linear: they have no transpose, and `_core/reductions.py` has their derivative.
    """

    before: Blocks
    after: Blocks
    to: Reduced = "sum"
    transposed: bool = False

    def __post_init__(self):
        number = self.before if self.transposed else self.after
        check_stage(number == one_cell(number.ndim), "must reduce a field to a grid of one cell", self)
        check_stage(self.to == "sum" or not self.transposed, "must be a sum to have a transpose", self)

    def transpose(self) -> "Reduce":
        return Reduce(self.after, self.before, self.to, not self.transposed)

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        if dtype.kind == "b":
            raise TypeError("`x` must hold numbers; got bool. Pass `x.astype(jnp.int8)`.")
        return dtype


def one_cell(ndim: int) -> Blocks:
    """Return the blocks of a grid of one cell, which every device has."""
    return Blocks((1,) * ndim, (1,) * ndim, (None,) * ndim)
