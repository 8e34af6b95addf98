"""`Fields`: sums and products of sharded fields, with as few all-reduces as possible."""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._common.blocks import Blocks, MeshAxis, entry_names
from .._common.broadcast import aligned
from .._core.block_reduction import BlockReduction
from .._core.reductions import cleared, mean, wide


@dataclass(frozen=True)
class Fields:
    """Sums and products of fields with the axes `(*batch, *inner)`.

    Each field of the batch has numbers of its own, such as step sizes: arrays of shape `(*batch,)`.

    - `lengths`: the lengths of the grid axes without padding, in their storage order.
    - `inner`: the number of axes of one field: its components and the axes of the grid.
    - `names`: the mesh axes that shard each grid axis, in storage order.
    - `over`: reduces fields.
    - `open_cells`: the cells that belong to the system; `None` for all. The others are treated like padding.
    - `closed_parts`: the cells of each part of the grid that has a constant of its own in the null space, along a first
        axis; `None` if all open cells are one part.
    """

    lengths: tuple[int, ...]
    inner: int
    names: tuple[MeshAxis | None, ...]
    over: BlockReduction
    open_cells: Array | None = None
    closed_parts: Array | None = None

    def clear(self, field: Array) -> Array:
        """Return `field` with zeros in the padding."""
        field = cleared(field, self.lengths)
        return field if self.open_cells is None else jnp.where(aligned(self.open_cells, field), field, 0)

    def without_mean(self, field: Array) -> Array:
        """Return `field` minus the mean of each component, in each part of the grid."""
        field = self.clear(field)
        if self.closed_parts is None:
            return self.clear(field - self._mean(field, self.open_cells))

        lead = field.ndim - len(self.lengths)
        parts = jnp.expand_dims(self.closed_parts, tuple(range(1, lead + 1)))
        means = self._mean(jnp.where(parts, field[None], 0), parts)
        return field - jnp.sum(jnp.where(parts, means, 0), 0)

    def _mean(self, field: Array, cells: Array | None) -> Array:
        """Return the mean over some cells of a field that is zero in all others, with axes of length one."""
        over = self.over if self.over.by_kernels else None
        means = mean(field, self.lengths, over)
        if cells is not None:
            share = mean(cells.astype(means.real.dtype), self.lengths, over)
            means = means / jnp.where(share == 0, 1, share).astype(means.dtype)
        return jnp.expand_dims(means, tuple(range(-len(self.lengths), 0)))

    def dots(self, *pairs: tuple[Array, Array]) -> tuple[Array, ...]:
        """Return the sums of `conj(u) * v` over the axes of a field, for all pairs (u, v), by one all-reduce."""
        sums = self.dots_of_stacks(*((u[None], v[None]) for u, v in pairs))
        return tuple(lax.index_in_dim(one, 0, keepdims=False) for one in sums)

    def dots_of_stacks(self, *pairs: tuple[Array, Array]) -> tuple[Array, ...]:
        """Return `dots` for pairs of stacks of fields, which have a further first axis, by one all-reduce."""
        # First each device adds up its cells along whole axes. The sums are small, so they can be joined: then one
        # all-reduce is enough. XLA itself would take one for each mesh axis.
        ndim, sharded = len(self.names), [name for name in self.names if name]
        whole = (*range(-self.inner, -ndim), *(i - ndim for i, name in enumerate(self.names) if not name))
        sums = [jnp.sum((jnp.conj(u) * v).astype(wide(v.dtype)), whole) for u, v in pairs]
        found = jnp.concatenate(sums)
        if sharded:
            mesh, lengths = self.over.mesh, found.shape[-len(sharded) :]
            parts = tuple(math.prod(mesh.shape[axis] for axis in entry_names(name)) for name in sharded)
            found = replace(self.over, blocks=Blocks(lengths, parts, tuple(sharded)))(found)
        ends = np.cumsum([len(part) for part in sums]).tolist()
        return tuple(lax.slice_in_dim(found, end - len(part), end) for part, end in zip(sums, ends))

    def norm(self, field: Array) -> Array:
        """Return the norm of each field of the batch. The squares must neither overflow nor be all zero: see `size`."""
        (square,) = self.dots((field, field))
        return jnp.sqrt(square.real)

    def size(self, field: Array) -> Array:
        """Return a power of two near the sum of all absolute values of each field; one if it is zero or infinite.

        A field divided by its size has squares that can be added up.
        """
        absolute = jnp.abs(field)
        (total,) = self.dots((jnp.ones_like(absolute), absolute))
        limits = jnp.finfo(total.dtype)
        total = jnp.where((total > 0) & jnp.isfinite(total), jnp.maximum(total, limits.tiny), 1)
        # Without its fraction, a number is a power of two. `jnp.frexp` and `jnp.ldexp` lose the mesh in types.
        fraction = np.asarray(2**limits.nmant - 1, f"uint{limits.bits}")
        return lax.bitcast_convert_type(lax.bitcast_convert_type(total, fraction.dtype) & ~fraction, total.dtype)

    def norm_of_any_size(self, field: Array) -> Array:
        """Return the norm of each field of the batch, by two all-reduces."""
        size = self.size(field)
        return size * self.norm(self.times(1 / size, field))

    def spread(self, numbers: Array) -> Array:
        """Return `numbers` of the batch with further axes of length one, for the axes of a field."""
        return jnp.expand_dims(numbers, tuple(range(-self.inner, 0)))

    def times(self, numbers: Array, field: Array) -> Array:
        """Return the product of `numbers`, one for each field of the batch, and `field`."""
        return self.spread(numbers).astype(field.dtype) * field

    def select(self, condition: Array, field: Array | float, other: Array | float) -> Array:
        """Return `field` for the fields of the batch where `condition` holds, else `other`."""
        return jnp.where(self.spread(condition), field, other)
