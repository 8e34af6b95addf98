"""How a grid is cut into blocks: which grid axis is whole on every device, and in which order the axes of a
block are stored.

Grid axes are numbered from 0: x, y, z on a grid of three axes. A `Blocks` is plain, hashable data, without arrays or
devices.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from jax.sharding import PartitionSpec


# A pencil, given by the name or the number of the grid axis that is whole on every device.
Pencil = str | int
# The mesh axis that shards a grid axis, or several mesh axes that shard it together. The first of these varies slowest.
MeshAxis = str | tuple[str, ...]
# The entry of a partition spec for one batch axis. `PartitionSpec.UNCONSTRAINED` lets the library or XLA choose it.
BatchEntry = Any


def axis_names(ndim: int) -> tuple[str, ...]:
    """Return the names of the axes of a grid: x, y, z for at most three axes, else x0, x1, ...

    Raises `ValueError` if `ndim` is not an integer from zero.
    """
    if not isinstance(ndim, SupportsIndex) or ndim < 0:
        raise ValueError(f"`ndim` must be an integer of at least 0; got {ndim!r}.")
    return ("x", "y", "z")[:ndim] if ndim <= 3 else tuple(f"x{axis}" for axis in range(ndim))


def entry_names(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes in one entry of a partition spec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def flat_names(entries: Iterable[MeshAxis | None]) -> Iterator[str]:
    """Return the mesh axes in several entries of a partition spec."""
    return itertools.chain.from_iterable(map(entry_names, entries))


def spec_entry(names: Iterable[str]) -> MeshAxis | None:
    """Return the entry of a partition spec that names these mesh axes."""
    names = tuple(names)
    return names[0] if len(names) == 1 else names or None


@dataclass(frozen=True)
class Blocks:
    """How a field of `lengths` cells is cut into blocks, one for each device, and in which order its axes are stored.

    All fields but `order` have one entry for each grid axis:

    - `lengths`: the number of cells, without padding.
    - `parts`: the number of blocks.
    - `names`: the mesh axis or axes that shard the grid axis; `None` for a grid axis that is whole on every device.
    - `halo`: the number of layers of neighbours' cells before and after each block.
    - `order`: the grid axis that is stored at each position of an array.

    If the number of blocks does not divide the length of an axis, the axis is padded at its end to the next multiple.
    """

    lengths: tuple[int, ...]
    parts: tuple[int, ...]
    names: tuple[MeshAxis | None, ...]
    order: tuple[int, ...] = ()
    halo: tuple[tuple[int, int], ...] = ()

    def __post_init__(self):
        ndim = len(self.lengths)
        if not self.order:
            object.__setattr__(self, "order", tuple(range(ndim)))
        if not self.halo:
            object.__setattr__(self, "halo", ((0, 0),) * ndim)
        if not all(len(values) == ndim for values in (self.parts, self.names, self.order, self.halo)):
            raise ValueError(f"`Blocks` must have one entry for each grid axis; got {self}.")
        if sorted(self.order) != list(range(ndim)):
            raise ValueError(f"`order` must have each of the {ndim} grid axes once; got {self.order}.")
        if min((*self.lengths, *self.parts)) < 1 or min(min(pair) for pair in self.halo) < 0:
            raise ValueError(f"`lengths` and `parts` must be positive and `halo` not negative; got {self}.")
        single = list(flat_names(self.names))
        unnamed = any(name is None and parts > 1 for name, parts in zip(self.names, self.parts))
        if unnamed or len(set(single)) < len(single):
            raise ValueError(f"`names` must have a different mesh axis for each axis of several parts; got {self}.")

    @property
    def ndim(self) -> int:
        """The number of grid axes."""
        return len(self.lengths)

    def core(self, axis: int) -> int:
        """Return the number of cells along `axis` in one block, without halo."""
        return -(-self.lengths[axis] // self.parts[axis])

    def extent(self, axis: int) -> int:
        """Return the number of cells along `axis` in one block, halo included."""
        return self.core(axis) + sum(self.halo[axis])

    def position(self, axis: int) -> int:
        """Return the array axis that stores grid axis `axis`: a negative number, so that batch axes do not matter."""
        return self.order.index(axis) - self.ndim

    @functools.cached_property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of the array that holds one block."""
        return tuple(self.extent(axis) for axis in self.order)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The global shape of the array that holds the field, padding and halos included."""
        return tuple(self.parts[axis] * self.extent(axis) for axis in self.order)

    @property
    def true_shape(self) -> tuple[int, ...]:
        """The global shape without padding or halos."""
        return tuple(self.lengths[axis] for axis in self.order)

    @functools.cached_property
    def spec(self) -> PartitionSpec:
        """The partition spec of the stored axes."""
        return PartitionSpec(*(self.names[axis] for axis in self.order))

    @functools.cached_property
    def mesh_axes(self) -> tuple[str, ...]:
        """The mesh axes that shard the grid."""
        return tuple(flat_names(self.names))

    @property
    def has_halo(self) -> bool:
        """Whether blocks carry layers of their neighbours."""
        return any(map(any, self.halo))

    def padding(self, axis: int) -> int:
        """Return the number of cells of padding along `axis`, in all blocks together."""
        return self.parts[axis] * self.core(axis) - self.lengths[axis]

    def is_padded(self, axis: int) -> bool:
        """Return whether `axis` has padding."""
        return self.padding(axis) > 0

    @property
    def padded_axes(self) -> tuple[int, ...]:
        """The grid axes that have padding."""
        return tuple(filter(self.is_padded, range(self.ndim)))

    def lengths_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the lengths of the grid, if an array of `shape` is cut like these blocks and has no padding."""
        return tuple(shape[self.position(axis)] - self.parts[axis] * sum(self.halo[axis]) for axis in range(self.ndim))


