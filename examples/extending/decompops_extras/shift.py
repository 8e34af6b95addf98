"""A new stage, a cyclic shift of an axis that is not sharded, and an operator that uses it."""

from dataclasses import dataclass

import decompops as dops
import equinox as eqx
import jax.numpy as jnp
from decompops.extend import AbstractPlanned, AbstractStage, Blocks, Clear, Plan


@dataclass(frozen=True)
class Roll(AbstractStage):
    """Shift the cells along the grid axis `axis`, which is not sharded, cyclically."""

    before: Blocks
    axis: int
    cells: int

    def __post_init__(self):
        if self.before.parts[self.axis] > 1 or self.before.has_halo:
            raise ValueError(
                f"`Roll` shifts an undivided axis of a field without halos; got {self.before}."
            )

    @property
    def after(self):
        return self.before

    def transpose(self):
        return Roll(self.before, self.axis, -self.cells)

    def inverse(self):
        return self.transpose(), 1.0  # the inverse stage, and the factor of its results

    def apply(self, block):
        return jnp.roll(block, self.cells, self.before.position(self.axis))


class Shift(AbstractPlanned):
    """Shift a field along its last axis, which is whole: `jnp.roll(u, cells, axis=-1)`.

    Nothing is communicated.
    """

    decomposition: dops.Decomposition
    cells: int = eqx.field(static=True)

    def __check_init__(self):
        if not isinstance(self.cells, int):
            raise TypeError(f"`cells` must be an integer; got {self.cells!r}.")

    def plan(self):
        blocks = self.decomposition.blocks()
        roll = Roll(blocks, blocks.ndim - 1, self.cells)
        return Plan("Shift", blocks, (Clear(blocks), roll))  # The padding of a result is zero.
