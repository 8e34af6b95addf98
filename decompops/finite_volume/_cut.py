"""`Cut`: arrays of a grid with separate axes for blocks and for the cells of a block."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .._common.blocks import Blocks, MeshAxis
from .._common.broadcast import aligned
from .._common.placement import place
from .._common.typed import reshape_behind
from .._core.reductions import wide


@dataclass(frozen=True)
class Cut:
    """How fields on the cells, and on the faces between them, are computed block by block.

    `split` gives each sharded axis an axis of blocks and an axis of cells. Blocks may then differ in length from the
    blocks of a field: blocks of faces have one more, and extended blocks have halo layers. Slices along axes of cells
    never communicate. With `local=True`, arrays are blocks inside a `shard_map`, and nothing is split.
    """

    mesh: Mesh | AbstractMesh
    blocks: Blocks
    local: bool

    @functools.cached_property
    def splits(self) -> tuple[bool, ...]:
        """Whether each grid axis has an axis of blocks."""
        return tuple(name is not None and not self.local for name in self.blocks.names)

    @functools.cached_property
    def core(self) -> tuple[int, ...]:
        """The number of cells of a block along each grid axis."""
        return tuple(map(self.blocks.core, range(self.blocks.ndim)))

    @functools.cached_property
    def names(self) -> tuple[MeshAxis | None, ...]:
        """The mesh axis that shards the blocks along each grid axis.

        `None` for a mesh axis of one device: JAX forgets it where a slice or a broadcast array has axes of one entry.
        """
        return tuple(name if parts > 1 else None for name, parts in zip(self.blocks.names, self.blocks.parts))

    @property
    def ndim(self) -> int:
        """The number of axes of a split array, without batch axes."""
        return self.blocks.ndim + sum(self.splits)

    def position(self, axis: int) -> int:
        """Return the (negative) array axis of the cells along a grid axis, in a split array."""
        return axis - self.blocks.ndim - sum(self.splits[axis + 1 :])

    def split(self, x: Array, extents: Mapping[int, int] | None = None) -> Array:
        """Return an array with separate axes of blocks and cells. `extents` has the lengths of blocks that differ."""
        lengths = {**dict(enumerate(self.core)), **(extents or {})}
        if not any(self.splits):
            return x
        shape, names = [], []
        for axis, is_split in enumerate(self.splits):
            shape += [self.blocks.parts[axis], lengths[axis]] if is_split else [lengths[axis]]
            names += [self.names[axis], None] if is_split else [None]
        return reshape_behind(x, x.ndim - self.blocks.ndim, tuple(shape), tuple(names))

    def merge(self, x: Array) -> Array:
        """Undo `split`."""
        if not any(self.splits):
            return x
        shape, names = [], []
        for axis, is_split in enumerate(self.splits):
            cells = x.shape[self.position(axis)]
            shape.append(cells * (self.blocks.parts[axis] if is_split else 1))
            names.append(self.blocks.names[axis] if is_split else None)
        return reshape_behind(x, x.ndim - self.ndim, tuple(shape), tuple(names))

    def slice(self, x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
        """Return entries `start` to `stop - 1` of every block along a grid axis of a split array."""
        return jax.lax.slice_in_dim(x, start, stop, step, axis=x.ndim + self.position(axis))

    def window(self, extended: Array, shift: Mapping[int, int]) -> Array:
        """Return the cells at distance `shift` from each cell, for blocks that are extended by one layer."""
        for axis, cells in enumerate(self.core):
            start = 1 + shift.get(axis, 0)
            extended = self.slice(extended, axis, start, start + cells)
        return extended

    def numbers(self, axis: int, before: int = 0, after: int = 0) -> np.ndarray:
        """Return the number on the grid of each cell of each extended block, of shape `(parts, cells)`."""
        cells = self.core[axis]
        return np.arange(self.blocks.parts[axis])[:, None] * cells + np.arange(-before, cells + after)[None, :]

    def clear(self, x: Array) -> Array:
        """Return a split array with zeros in the padding."""
        for axis in self.blocks.padded_axes:
            inside = self.line(self.numbers(axis) < self.blocks.lengths[axis], axis)
            x = jnp.where(aligned(inside, x), x, jnp.zeros_like(x))
        return x

    def line(self, values: Array | np.ndarray, axis: int) -> Array:
        """Return values of shape `(parts, cells)` as a split array that varies along one grid axis only."""
        values, name = jnp.asarray(values), self.blocks.names[axis]
        if self.local and name is not None:
            values = values[jax.lax.axis_index(name)]
        shape = [1] * self.ndim
        shape[self.position(axis)] = values.shape[-1]
        entries: list = [None] * self.ndim
        if self.splits[axis]:
            shape[self.position(axis) - 1], entries[self.position(axis) - 1] = values.shape[0], self.names[axis]
        values = values.reshape(shape)
        return values if self.local else place(values, NamedSharding(self.mesh, PartitionSpec(*entries)))


def precise(x: Array, dtype: Any = None) -> Array:
    """Return real or complex numbers of at least single precision: squares of widths leave the range of others.

    Integers get the dtype `dtype`; `None` for JAX's default.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(jnp.zeros(()).dtype if dtype is None else dtype)
    return x.astype(wide(x.dtype))


def scaled(lines: Sequence[Array], x: Array) -> Array:
    """Return the product of lines and a split array, in the dtype of the array."""
    for line in lines:
        x = line.astype(x.dtype) * x
    return x


def times(weight: Array, x: Array) -> Array:
    """Return the product of a field of weights, without batch axes, and fields."""
    dtype = promoted(weight, x)
    return aligned(weight, x).astype(dtype) * x.astype(dtype)


def plus(total: Array, term: Array) -> Array:
    """Return the sum of two fields, each with or without batch axes, in the dtype to which both promote."""
    dtype = promoted(total, term)
    return aligned(total, term).astype(dtype) + aligned(term, total).astype(dtype)


def promoted(a: Array, b: Array) -> np.dtype:
    """Return the dtype of products and sums of two arrays, also where JAX's strict promotion would raise an error."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(a.dtype, b.dtype)
