"""Pencils: which grid axis every device holds whole, and how a block lies in memory.

Grid axes are numbered x, y, z = 0, 1, 2. Nothing here knows of JAX arrays; a `Layout` is plain, hashable data.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex

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
class Layout:
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


def pencil_layout(
    pencil: Pencil,
    lengths: Triple,
    axes: tuple[str, str | None],
    sizes: tuple[int, int],
    *,
    axis_contiguous: bool = False,
) -> Layout:
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
    return Layout(lengths, parts[pencil], names[pencil], order)


def check_pencil(name: str, value: object) -> None:
    if not isinstance(value, str) or value not in AXES:
        raise ValueError(f'`{name}` must be "x", "y" or "z"; got {value!r}.')


def check_shape(name: str, shape: Any) -> Triple:
    try:
        nx, ny, nz = (operator.index(n) for n in shape)
        valid = min(nx, ny, nz) > 0
    except (TypeError, ValueError):
        nx, ny, nz, valid = 0, 0, 0, False
    if not valid:
        raise ValueError(f"`{name}` must be three positive integers (nx, ny, nz); got {shape!r}.")
    return nx, ny, nz


def check_one_or_three(name: str, value: Any) -> Triple:
    try:
        return check_shape(name, (value,) * 3 if isinstance(value, SupportsIndex) else value)
    except ValueError:
        raise ValueError(f"`{name}` must be one or three positive integers, along x, y, z; got {value!r}.") from None


def check_up_to(name: str, value: Any, most: Triple, what: str) -> Triple:
    """One or three positive integers, along x, y, z, of which none exceeds `most`."""
    try:
        counts = check_one_or_three(name, value)
    except ValueError:
        counts = None
    if counts is None or any(count > limit for count, limit in zip(counts, most)):
        raise ValueError(f"`{name}` must be one to {most} {what}; got {value!r}.")
    return counts


def check_count(name: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"`{name}` must be an integer of at least one; got {value!r}.")
    return count


def check_flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False; got {value!r}.")
    return value
