"""`BlockReduction`: sums and extremes over the grid of a sharded field."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from .._backend.base import NOBODY, AbstractBackend, Call, Caller
from .._common.blocks import Blocks
from .._plan.plan import Plan
from .._plan.reduce import Reduce, Reduced, one_cell
from .primitive import apply


@dataclass(frozen=True)
class BlockReduction:
    """The sum, or the largest or smallest value, over the grid of a field that is cut into `blocks`."""

    mesh: Mesh | AbstractMesh
    blocks: Blocks
    backend: AbstractBackend
    caller: Caller = NOBODY
    name: str = "Layout.sum"

    @property
    def by_kernels(self) -> bool:
        """Whether compiled kernels exchange something. If not, XLA can also reduce the field by a plain `jnp.sum`."""
        return self.backend.moves_rows and max(self.blocks.parts) > 1

    def __call__(self, field: Array, to: Reduced = "sum") -> Array:
        """Reduce a field of shape `(*batch, *blocks.shape)`, padding included.

        Returns an array of shape `(*batch,)` and of the same dtype, replicated along the mesh axes of the grid.
        """
        ndim = self.blocks.ndim
        plan = Plan(self.name, self.blocks, (Reduce(self.blocks, one_cell(ndim), to),))
        number = apply(Call(plan, self.mesh, self.backend, caller=self.caller), field)
        return jnp.squeeze(number, tuple(range(-ndim, 0)))


def block_reduction(
    mesh: Mesh | AbstractMesh, blocks: Blocks, backend: AbstractBackend | None, name: str = "Layout.sum"
) -> BlockReduction | None:
    """Return the reduction by compiled kernels, or `None` if XLA reduces the field, by a plain `jnp.sum`."""
    if backend is None:
        return None
    over = BlockReduction(mesh, blocks, backend, backend.caller(), name)
    return over if over.by_kernels else None
