"""Divides an array into the parts that each process writes or reads, and converts blocks to parts and back."""

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


# The first cell and one past the last cell along each axis.
Bounds = tuple[tuple[int, int], ...]
# The number of parts or chunks that are read or written at the same time. More threads are not faster.
THREADS = 4


@dataclass(frozen=True)
class Part:
    """A part of an array in a file: its bounds in natural order, without padding, and the process that writes it."""

    bounds: Bounds
    process: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of cells along each axis."""
        return tuple(stop - start for start, stop in self.bounds)


def parts_of(array: Array | np.ndarray, layout: Layout) -> dict[Part, Array | np.ndarray | None]:
    """Return the parts of an array, each with its block on this process, or `None` if this process does not have it.

    If several devices hold the same block, only the first device writes it. A NumPy array is one part, because every
    process has the whole array.
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
    """Return the cells of a part on the host, with the grid axes in natural order, or in reversed order with `reverse`.

    The device removes the padding and reorders the axes, which is faster than on the host. With `copy`, the result
    shares no memory with the block.
    """
    ndim, order = layout.blocks.ndim, layout.blocks.order
    lead = block.ndim - ndim
    stored = (*part.lengths[:lead], *(part.lengths[lead + axis] for axis in order))
    axes = [lead + order.index(axis) for axis in range(ndim)]
    axes = (*range(lead), *(reversed(axes) if reverse else axes))
    with no_ambient_mesh():  # The block lies on one device, not on the ambient mesh.
        cells = block if block.shape == stored else block[tuple(map(slice, stored))]
        if axes != tuple(range(block.ndim)):
            cells = cells.transpose(axes)
    on_host = isinstance(block, np.ndarray) or next(iter(block.devices())).platform == "cpu"
    is_view = on_host and (cells is block or isinstance(block, np.ndarray))
    return np.array(cells) if copy and is_view else np.asarray(cells)


def read_array(read: Callable[[Bounds], np.ndarray], shape: tuple[int, ...], layout: Layout, *, reverse: bool) -> Array:
    """Return an array in `layout`, whose blocks are read in parallel.

    `shape` is the true shape in natural order. `read` returns the cells within some bounds, with the axes in the order
    of `host_cells`. The devices reorder the axes and pad the blocks.
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
    """Return the lengths of the largest part. All parts begin at multiples of these lengths."""
    return tuple(max(lengths) for lengths in zip(*(part.lengths for part in parts)))


def chunk_shape(lengths: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of the chunks in which a file stores parts of these lengths: at most 16 MiB, a divisor of each.

    Because the shape divides `lengths`, every chunk belongs to one part, and so to one process.
    """
    chunk = list(lengths)
    while math.prod(chunk) * itemsize > 2**24 and max(chunk) > 1:
        axis = next(axis for axis, n in enumerate(chunk) if n > 1)
        chunk[axis] //= next(p for p in range(2, chunk[axis] + 1) if chunk[axis] % p == 0)
    return tuple(chunk)


def reversed_grid(values: tuple, ndim: int) -> tuple:
    """Return one value for each axis of an array, with the values of the last `ndim` axes, the grid axes, reversed."""
    return (*values[:-ndim], *reversed(values[-ndim:]))


def slices(bounds: Bounds) -> tuple[slice, ...]:
    """Return the index that selects the cells within `bounds`."""
    return tuple(slice(*pair) for pair in bounds)


def _natural(index: tuple[slice, ...], shape: tuple[int, ...], layout: Layout) -> Bounds:
    """Return the bounds, in natural order, of the true cells at `index` of a stored array of `shape`."""
    blocks = layout.blocks
    stored = [i.indices(n)[:2] for i, n in zip(index, shape)]
    grid = [stored[blocks.position(axis)] for axis in range(blocks.ndim)]
    cut = [(min(start, n), min(stop, n)) for (start, stop), n in zip(grid, blocks.lengths)]
    return (*stored[: -blocks.ndim], *cut)


def _natural_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    return (*shape[: -layout.blocks.ndim], *layout.blocks.lengths)
