"""How a grid is cut into blocks: which grid axis is whole on every device, and how a block lies in memory.

Grid axes are numbered from 0: x, y, z on a grid of three. Nothing here knows of arrays or devices; a `Blocks` is plain,
hashable data.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jax.sharding import PartitionSpec


Pencil = Literal["x", "y", "z"]
Triple = tuple[int, int, int]

AXES: tuple[Pencil, Pencil, Pencil] = ("x", "y", "z")


@dataclass(frozen=True)
class Blocks:
    """How a field of `lengths` cells is divided over devices and stored.

    - `lengths`, `parts`, `names`, `halo` go by grid axis: the cells, the number of blocks, the mesh axis that divides
        them (`None`: no axis), and the layers of neighbours' cells before and after each block.
    - `order` gives the grid axis stored at each position.

    A grid axis that its devices do not divide is padded at its end to the next multiple.
    """

    lengths: tuple[int, ...]
    parts: tuple[int, ...]
    names: tuple[str | None, ...]
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
        divided = [name for name, parts in zip(self.names, self.parts) if name is not None or parts > 1]
        if None in divided or len(set(divided)) < len(divided):
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
        return tuple(name for name in self.names if name is not None)

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
    names: Sequence[str | None],
    sizes: Sequence[int],
    *,
    axis_contiguous: bool = False,
) -> Blocks:
    """The pencil in which grid axis `whole` is undivided, on mesh axes `names` of `sizes` devices.

    The other grid axes take the mesh axes in their order: on a grid of three and mesh axes (a, b), z-pencils are
    `P(a, b, None)`, y-pencils `P(a, None, b)`, x-pencils `P(None, a, b)`. These are cuDecomp's pencils in C order.
    `axis_contiguous` stores the axes in cyclic order with `whole` last.
    """
    ndim = len(lengths)
    others = [axis for axis in range(ndim) if axis != whole]
    dividing = dict(zip(others, zip(names, sizes)))
    order = (*range(whole + 1, ndim), *range(whole + 1)) if axis_contiguous else ()
    return Blocks(
        lengths,
        tuple(dividing[axis][1] if axis in dividing else 1 for axis in range(ndim)),
        tuple(dividing[axis][0] if axis in dividing else None for axis in range(ndim)),
        order,
    )


def mesh_sizes(devices: int) -> list[tuple[int, int]]:
    """The sizes `(rows, columns)` of all meshes of so many devices."""
    return [(rows, devices // rows) for rows in range(1, devices + 1) if devices % rows == 0]
