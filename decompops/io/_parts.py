"""Which process writes which part of an array, and how a part is read for a block."""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._layout import Layout
from .._sharding import no_ambient_mesh


# The first cell along each axis, and the one behind the last.
Bounds = tuple[tuple[int, int], ...]
# How many parts or chunks are read or written at the same time. More keep no disk busier.
THREADS = 4


@dataclass(frozen=True)
class Part:
    """A part of a file's array: where it is, in natural order and without padding, and the process that writes it."""

    bounds: Bounds
    process: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many cells it has along each axis."""
        return tuple(stop - start for start, stop in self.bounds)


def parts_of(array: Array | np.ndarray, layout: Layout) -> dict[Part, Array | np.ndarray | None]:
    """The parts of an array, with the stored block of each one that this process writes, and `None` for the others.

    Of equal blocks on several devices only the first one is written. A NumPy array, which each process has as a whole,
    is one part.
    """
    if not isinstance(array, Array):
        return {Part(tuple((0, n) for n in _natural_shape(array.shape, layout)), 0): array}
    blocks = {shard.device: shard.data for shard in array.addressable_shards}
    parts, seen = {}, set()
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        bounds = _natural(index, array.shape, layout)
        if bounds not in seen and all(start < stop for start, stop in bounds):
            seen.add(bounds)
            parts[Part(bounds, device.process_index)] = blocks.get(device)
    return parts


def host_cells(block: Array | np.ndarray, part: Part, layout: Layout, *, reverse: bool, copy: bool) -> np.ndarray:
    """The cells of a part on the host, with the grid axes in their order, or from the last to the first with `reverse`.

    Padding is cut off, and axes are brought into order, on the device, where that is fast. With `copy` the result
    shares no memory with the block.
    """
    ndim, order = layout.blocks.ndim, layout.blocks.order
    lead = block.ndim - ndim
    stored = (*part.lengths[:lead], *(part.lengths[lead + axis] for axis in order))
    axes = [lead + order.index(axis) for axis in range(ndim)]
    axes = (*range(lead), *(reversed(axes) if reverse else axes))
    with no_ambient_mesh():  # A device works on its block alone.
        cells = block if block.shape == stored else block[tuple(map(slice, stored))]
        if axes != tuple(range(block.ndim)):
            cells = cells.transpose(axes)
    on_host = isinstance(block, np.ndarray) or next(iter(block.devices())).platform == "cpu"
    is_view = on_host and (cells is block or isinstance(block, np.ndarray))
    return np.array(cells) if copy and is_view else np.asarray(cells)


def read_array(read: Callable[[Bounds], np.ndarray], shape: tuple[int, ...], layout: Layout, *, reverse: bool) -> Array:
    """An array in `layout` whose blocks are read at the same time, part by part.

    `shape` is the true one in natural order. `read` returns the cells of a part as `host_cells` does. Devices bring
    them into order, and pad them.
    """
    blocks = layout.blocks
    lead = len(shape) - blocks.ndim
    stored = (*shape[:lead], *blocks.shape)
    sharding = layout.sharding_of(stored)
    places: dict[Any, Any] = dict(sharding.addressable_devices_indices_map(stored))
    within = [axis if not reverse else blocks.ndim - 1 - axis for axis in blocks.order]
    axes = (*range(lead), *(lead + axis for axis in within))

    def block(part: np.ndarray, device: Any, index: Any) -> Array:
        lengths = [len(range(*i.indices(n))) for i, n in zip(index, stored)]
        cells = jax.device_put(part, device).transpose(axes)
        widths = [(0, length - n) for length, n in zip(lengths, cells.shape)]
        return jnp.pad(cells, widths) if any(map(any, widths)) else cells

    with ThreadPoolExecutor(THREADS) as pool, no_ambient_mesh():
        parts = {device: pool.submit(read, _natural(index, stored, layout)) for device, index in places.items()}
        arrays = [block(parts[device].result(), device, index) for device, index in places.items()]
        return jax.make_array_from_single_device_arrays(stored, sharding, arrays)


def part_lengths(parts: Iterable[Part]) -> tuple[int, ...]:
    """The lengths of the largest part, at multiples of which the others begin."""
    return tuple(max(lengths) for lengths in zip(*(part.lengths for part in parts)))


def chunk_shape(lengths: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The shape of the chunks that a file stores parts of these lengths in: one that divides them, of at most 16 MiB.

    Every chunk then belongs to one part, and so to one process.
    """
    chunk = list(lengths)
    while math.prod(chunk) * itemsize > 2**24 and max(chunk) > 1:
        axis = next(axis for axis, n in enumerate(chunk) if n > 1)
        chunk[axis] //= next(p for p in range(2, chunk[axis] + 1) if chunk[axis] % p == 0)
    return tuple(chunk)


def reversed_grid(values: tuple, ndim: int) -> tuple:
    """What belongs to each axis of an array, with that of the `ndim` last ones, the grid's, in reverse order."""
    return (*values[:-ndim], *reversed(values[-ndim:]))


def slices(bounds: Bounds) -> tuple[slice, ...]:
    """The cells within bounds, as an index."""
    return tuple(slice(*pair) for pair in bounds)


def _natural(index: tuple[slice, ...], shape: tuple[int, ...], layout: Layout) -> Bounds:
    """The bounds of the true cells at `index` of a stored array of `shape`, in natural order."""
    blocks = layout.blocks
    stored = [i.indices(n)[:2] for i, n in zip(index, shape)]
    grid = [stored[blocks.position(axis)] for axis in range(blocks.ndim)]
    cut = [(min(start, n), min(stop, n)) for (start, stop), n in zip(grid, blocks.lengths)]
    return (*stored[: -blocks.ndim], *cut)


def _natural_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    return (*shape[: -layout.blocks.ndim], *layout.blocks.lengths)
