"""`Fields`: sums and products of sharded fields, with as few all-reduces as possible."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._common.blocks import Blocks, MeshAxis, entry_names
from .._common.broadcast import aligned
from .._core.block_reduction import BlockReduction
from .._core.reductions import cleared, wide


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

    def projection(self) -> Callable[[Array], Array]:
        """Return a function that subtracts the mean of each component, in each part of the grid, by one all-reduce."""
        parts, ndim = self.closed_parts, len(self.lengths)
        cells = self.open_cells if parts is None else parts

        def totals(field: Array) -> Array:
            return jnp.expand_dims(self._added(jnp.sum(field, self._whole)), tuple(range(-ndim, 0)))

        # The number of cells is computed here, and not in each step.
        number = jnp.asarray(float(math.prod(self.lengths))) if cells is None else totals(cells.astype(float))
        number = jnp.maximum(number, 1)

        def without_mean(field: Array) -> Array:
            field = self.clear(field)
            size = number.astype(field.dtype)
            if parts is None:
                return self.clear(field - totals(field) / aligned(size, field))
            lead = tuple(range(1, field.ndim - ndim + 1))
            each, size = jnp.expand_dims(parts, lead), jnp.expand_dims(size, lead)
            means = totals(jnp.where(each, field[None], 0)) / size
            return field - jnp.sum(jnp.where(each, means, 0), 0)

        return without_mean

    def dots(self, *pairs: tuple[Array, Array]) -> tuple[Array, ...]:
        """Return the sums of `conj(u) * v` over the axes of a field, for all pairs (u, v), by one all-reduce."""
        sums = self.dots_of_stacks(*((u[None], v[None]) for u, v in pairs))
        return tuple(lax.index_in_dim(one, 0, keepdims=False) for one in sums)

    def dots_of_stacks(self, *pairs: tuple[Array, Array]) -> tuple[Array, ...]:
        """Return `dots` for pairs of stacks of fields, which have a further first axis, by one all-reduce."""
        whole = (*range(-self.inner, -len(self.names)), *self._whole)
        sums = [jnp.sum((jnp.conj(u) * v).astype(wide(v.dtype)), whole) for u, v in pairs]
        found = self._added(jnp.concatenate(sums))
        ends = np.cumsum([len(part) for part in sums]).tolist()
        return tuple(lax.slice_in_dim(found, end - len(part), end) for part, end in zip(sums, ends))

    @property
    def _whole(self) -> tuple[int, ...]:
        """The axes of the grid that no mesh axis shards."""
        return tuple(i - len(self.names) for i, name in enumerate(self.names) if not name)

    def _added(self, sums: Array) -> Array:
        """Add up the sums over whole axes, by one all-reduce. XLA itself would take one for each mesh axis."""
        sharded = tuple(name for name in self.names if name)
        if not sharded:
            return sums
        mesh, lengths = self.over.mesh, sums.shape[-len(sharded) :]
        parts = tuple(math.prod(mesh.shape[axis] for axis in entry_names(name)) for name in sharded)
        return replace(self.over, blocks=Blocks(lengths, parts, sharded))(sums)

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
