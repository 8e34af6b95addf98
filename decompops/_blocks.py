"""Pencils: which grid axis every device holds whole, and how a block lies in memory.

Grid axes are numbered x, y, z = 0, 1, 2. Nothing here knows of JAX arrays; a `Blocks` is plain, hashable data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jax.sharding import PartitionSpec


Pencil = Literal["x", "y", "z"]
Triple = tuple[int, int, int]
Names = tuple[str | None, str | None, str | None]

AXES: tuple[Pencil, Pencil, Pencil] = ("x", "y", "z")
NATURAL: Triple = (0, 1, 2)
# cuDecomp's "axis-contiguous" orders: cyclic, with the pencil's local axis stored last.
_CONTIGUOUS: dict[Pencil, Triple] = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}
NO_HALO = ((0, 0), (0, 0), (0, 0))


@dataclass(frozen=True)
class Blocks:
    """How a field of `lengths` cells is divided over devices and stored.

    `lengths`, `parts`, `names` and `halo` go by grid axis; `order` gives the grid axis stored at each position. A grid
    axis that its devices do not divide is padded at its end to the next multiple.
    """

    lengths: Triple
    parts: Triple
    names: Names
    order: Triple = NATURAL
    halo: tuple[tuple[int, int], ...] = NO_HALO

    def core(self, axis: int) -> int:
        """Cells of `axis` in one block, without halo."""
        return -(-self.lengths[axis] // self.parts[axis])

    def extent(self, axis: int) -> int:
        """Cells of `axis` in one block, halo included."""
        return self.core(axis) + sum(self.halo[axis])

    def position(self, axis: int) -> int:
        """Where `axis` is stored, counted from the end (-3, -2 or -1): leading batch axes do not matter."""
        return self.order.index(axis) - 3

    @property
    def block_shape(self) -> tuple[int, ...]:
        return tuple(self.extent(axis) for axis in self.order)

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape of the array that holds the field: padding and halos included."""
        return tuple(self.parts[axis] * self.extent(axis) for axis in self.order)

    @property
    def true_shape(self) -> tuple[int, ...]:
        """The global shape without padding or halos."""
        return tuple(self.lengths[axis] for axis in self.order)

    @property
    def spec(self) -> PartitionSpec:
        return PartitionSpec(*(self.names[axis] for axis in self.order))

    def padding(self, axis: int) -> int:
        """Cells of `axis` beyond the end of the field, in all blocks together."""
        return self.parts[axis] * self.core(axis) - self.lengths[axis]

    def is_padded(self, axis: int) -> bool:
        return self.padding(axis) > 0

    @property
    def padded_axes(self) -> tuple[int, ...]:
        return tuple(filter(self.is_padded, range(3)))

    def lengths_of(self, shape: Sequence[int]) -> Triple:
        """The lengths of an unpadded field whose array has `shape` in this layout."""
        x, y, z = (shape[self.position(axis)] - self.parts[axis] * sum(self.halo[axis]) for axis in range(3))
        return x, y, z


def pencil_blocks(
    pencil: Pencil,
    lengths: Triple,
    axes: tuple[str, str | None],
    sizes: tuple[int, int],
    *,
    axis_contiguous: bool = False,
) -> Blocks:
    """The layout of `pencil` on mesh axes `axes = (a, b)` of `sizes` devices.

    z-pencil `P(a, b, None)`, y-pencil `P(a, None, b)`, x-pencil `P(None, a, b)`: cuDecomp's pencils in C order.
    """
    (a, b), (rows, columns) = axes, sizes
    names: dict[Pencil, Names] = {
        "z": (a, b, None),
        "y": (a, None, b),
        "x": (None, a, b),
    }
    parts: dict[Pencil, Triple] = {
        "z": (rows, columns, 1),
        "y": (rows, 1, columns),
        "x": (1, rows, columns),
    }
    order = _CONTIGUOUS[pencil] if axis_contiguous else NATURAL
    return Blocks(lengths, parts[pencil], names[pencil], order)
