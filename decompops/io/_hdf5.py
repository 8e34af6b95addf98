"""HDF5: one file, with the grid axes from the last to the first, as in CF conventions and ParaView.

h5py creates the file and allocates space for every chunk. Each process then writes and reads its chunks by plain file
operations, without h5py. Several processes can therefore write at the same time with any build of HDF5, at the speed of
the disk. (HDF5 itself needs a build with MPI for parallel writing, and it ends in a segmentation fault on a full disk.)
"""

import math
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ._contents import LENGTHS, Contents, Variable, check_contents, damaged
from ._format import AbstractFile, AbstractFormat, Cells
from ._parts import THREADS, Bounds, reversed_grid, slices
from ._xdmf import write_xdmf


# The name that netCDF gives a dimension without coordinates.
WITHOUT_VALUES = "This is a netCDF dimension but not a netCDF variable"
# The group with the CRC-32 of every chunk of each array, in the order of the chunks. No array can have this name.
CHECKSUMS = "CRC-32 of chunks"
# HDF5 writes at most this many bytes besides the arrays. Plain file operations write as many bytes first, because HDF5
# crashes on a full disk.
METADATA_BYTES = 2**20


class HDF5(AbstractFormat):
    """A snapshot is an HDF5 file, with an XDMF file beside it for fields, which ParaView opens."""

    suffixes = (".h5", ".hdf5")
    reverses = True

    def create(self, path: Path, contents: Contents, chunks: Mapping[str, tuple[int, ...]]) -> None:
        ndim = len(contents.lengths)
        with path.open("wb") as trial:
            trial.write(bytes(METADATA_BYTES))
        with _h5py().File(path, "w") as file:
            file.attrs.update(contents.attributes)
            for name, values in contents.coordinates.items():
                file[name] = values
                if values.ndim:
                    file[name].make_scale(name)
            for name, variable in contents.variables.items():
                shape, dims = reversed_grid(variable.shape, ndim), reversed_grid(variable.dims, ndim)
                counts = [-(-n // chunk) for n, chunk in zip(shape, chunks[name])]
                _reserve(file, name, shape, _dtype(name, variable), chunks[name])
                _reserve(file.require_group(CHECKSUMS), name, (math.prod(counts),), np.dtype("<u4"), None)
                for axis, (dim, length) in enumerate(zip(dims, shape)):
                    if dim not in file:
                        file.create_dataset(dim, (length,), "f4").make_scale(f"{WITHOUT_VALUES}.{length:10d}")
                    file[name].dims[axis].attach_scale(file[dim])
                if "time" in contents.coordinates:
                    file[name].attrs["coordinates"] = "time"  # xarray needs this attribute.
            for name, unit in contents.units.items():
                file[name].attrs["units"] = unit
        if contents.space == "field":
            write_xdmf(path.with_suffix(".xdmf"), [(path, contents)])

    def write(self, path: Path, contents: Contents, parts: Iterable[Cells]) -> None:
        ndim, pending = len(contents.lengths), deque()
        places = _places(path, contents.variables)
        with path.open("r+b", buffering=0) as file, ThreadPoolExecutor(THREADS) as pool:
            for name, bounds, cells in parts:
                for chunk, within, there in places[name].chunks(reversed_grid(bounds, ndim)):
                    pending.append(pool.submit(places[name].put, file.fileno(), chunk, cells[within], there))
                    if len(pending) == 2 * THREADS:
                        pending.popleft().result()
            for write in pending:
                write.result()
            os.fsync(file.fileno())

    def open(self, path: Path) -> AbstractFile:
        return _HDF5File(path)


class _HDF5File(AbstractFile):
    def __init__(self, path: Path):
        self.path = path
        with _reading(path), _h5py().File(path, "r") as file:
            attributes = {name: _plain(value) for name, value in file.attrs.items()}
            variables, coordinates, units = {}, {}, {}
            ndim = len(attributes.get(LENGTHS, ()))
            for name, dataset in file.items():
                if name == CHECKSUMS or dataset.attrs.get("NAME", b"").startswith(WITHOUT_VALUES.encode()):
                    continue
                if dataset.is_scale or not dataset.ndim:
                    coordinates[name] = np.asarray(dataset[()])
                else:
                    dims = tuple(dimension[0].name.rpartition("/")[2] for dimension in dataset.dims)
                    dims, shape = (reversed_grid(values, ndim) for values in (dims, dataset.shape))
                    variables[name] = Variable(dims, shape, dataset.dtype)
                if "units" in dataset.attrs:
                    units[name] = str(dataset.attrs["units"])
        self.contents = check_contents(Contents(variables, coordinates, units, attributes), path)
        with _reading(path):
            self.places = _places(path, variables)

    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        bounds, places = reversed_grid(bounds, len(self.contents.lengths)), self.places[name]
        cells = np.empty([stop - start for start, stop in bounds], places.dtype)
        with _reading(self.path), self.path.open("rb", buffering=0) as file:
            for chunk, within, there in places.chunks(bounds):
                cells[within] = places.get(file.fileno(), chunk)[there]
        return cells


class _Places:
    """The places of the chunks of an array in a file, and of their checksums."""

    def __init__(self, dataset: Any, checksums: Any):
        self.chunk, self.dtype = dataset.chunks, dataset.dtype
        self.counts = [-(-n // length) for n, length in zip(dataset.shape, self.chunk)]
        infos = map(dataset.id.get_chunk_info, range(dataset.id.get_num_chunks()))
        self.offsets = {info.chunk_offset: info.byte_offset for info in infos}
        self.checksums = checksums.id.get_offset()
        if len(self.offsets) != math.prod(self.counts) or self.checksums is None:
            raise ValueError(f"`{dataset.name}` lacks space for some of its chunks")

    def chunks(self, bounds: Bounds) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """Yield each chunk that overlaps with `bounds`.

        Yields the first cell of the chunk, the overlap as an index into the cells of `bounds`, and the overlap as an
        index into the chunk.
        """
        firsts = [range(start // n * n, stop, n) for (start, stop), n in zip(bounds, self.chunk)]
        for chunk in product(*firsts):
            ends = [(max(a, c), min(b, c + n)) for (a, b), c, n in zip(bounds, chunk, self.chunk)]
            within = tuple((start - a, stop - a) for (start, stop), (a, _) in zip(ends, bounds))
            there = tuple((start - c, stop - c) for (start, stop), c in zip(ends, chunk))
            yield chunk, slices(within), slices(there)

    def put(self, file: int, chunk: tuple[int, ...], cells: np.ndarray, there: tuple[slice, ...]) -> None:
        """Write a chunk with `cells` at the index `there`, and zeros beyond the end of the array."""
        if cells.shape != self.chunk:
            whole = np.zeros(self.chunk, self.dtype)
            whole[there] = cells
            cells = whole
        data = np.ascontiguousarray(cells).data.cast("B")
        _write_at(file, data, self.offsets[chunk])
        _write_at(file, memoryview(zlib.crc32(data).to_bytes(4, "little")), self._checksum(chunk))

    def get(self, file: int, chunk: tuple[int, ...]) -> np.ndarray:
        """Read a chunk. Raises `ValueError` if its checksum is wrong."""
        cells, checksum = np.empty(self.chunk, self.dtype), bytearray(4)
        data = cells.data.cast("B")
        _read_at(file, data, self.offsets[chunk])
        _read_at(file, memoryview(checksum), self._checksum(chunk))
        if checksum != zlib.crc32(data).to_bytes(4, "little"):
            raise ValueError(f"the checksum of the chunk at {chunk} is wrong")
        return cells

    def _checksum(self, chunk: tuple[int, ...]) -> int:
        """Return the offset of the checksum of a chunk in the file."""
        number = np.ravel_multi_index([c // n for c, n in zip(chunk, self.chunk)], self.counts)
        return self.checksums + 4 * int(number)


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
    """Create a dataset whose space in the file is allocated at once."""
    h5py = _h5py()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk:
        properties.set_chunk(chunk)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    kind, space = h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create_simple(shape)
    h5py.h5d.create(group.id, name.encode(), kind, space, properties)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py: pip install h5py.") from error
    return h5py


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of reading a damaged file into a `ValueError` that names the file."""
    try:
        yield
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise damaged(path, error) from error


def _dtype(name: str, variable: Variable) -> np.dtype:
    if variable.dtype.kind not in "fciub":  # For example, bfloat16 has another kind.
        raise TypeError(
            f"`arrays` must have dtypes that HDF5 has; got {variable.dtype} for {name!r}. Choose a `path` that ends in "
            ".zarr."
        )
    return variable.dtype


def _plain(value: Any) -> Any:
    """Return an attribute as a plain Python object."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
