"""HDF5: one file, in which the grid axes have the order z, y, x, as in CF conventions and ParaView.

h5py creates the file and allocates space for every chunk. Each process then writes and reads its chunks with plain file
operations, without h5py. So several processes can write at the same time, with any build of HDF5, at the speed of the
disk. (h5py could write in parallel only with a build of HDF5 for MPI. On a full disk, writing through h5py may end in a
segmentation fault.)
"""

import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from .._common.ownership import in_the_way, is_of_process, open_regular
from ._contents import LENGTHS, Contents, Variable, check_contents, check_format, damaged, reading
from ._format import AbstractFile, AbstractFormat, Cells
from ._parallel import in_parallel
from ._parts import Bounds, reversed_grid, slices
from ._seal import is_intact, seal
from ._storable import OF_NUMPY
from ._xdmf import DIMENSIONS, is_own_xdmf, warn_of_hidden, xdmf


# The name that netCDF gives to a dimension without coordinates.
WITHOUT_VALUES = "This is a netCDF dimension but not a netCDF variable"
# The group that holds the CRC-32 of every chunk, for each array in the order of its chunks. No array has this name.
CHECKSUMS = "CRC-32 of chunks"
# HDF5 writes at most this many bytes in addition to the arrays. HDF5 may crash on a full disk. So plain file operations
# first write the same number of bytes: on a full disk, they raise an error.
METADATA_BYTES = 2**20
# The number of bytes that a thread writes or reads at once. These bytes fit into the cache while they are reordered.
WRITTEN_BYTES, READ_BYTES = 2**21, 2**18