def pencil_blocks(
    whole: int,
    lengths: tuple[int, ...],
    names: Sequence[MeshAxis | None],
    sizes: Sequence[int],
    order: tuple[int, ...] = (),
) -> Blocks:
    """Return the blocks of the pencil in which grid axis `whole` is not sharded.

    The mesh axes `names`, of `sizes` devices, shard the other grid axes: the first mesh axis shards the first of them,
    and so on. On a grid of three axes and mesh axes (a, b), z-pencils are `P(a, b, None)`, y-pencils `P(a, None, b)`,
    x-pencils `P(None, a, b)`. cuDecomp's pencils in C order are the same.
    """
    others = [axis for axis in range(len(lengths)) if axis != whole]
    dividing = dict(zip(others, zip(names, sizes)))
    pairs = [dividing.get(axis, (None, 1)) for axis in range(len(lengths))]
    return Blocks(lengths, tuple(size for _, size in pairs), tuple(name for name, _ in pairs), order)


def contiguous_order(ndim: int, whole: int) -> tuple[int, ...]:
    """Return the axes in cyclic order with `whole` last, which cuDecomp calls axis-contiguous."""
    return (*range(whole + 1, ndim), *range(whole + 1))


def mesh_sizes(devices: int, axes: int = 2) -> list[tuple[int, ...]]:
    """Return the sizes of all meshes that have `axes` axes and `devices` devices."""
    if axes <= 1:
        return [(devices,)] if axes else []
    divisors = [n for n in range(1, devices + 1) if devices % n == 0]
    return [(first, *rest) for first in divisors for rest in mesh_sizes(devices // first, axes - 1)]


def batch_spec(
    lead: tuple[int, ...], sizes: Mapping[str, int], fixed: tuple[BatchEntry, ...] = ()
) -> tuple[BatchEntry, ...]:
    """Choose the mesh axes that shard each leading axis. `sizes` maps the batch axes of the mesh to their sizes.

    Entries in `fixed` are kept. A leading axis is free if it has no entry, or the entry `PartitionSpec.UNCONSTRAINED`.
    Each batch axis of the mesh that no entry names shards a free leading axis whose length it divides, preferably one
    that no mesh axis shards yet. The field is replicated along other batch axes of the mesh.
    """
    given = [*fixed, *[PartitionSpec.UNCONSTRAINED] * (len(lead) - len(fixed))]
    free = [i for i, entry in enumerate(given) if entry is PartitionSpec.UNCONSTRAINED]
    entries = [() if i in free else entry_names(entry) for i, entry in enumerate(given)]
    used = {name for entry in entries for name in entry}
    for name in (name for name in sizes if name not in used):
        for i in sorted(free, key=lambda i: len(entries[i])):
            if lead[i] % math.prod(sizes[n] for n in (*entries[i], name)) == 0:
                entries[i] = (*entries[i], name)
                break
    return tuple(map(spec_entry, entries))
