"""Divides an array into the parts that processes write or read. Converts blocks to parts, and parts to blocks."""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from .._common.host import fitting, host_array
from .._common.sharding import no_ambient_mesh
from .._core.layout import Layout


# Along each axis, the first cell and the cell after the last.
Bounds = tuple[tuple[int, int], ...]
# The number of parts or chunks that are read or written at the same time. More threads are not faster.
THREADS = 4


@dataclass(frozen=True)
class Part:
    """A part of an array in a file: its bounds, with the axes in natural order, and the process that writes it.

    The natural order of the axes is x, y, z. In a file, arrays have no padding.
    """

    bounds: Bounds
    process: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of cells along each axis."""
        return tuple(stop - start for start, stop in self.bounds)


def parts_of(name: str, array: Array | np.ndarray, layout: Layout) -> dict[Part, Array | np.ndarray | None]:
    """Return the block of each part of an array, or `None` in place of a block that this process does not have.

    If several devices hold the same block, the process of the first device writes it. A NumPy array is a single part,
    because every process has the whole array. Raises `ValueError` for an array `name` that hides values.
    """
    if not isinstance(array, Array):
        bounds = tuple((0, n) for n in _natural_shape(array.shape, layout))
        return {Part(bounds, processes_of(layout.mesh)[0]): host_array(array, name)}
    blocks = {shard.device: shard.data for shard in array.addressable_shards}
    parts, seen = {}, set()
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        bounds = _natural(index, array.shape, layout)
        if bounds not in seen and all(start < stop for start, stop in bounds):
            seen.add(bounds)
            parts[Part(bounds, device.process_index)] = blocks.get(device)
    return parts


def processes_of(mesh: Mesh | AbstractMesh) -> tuple[int, ...]:
    """Return the processes that own devices of a mesh, in ascending order. An abstract mesh has none."""
    return tuple(sorted({device.process_index for device in mesh.devices.flat})) if isinstance(mesh, Mesh) else ()


def host_cells(block: Array | np.ndarray, part: Part, layout: Layout, *, copy: bool) -> np.ndarray:
    """Return the cells of a part on the host, with the axes in natural order and without padding.

    If `copy` is False, the result may be a view of the block.
    """
    ndim, order = layout.blocks.ndim, layout.blocks.order
    cells = _natural_view(host_array(block), part.lengths, ndim, order)
    on_host = isinstance(block, np.ndarray) or next(iter(block.devices())).platform == "cpu"
    return np.array(cells, order="K") if copy and on_host else cells


def read_array(
    name: str, read: Callable[[Bounds, np.ndarray], None], shape: tuple[int, ...], dtype: np.dtype, layout: Layout
) -> Array:
    """Return the array `name` of a file in `layout`. Its blocks are read in parallel.

    `shape` is the shape of the array without padding, in natural order. `read(bounds, cells)` fills `cells` with the
    cells of the file within `bounds`.
    """
    blocks = layout.blocks
    stored = (*shape[: -blocks.ndim], *blocks.shape)
    sharding = layout.sharding_of(stored)
    places: dict[Any, Any] = dict(sharding.addressable_devices_indices_map(stored))

    def block(index: tuple[slice, ...]) -> np.ndarray:
        bounds = _natural(index, stored, layout)
        lengths = tuple(stop - start for start, stop in bounds)
        whole = _aligned(tuple(len(range(*i.indices(n))) for i, n in zip(index, stored)), dtype)
        if math.prod(lengths) < whole.size:
            whole[...] = 0
        if math.prod(lengths):
            read(bounds, _natural_view(whole, lengths, blocks.ndim, blocks.order))
        return whole

    with ThreadPoolExecutor(THREADS) as pool, no_ambient_mesh():
        wholes = {device: pool.submit(block, index) for device, index in places.items()}
        arrays = [jax.device_put(fitting(whole.result(), name), device) for device, whole in wholes.items()]
        return jax.make_array_from_single_device_arrays(stored, sharding, arrays)


def part_lengths(parts: Iterable[Part]) -> tuple[int, ...]:
    """Return the lengths of the largest part. All parts begin at multiples of these lengths."""
    return tuple(max(lengths) for lengths in zip(*(part.lengths for part in parts)))


def chunk_shape(lengths: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of the chunks in which a file stores parts of these lengths. A chunk has at most 16 MiB.

    The shape divides `lengths`. So every chunk belongs to one part, and one process writes it.
    """
    chunk = list(lengths)
    while math.prod(chunk) * itemsize > 2**24 and max(chunk) > 1:
        axis = next(axis for axis, n in enumerate(chunk) if n > 1)
        chunk[axis] //= next(p for p in range(2, chunk[axis] + 1) if chunk[axis] % p == 0)
    return tuple(chunk)


def reversed_grid(values: tuple, ndim: int) -> tuple:
    """Reverse the last `ndim` of `values`. Each value belongs to an array axis; the last values belong to grid axes."""
    return (*values[:-ndim], *reversed(values[-ndim:]))


def slices(bounds: Bounds) -> tuple[slice, ...]:
    """Return the index that selects the cells within `bounds`."""
    return tuple(slice(*pair) for pair in bounds)


def _natural_view(block: np.ndarray, lengths: tuple[int, ...], ndim: int, order: tuple[int, ...]) -> np.ndarray:
    """Return a view of the cells of a block, without padding and with the axes in natural order.

    `lengths` are the lengths of the view, and `order` is the order in which the last `ndim` axes are stored.
    """
    lead = block.ndim - ndim
    stored = (*lengths[:lead], *(lengths[lead + axis] for axis in order))
    axes = (*range(lead), *(lead + order.index(axis) for axis in range(ndim)))
    return block[tuple(map(slice, stored))].transpose(axes)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an empty array. Its alignment lets JAX use its memory for a block on a CPU, without a copy."""
    size, alignment = math.prod(shape) * dtype.itemsize, 64
    memory = np.empty(size + alignment, np.uint8)
    first = -memory.ctypes.data % alignment
    return memory[first : first + size].view(dtype).reshape(shape)


def _natural(index: tuple[slice, ...], shape: tuple[int, ...], layout: Layout) -> Bounds:
    """Return the bounds, in natural order, of the cells at `index` of a stored array of `shape`, without padding."""
    blocks = layout.blocks
    stored = [i.indices(n)[:2] for i, n in zip(index, shape)]
    grid = [stored[blocks.position(axis)] for axis in range(blocks.ndim)]
    cut = [(min(start, n), min(stop, n)) for (start, stop), n in zip(grid, blocks.lengths)]
    return (*stored[: -blocks.ndim], *cut)


def _natural_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    return (*shape[: -layout.blocks.ndim], *layout.blocks.lengths)
