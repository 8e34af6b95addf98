"""How a grid is cut into blocks: which grid axis is whole on every device, and how a block lies in memory.

Grid axes are numbered from 0: x, y, z on a grid of three. Nothing here knows of arrays or devices; a `Blocks` is plain,
hashable data.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec


# A pencil, by the name of the grid axis that is whole in it, or by that axis' number.
Pencil = str | int
# What divides a grid axis: one axis of the mesh, or several at once, the first one major.
MeshAxis = str | tuple[str, ...]
# One entry of a partition spec; `PartitionSpec.UNCONSTRAINED` leaves the choice open.
BatchEntry = Any


def axis_names(ndim: int) -> tuple[str, ...]:
    """The names of the axes of a grid: x, y, z where there are at most three, else x0, x1, ..."""
    return ("x", "y", "z")[:ndim] if ndim <= 3 else tuple(f"x{axis}" for axis in range(ndim))


def entry_names(entry: Any) -> tuple[str, ...]:
    """The mesh axes in one entry of a partition spec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def flat_names(entries: Iterable[MeshAxis | None]) -> Iterator[str]:
    """The mesh axes in several entries of a partition spec."""
    return itertools.chain.from_iterable(map(entry_names, entries))


def spec_entry(names: Iterable[str]) -> MeshAxis | None:
    """The entry of a partition spec for some mesh axes."""
    names = tuple(names)
    return names[0] if len(names) == 1 else names or None


@dataclass(frozen=True)
class Blocks:
    """How a field of `lengths` cells is divided over devices and stored.

    - `lengths`, `parts`, `names`, `halo` go by grid axis: the cells, the number of blocks, the mesh axis or axes that
        divide them (`None`: no axis), and the layers of neighbours' cells before and after each block.
    - `order` gives the grid axis stored at each position.

    A grid axis that its devices do not divide is padded at its end to the next multiple.
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
            raise ValueError(f"`names` must have a mesh axis of its own for each axis of several parts; got {self}.")

    @property
    def ndim(self) -> int:
        """How many axes the grid has."""
        return len(self.lengths)

    def core(self, axis: int) -> int:
        """Cells of `axis` in one block, without halo."""
        return -(-self.lengths[axis] // self.parts[axis])

    def extent(self, axis: int) -> int:
        """Cells of `axis` in one block, halo included."""
        return self.core(axis) + sum(self.halo[axis])

    def position(self, axis: int) -> int:
        """Where `axis` is stored, counted from the end: leading batch axes do not matter."""
        return self.order.index(axis) - self.ndim

    @functools.cached_property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of the array that holds one block."""
        return tuple(self.extent(axis) for axis in self.order)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The global shape of the array that holds the field: padding and halos included."""
        return tuple(self.parts[axis] * self.extent(axis) for axis in self.order)

    @property
    def true_shape(self) -> tuple[int, ...]:
        """The global shape without padding or halos."""
        return tuple(self.lengths[axis] for axis in self.order)

    @functools.cached_property
    def spec(self) -> PartitionSpec:
        """The mesh axes that divide the stored axes."""
        return PartitionSpec(*(self.names[axis] for axis in self.order))

    @functools.cached_property
    def mesh_axes(self) -> tuple[str, ...]:
        """The mesh axes that divide the grid."""
        return tuple(flat_names(self.names))

    @property
    def has_halo(self) -> bool:
        """Whether blocks carry layers of their neighbours."""
        return any(map(any, self.halo))

    def padding(self, axis: int) -> int:
        """Cells of `axis` beyond the end of the field, in all blocks together."""
        return self.parts[axis] * self.core(axis) - self.lengths[axis]

    def is_padded(self, axis: int) -> bool:
        """Whether `axis` is longer in the array than in the field."""
        return self.padding(axis) > 0

    @property
    def padded_axes(self) -> tuple[int, ...]:
        """The axes that are longer in the array than in the field."""
        return tuple(filter(self.is_padded, range(self.ndim)))

    def lengths_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The lengths of an unpadded field whose array has `shape` when it is cut like this."""
        return tuple(shape[self.position(axis)] - self.parts[axis] * sum(self.halo[axis]) for axis in range(self.ndim))


def pencil_blocks(
    whole: int,
    lengths: tuple[int, ...],
    names: Sequence[MeshAxis | None],
    sizes: Sequence[int],
    order: tuple[int, ...] = (),
) -> Blocks:
    """The pencil in which grid axis `whole` is undivided, on mesh axes `names` of `sizes` devices, stored in `order`.

    The other grid axes take the mesh axes in their order: on a grid of three and mesh axes (a, b), z-pencils are
    `P(a, b, None)`, y-pencils `P(a, None, b)`, x-pencils `P(None, a, b)`. These are cuDecomp's pencils in C order.
    """
    others = [axis for axis in range(len(lengths)) if axis != whole]
    dividing = dict(zip(others, zip(names, sizes)))
    pairs = [dividing.get(axis, (None, 1)) for axis in range(len(lengths))]
    return Blocks(lengths, tuple(size for _, size in pairs), tuple(name for name, _ in pairs), order)


def contiguous_order(ndim: int, whole: int) -> tuple[int, ...]:
    """The axes in cyclic order with `whole` last: what cuDecomp calls axis-contiguous."""
    return (*range(whole + 1, ndim), *range(whole + 1))


def mesh_sizes(devices: int, axes: int = 2) -> list[tuple[int, ...]]:
    """The sizes of all meshes of so many devices with so many axes."""
    if axes <= 1:
        return [(devices,)] if axes else []
    divisors = [n for n in range(1, devices + 1) if devices % n == 0]
    return [(first, *rest) for first in divisors for rest in mesh_sizes(devices // first, axes - 1)]


def batch_spec(
    lead: tuple[int, ...], sizes: Mapping[str, int], fixed: tuple[BatchEntry, ...] = ()
) -> tuple[BatchEntry, ...]:
    """Choose the mesh axes that shard each leading axis; `sizes` are those of the batch axes of the mesh.

    Entries in `fixed` stand, except those that are `PartitionSpec.UNCONSTRAINED`. Each remaining batch axis of the
    mesh goes to a free leading axis that it divides, the first that has none yet; one that divides no leading axis
    leaves the field replicated along it.
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