class HDF5(AbstractFormat):
    """A snapshot is an HDF5 file. For fields with two or three axes, an XDMF file next to it lets ParaView open it."""

    suffixes = (".h5", ".hdf5")
    dtypes = OF_NUMPY

    def check(self, path: Path, contents: Contents) -> None:
        _h5py()  # Without h5py, every process raises the error here, before a `Writer` begins in the background.
        if ":" in path.name:
            raise ValueError(
                f"`path` must have no colon in the name of an HDF5 file, because XDMF cannot refer to it; got "
                f"{str(path)!r}."
            )
        if _has_xdmf(contents):
            warn_of_hidden(contents, stacklevel=4)

    def paths(self, path: Path, contents: Contents) -> tuple[Path, ...]:
        # The name u.hdf5 keeps its suffix, so that u.h5 and u.hdf5 have different XDMF files.
        return (path, path.with_name(f"{path.name.removesuffix('.h5')}.xdmf"))[: 1 + _has_xdmf(contents)]

    def check_own(self, path: Path) -> None:
        if not os.path.lexists(path):
            return
        try:
            if path.suffix == ".xdmf":
                is_own = not path.is_symlink() and is_own_xdmf(path)
            else:
                with open_regular(path) as file:
                    is_own = not path.is_symlink() and is_intact(file) is True
        except FileNotFoundError:
            return
        except OSError as error:
            if is_of_process(error):
                raise
            is_own = False
        if not is_own:
            raise in_the_way(path)

    def stamp(self, path: Path) -> bytes | None:
        return b""

    def create(self, path: Path, contents: Contents, chunks: Mapping[str, tuple[int, ...]]) -> None:
        ndim = len(contents.lengths)
        with path.open("wb") as trial:
            trial.write(bytes(METADATA_BYTES))
        with _os_errors(), _h5py().File(path, "w") as file:
            file.attrs.update(contents.attributes)
            for name, values in contents.coordinates.items():
                file[name] = values
                if values.ndim:
                    file[name].make_scale(name)
            for name, variable in contents.variables.items():
                shape, dims = reversed_grid(variable.shape, ndim), reversed_grid(variable.dims, ndim)
                chunk = reversed_grid(chunks[name], ndim)
                counts = [-(-n // length) for n, length in zip(shape, chunk)]
                _reserve(file, name, shape, variable.dtype, chunk)
                _reserve(file.require_group(CHECKSUMS), name, (math.prod(counts),), np.dtype("<u4"), None)
                for axis, (dim, length) in enumerate(zip(dims, shape)):
                    if dim not in file:
                        file.create_dataset(dim, (length,), "f4").make_scale(f"{WITHOUT_VALUES}.{length:10d}")
                    file[name].dims[axis].attach_scale(file[dim])
                if "time" in contents.coordinates:
                    file[name].attrs["coordinates"] = "time"  # xarray needs this attribute.
            for name, unit in contents.units.items():
                file[name].attrs["units"] = unit
        seal(path, (gap for places in _places(path, contents.variables).values() for gap in places.gaps()))
        for other in self.paths(path, contents)[1:]:
            with other.open("wb") as file:
                file.write(xdmf(other, [(path, contents)]))
                file.flush()
                os.fsync(file.fileno())

    def write(self, path: Path, contents: Contents, parts: Iterable[Cells]) -> None:
        ndim, places = len(contents.lengths), _places(path, contents.variables)

        def tasks(file: int) -> Iterator[tuple]:
            for name, bounds, cells in parts:
                reversed_cells = _reversed(cells, ndim)
                for chunk, there, within in places[name].chunks(reversed_grid(bounds, ndim)):
                    yield places[name], file, chunk, there, reversed_cells[within]

        with path.open("r+b", buffering=0) as file:
            in_parallel(_Places.put, tasks(file.fileno()))
            os.fsync(file.fileno())

    def open(self, path: Path) -> AbstractFile:
        return _HDF5File(path)


def _has_xdmf(contents: Contents) -> bool:
    return contents.space == "field" and len(contents.lengths) in DIMENSIONS


class _HDF5File(AbstractFile):
    """An HDF5 file. Until it is closed, it can be read to its end even if another file replaces it meanwhile."""

    def __init__(self, path: Path):
        self.path = path
        with reading(path):
            self.file = open_regular(path)
        try:
            self._describe()
        except BaseException:
            self.close()
            raise

    def _describe(self) -> None:
        path = self.path
        with reading(path):
            intact = is_intact(self.file)
        if intact is False:  # HDF5 may crash when it opens such a file.
            raise damaged(path, "the checksum of its description is wrong")
        with reading(path), _h5py().File(self.file, "r") as file:
            attributes = {name: _plain(value) for name, value in file.attrs.items()}
        check_format(attributes, path)
        if intact is None:
            raise damaged(path, "its end is missing, or another program has changed it")
        with reading(path), _h5py().File(self.file, "r") as file:
            variables, coordinates, units = {}, {}, {}
            ndim, size = len(attributes[LENGTHS]), os.fstat(self.file.fileno()).st_size
            for name in file:
                if not isinstance(file.get(name, getlink=True), _h5py().HardLink):
                    raise ValueError(f"`{name}` is a link")
                dataset = file[name]
                if name == CHECKSUMS or dataset.attrs.get("NAME", b"").startswith(WITHOUT_VALUES.encode()):
                    continue
                if dataset.is_scale or not dataset.ndim:
                    _check_stored(dataset, size)
                    coordinates[name] = np.asarray(dataset[()])
                else:
                    dims = tuple(dimension[0].name.rpartition("/")[2] for dimension in dataset.dims)
                    dims, shape = (reversed_grid(values, ndim) for values in (dims, dataset.shape))
                    variables[name] = Variable(dims, shape, dataset.dtype)
                if "units" in dataset.attrs:
                    units[name] = str(dataset.attrs["units"])
            self.contents = check_contents(Contents(variables, coordinates, units, attributes))
            self.places = {name: _Places(file[name], file[CHECKSUMS][name]) for name in variables}
            for places in self.places.values():
                places.check(size)

    def read(self, name: str, bounds: Bounds, cells: np.ndarray) -> None:
        ndim, places = len(self.contents.lengths), self.places[name]
        bounds, cells = reversed_grid(bounds, ndim), _reversed(cells, ndim)
        with (
            reading(self.path, f"`{name}`"),
            open_regular(self.path) if self.file.closed else nullcontext(self.file) as file,
        ):
            number = file.fileno()
            chunks = ((number, chunk, there, cells[within]) for chunk, there, within in places.chunks(bounds))
            in_parallel(places.get, chunks)

    def close(self) -> None:
        self.file.close()


class _Places:
    """The places of the chunks of an array in a file, and the place of the checksums of these chunks."""

    def __init__(self, dataset: Any, checksums: Any):
        self.chunk, self.dtype = dataset.chunks, dataset.dtype
        self.counts = [-(-n // length) for n, length in zip(dataset.shape, self.chunk)]
        self.offsets = {}
        # To ask for one chunk after the other would take a time that is quadratic in the number of chunks.
        dataset.id.chunk_iter(lambda info: self.offsets.update({info.chunk_offset: info.byte_offset}))
        self.checksums = checksums.id.get_offset()
        if len(self.offsets) != math.prod(self.counts) or self.checksums is None:
            raise ValueError(f"`{dataset.name}` lacks space for some of its chunks")

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the positions in the file where each chunk begins and ends, and then those of the checksums."""
        size = math.prod(self.chunk) * self.dtype.itemsize
        for offset in self.offsets.values():
            yield offset, offset + size
        yield self.checksums, self.checksums + 4 * len(self.offsets)

    def check(self, size: int) -> None:
        """Raise `ValueError` if the chunks do not lie one after the other in a file of `size` bytes."""
        starts, stops = zip(*sorted(self.gaps()))
        if any(stop > start for stop, start in zip(stops, (*starts[1:], size))):
            raise ValueError("some of its chunks have the same place, or are beyond its end")

    def chunks(self, bounds: Bounds) -> Iterator[tuple[tuple[int, ...], Bounds, tuple[slice, ...]]]:
        """Yield each chunk that overlaps with `bounds`.

        A chunk is described by its first cell, by the bounds of the overlap counted from this cell, and by the index of
        the overlap in an array that holds the cells within `bounds`.
        """
        firsts = [range(start // n * n, stop, n) for (start, stop), n in zip(bounds, self.chunk)]
        for chunk in product(*firsts):
            ends = [(max(a, c), min(b, c + n)) for (a, b), c, n in zip(bounds, chunk, self.chunk)]
            there = tuple((start - c, stop - c) for (start, stop), c in zip(ends, chunk))
            yield chunk, there, slices(tuple((start - a, stop - a) for (start, stop), (a, _) in zip(ends, bounds)))

    def put(self, file: int, chunk: tuple[int, ...], there: Bounds, cells: np.ndarray) -> None:
        """Write a chunk. It has `cells` within the bounds `there`, and zeros beyond the end of the array."""
        offset, checksum = self.offsets[chunk], 0
        for slab in _slabs(self.chunk, self.dtype.itemsize, WRITTEN_BYTES):
            buffer = np.zeros([stop - start for start, stop in slab], self.dtype)
            of_slab, of_cells = _overlap(slab, there)
            _reorder(cells[of_cells], buffer[of_slab])
            data = buffer.data.cast("B")
            checksum = zlib.crc32(data, checksum)
            _write_at(file, data, offset)
            offset += len(data)
        _write_at(file, memoryview(checksum.to_bytes(4, "little")), self._checksum(chunk))
        os.fdatasync(file)  # This keeps the disk busy while other threads reorder the next chunks.

    def get(self, file: int, chunk: tuple[int, ...], there: Bounds, cells: np.ndarray) -> None:
        """Fill `cells` with the cells of a chunk within `there`. Raises `ValueError` if the chunk is damaged."""
        offset, checksum, expected = self.offsets[chunk], 0, bytearray(4)
        for slab in _slabs(self.chunk, self.dtype.itemsize, READ_BYTES):
            buffer = np.empty([stop - start for start, stop in slab], self.dtype)
            data = buffer.data.cast("B")
            _read_at(file, data, offset)
            checksum = zlib.crc32(data, checksum)
            offset += len(data)
            of_slab, of_cells = _overlap(slab, there)
            cells[of_cells] = buffer[of_slab]
        _read_at(file, memoryview(expected), self._checksum(chunk))
        if checksum != int.from_bytes(expected, "little"):
            raise ValueError(f"the checksum of the chunk at {chunk} is wrong")

    def _checksum(self, chunk: tuple[int, ...]) -> int:
        """Return the offset of the checksum of a chunk in the file."""
        number = np.ravel_multi_index([c // n for c, n in zip(chunk, self.chunk)], self.counts)
        return self.checksums + 4 * int(number)


def _reversed(cells: np.ndarray, ndim: int) -> np.ndarray:
    """Return a view of `cells` in which the last `ndim` axes, the grid axes, are in reversed order."""
    return cells.transpose(reversed_grid(tuple(range(cells.ndim)), ndim))


def _slabs(chunk: tuple[int, ...], itemsize: int, most: int) -> Iterator[Bounds]:
    """Yield the bounds of the parts of a chunk to write or read at once: about `most` contiguous bytes each."""
    axis = next(axis for axis in range(len(chunk)) if math.prod(chunk[axis + 1 :]) * itemsize <= most)
    rows = most // (math.prod(chunk[axis + 1 :]) * itemsize)
    rest = tuple((0, n) for n in chunk[axis + 1 :])
    for outer in np.ndindex(chunk[:axis]):
        for start in range(0, chunk[axis], rows):
            yield (*((i, i + 1) for i in outer), (start, min(start + rows, chunk[axis])), *rest)


def _overlap(slab: Bounds, there: Bounds) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the overlap of two ranges of cells: its index in the first range and its index in the second range."""
    starts = [max(a, b) for (a, _), (b, _) in zip(slab, there)]
    stops = [max(start, min(a, b)) for start, (_, a), (_, b) in zip(starts, slab, there)]
    return tuple(
        tuple(slice(start - first, stop - first) for start, stop, (first, _) in zip(starts, stops, box))
        for box in (slab, there)
    )  # pyright: ignore[reportReturnType]


def _reorder(cells: np.ndarray, target: np.ndarray) -> None:
    """Copy cells to `target`, whose axes have a different order in memory.

    This takes two copies. The first copy reads the cells in the order in which they lie in memory, and writes them to a
    buffer. The second copy reads the buffer, and writes `target` line by line along its last axis. In the buffer,
    neighbouring cells of such a line are an odd number of cache lines apart. In arrays, this distance is often a power
    of two. The cells would then displace each other in the cache.
    """
    last = cells.ndim - 1
    axes = (last, *sorted(range(last), key=lambda axis: -cells.strides[axis]))
    ordered = cells.transpose(axes)
    row = math.prod(ordered.shape[1:])
    line = 64 // cells.itemsize
    packed = np.empty((len(ordered), row + line + -row % (2 * line)), cells.dtype)[:, :row].reshape(ordered.shape)
    packed[...] = ordered
    target.transpose(axes)[...] = packed


def _write_at(file: int, data: memoryview, offset: int) -> None:
    """Write `data` at `offset`. Several threads may write to the file at the same time."""
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _read_at(file: int, data: memoryview, offset: int) -> None:
    """Fill `data` with the bytes from `offset` on. Raises `ValueError` if the file ends too early."""
    while data:
        read = os.preadv(file, [data], offset)
        if not read:
            raise ValueError("the file ends too early")
        data, offset = data[read:], offset + read


def _places(path: Path, names: Iterable[str]) -> dict[str, _Places]:
    with _h5py().File(path, "r") as file:
        return {name: _Places(file[name], file[CHECKSUMS][name]) for name in names}


def _reserve(group: Any, name: str, shape: tuple[int, ...], dtype: np.dtype, chunk: tuple[int, ...] | None) -> None:
    """Create a dataset, and allocate all its space in the file now."""
    h5py = _h5py()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk:
        properties.set_chunk(chunk)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    kind, space = h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create_simple(shape)
    h5py.h5d.create(group.id, name.encode(), kind, space, properties)


def _check_stored(dataset: Any, size: int) -> None:
    """Raise `ValueError` if a dataset is not a part of its file, which has `size` bytes.

    HDF5 can also make the values of a dataset up, decompress them, or take them from other files.
    """
    properties, start = dataset.id.get_create_plist(), dataset.id.get_offset()
    is_plain = properties.get_layout() == _h5py().h5d.CONTIGUOUS and not properties.get_external_count()
    if not is_plain or start is None or start + dataset.dtype.itemsize * math.prod(dataset.shape) > size:
        raise ValueError(f"`{dataset.name}` is not stored in the file")


@contextmanager
def _os_errors() -> Iterator[None]:
    """Raise `OSError` with a message of one line, for example if another program has just filled the disk."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise OSError(" ".join(str(error).split())) from error


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py: pip install h5py.") from error
    return h5py


def _plain(value: Any) -> Any:
    """Return an attribute as a plain Python object."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
