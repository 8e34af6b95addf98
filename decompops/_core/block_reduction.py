"""`BlockReduction`: sums and extremes over the devices that share a field, by the compiled kernels of its backend."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from .._backend.base import NOBODY, AbstractBackend, Caller, Group
from .._common.blocks import Blocks, entry_names, flat_names
from .._common.placement import batch_of, place_field
from .._common.sharding import axes_to_map, manual_axes, map_blocks, mesh_in_context
from .._common.typed import batch_in_type
from .rows import everywhere


@dataclass(frozen=True)
class BlockReduction:
    """The sum, or the largest or smallest value, over the grid of a field that is cut into `blocks`.

    Each device reduces its own cells. Along one mesh axis after the other, every device then gets the results of all
    devices and reduces them in the order of the devices. So the result is the same on every device, to the last bit.
    """

    mesh: Mesh | AbstractMesh
    blocks: Blocks
    backend: AbstractBackend
    caller: Caller = NOBODY
    name: str = "Layout.sum"

    def __call__(self, field: Array, reduce: Callable = jnp.sum) -> Array:
        """Reduce a field of shape `(*batch, *blocks.shape)`, padding included, by `jnp.sum`, `jnp.max` or `jnp.min`.

        Returns an array of shape `(*batch,)`, which is replicated along the mesh axes of the grid.
        """
        blocks, manual = self.blocks, manual_axes()
        field = place_field(field, mesh_in_context(self.mesh), blocks, ())
        # Each device first reduces its own cells, without a kernel. XLA cannot divide the work of a kernel: under
        # `jax.vmap`, it gathers the batch. A batch of these results is small, a batch of fields is not.
        spec = PartitionSpec(*batch_in_type(field, blocks.ndim), *blocks.spec)
        names = set(flat_names(spec)) - manual
        of_cells = functools.partial(reduce, axis=tuple(range(-blocks.ndim, 0)), keepdims=True)
        results = map_blocks(of_cells, self.mesh, names, spec, spec)(field)
        # As in `_block_map`, batch axes are manual as well.
        free = frozenset(self.mesh.axis_names) - manual
        batch = batch_of(results, results.ndim - blocks.ndim, self.mesh, blocks.mesh_axes, (), free)
        specs = PartitionSpec(*batch, *blocks.spec), PartitionSpec(*batch)
        on_block = functools.partial(self._across, reduce=reduce)
        return map_blocks(on_block, self.mesh, axes_to_map(self.mesh, specs[0]), *specs, check_types=False)(results)

    def _across(self, result: Array, reduce: Callable) -> Array:
        """Reduce the results of all devices, of shape `(*batch, 1, ..., 1)` on each of them."""
        found = result.reshape(result.shape[: -self.blocks.ndim])
        for entry, parts in reversed(list(zip(self.blocks.names, self.blocks.parts))):
            if parts > 1:
                group = Group(self.name, self.mesh, entry_names(entry), self.backend, self.caller)
                found = reduce(everywhere(group, found), 0)
        return found


def block_reduction(
    mesh: Mesh | AbstractMesh, blocks: Blocks, backend: AbstractBackend | None, name: str = "Layout.sum"
) -> BlockReduction | None:
    """Return the reduction by compiled kernels, or `None` if XLA reduces the field, by a plain `jnp.sum`."""
    if backend is None or not backend.moves_rows or max(blocks.parts) == 1:
        return None
    return BlockReduction(mesh, blocks, backend, backend.caller(), name)
