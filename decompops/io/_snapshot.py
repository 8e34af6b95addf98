"""`write`, `read` and `Writer`: snapshots of sharded fields and spectra on disk."""

import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from .._box import Box
from .._grid import GridLike, grid_of
from .._layout import Layout, exchange_numbers
from .._structure import Space
from ._contents import BOX, RESERVED, Attribute, describe
from ._format import AbstractFormat, Cells
from ._hdf5 import HDF5
from ._parts import chunk_shape, host_cells, part_lengths, parts_of, read_array, reversed_grid
from ._staging import Staging, find
from ._zarr import Zarr


FORMATS: tuple[AbstractFormat, ...] = (Zarr(), HDF5())


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot holds, as `read` returns it.

    - `arrays`: the fields or spectra, by name.
    - `time`: the time, if the file has one.
    - `box`: the box of the grid, if the file has one.
    - `units`: the units of arrays and coordinates, by name, where they are known.
    - `attributes`: whatever else the writer noted.
    """

    arrays: dict[str, Array | np.ndarray]
    time: float | None
    box: Box | None
    units: dict[str, str]
    attributes: dict[str, Attribute]


def write(
    path: str | os.PathLike,
    arrays: Mapping[str, Array | np.ndarray],
    grid: GridLike,
    *,
    box: Box | None = None,
    time: Any = None,
    space: Space = "field",
    units: Mapping[str, str] | None = None,
    attributes: Mapping[str, Attribute] | None = None,
    patience: float = 600.0,
) -> None:
    """Write fields or spectra to a file that any mesh can read, and xarray and ParaView as well.

    Each process writes its own blocks, without padding; nothing is gathered. All processes of the mesh call this. The
    snapshot appears in its place as a whole, when everything is on disk. What stood there before stays until then.

    **Arguments:**

    - `path`: where to, ending in `.zarr` (Zarr 3, a folder), or in `.h5` or `.hdf5` (HDF5, with an `.xdmf` file beside
        it, for ParaView).
    - `arrays`: fields `(*batch, nx, ny, nz)`, or spectra, by name.
    - `grid`: how they lie on the devices: the operator that took or returned them, such as an `FFT3D`; their
        `Decomposition`; or their `Layout`.
    - `box`: gives the file coordinates: the positions of the points, or the angular wavenumbers of the modes.
    - `time`: the time of the snapshot, a number.
    - `space`: "field", or "spectrum" for spectra as `grid` returns them.
    - `units`: of arrays, coordinates ("x", "kx") and "time", by name.
    - `attributes`: texts, numbers and lists of them, to be noted in the file.
    - `patience`: how many seconds processes wait for each other.

    **Raises:** `ValueError` or `TypeError` for arguments that do not fit, on every process; `ImportError` without
    tensorstore or h5py; `OSError` where the disk is full or the folder cannot be written; `RuntimeError` where another
    process failed.
    """
    options = {"box": box, "time": time, "space": space, "units": units, "attributes": attributes}
    _Writing(path, arrays, grid, patience=patience, **options).run()


class Writer:
    """Writes snapshots in the background, while the program computes.

    `writer.write` takes what `io.write` takes. It returns as soon as this process has copied its blocks, and waits for
    the snapshot before, so that there is at most one copy.

    !!! example

        ```python
        with io.Writer() as writer:
            for i in range(100):
                u, _ = solver.rollout(u, 50)
                writer.write(f"run/{i:06}.zarr", {"velocity": fields(u)}, fft, box=box, time=50 * dt * i)
        ```
    """

    def __init__(self):
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decompops.io")
        self._pending: Future | None = None

    def write(
        self, path: str | os.PathLike, arrays: Mapping[str, Array | np.ndarray], grid: GridLike, **options: Any
    ) -> None:
        """Start to write. Takes what `io.write` takes.

        **Raises:** what `io.write` raises: for its arguments at once, and now what went wrong with the snapshot before.
        """
        writing = _Writing(path, arrays, grid, **options)
        self.wait()
        self._pending = self._thread.submit(writing.copy().run)

    def wait(self) -> None:
        """Wait until the last snapshot is in its place. **Raises:** what `io.write` raises."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def read(path: str | os.PathLike, grid: GridLike | None = None, names: Any = None) -> Snapshot:
    """Read a snapshot onto any mesh: each process reads its own blocks.

    **Arguments:**

    - `path`: what `write` wrote.
    - `grid`: how the arrays are to lie on the devices: as for `write`. `None` reads them as NumPy arrays, whole.
    - `names`: which arrays to read; all by default.

    **Returns:** a `Snapshot`. Its arrays have the dtype of the file, but 64-bit types become 32-bit ones where JAX is
    not in 64-bit mode.

    **Raises:** `FileNotFoundError`; `ValueError` for a file that is damaged, of a newer format or not a snapshot, and
    for a `grid` or `names` that do not fit it.
    """
    format, path = _format(path)
    file = format.open(find(path))
    contents = file.contents
    names = tuple(contents.variables) if names is None else (names,) if isinstance(names, str) else tuple(names)
    if unknown := [name for name in names if name not in contents.variables]:
        raise ValueError(f"`names` must be some of {', '.join(contents.variables)}; got {unknown[0]!r}.")
    layout = None if grid is None else grid_of(grid, contents.lengths, contents.space).layout
    if layout is not None and layout.true_shape != contents.lengths:
        what = "fields" if contents.space == "field" else "spectra"
        raise ValueError(
            f"`grid` must have the lengths of the {what} in {path}, {contents.lengths}; got {layout.true_shape}. Read "
            "with a grid of these lengths, and interpolate with `spectral.Resample`."
        )
    arrays = {}
    for name in names:
        variable = contents.variables[name]
        if layout is None:
            cells = file.read(name, tuple((0, n) for n in variable.shape))
            natural = reversed_grid(tuple(range(cells.ndim)), len(contents.lengths))
            arrays[name] = cells.transpose(natural) if format.reverses else cells
        else:
            arrays[name] = read_array(partial(file.read, name), variable.shape, layout, reverse=format.reverses)
    time, box = contents.coordinates.get("time"), contents.attributes.get(BOX)
    return Snapshot(
        arrays,
        None if time is None else float(time),
        None if box is None else Box(tuple(box)),  # pyright: ignore[reportArgumentType]
        contents.units,
        {name: value for name, value in contents.attributes.items() if name not in RESERVED},
    )


class _Writing:
    """One snapshot on its way to disk. It is built on every process, and checks that all of them write the same."""

    def __init__(self, path: Any, arrays: Any, grid: Any, *, patience: float = 600.0, **description: Any):
        self.format, self.path = _format(path)
        self.cells: list[Cells] | None = None
        self.contents, self.layout = describe(arrays, grid, **description)
        self.parts = {name: parts_of(array, self.layout) for name, array in arrays.items()}
        token, processes = _agree(self.layout, arrays, (str(path), repr(self.contents)))
        self.staging = Staging(self.path, token, jax.process_index(), processes, patience)
        self.chunks = {name: self._chunk(name) for name in self.parts}

    def copy(self) -> "_Writing":
        """Copy the blocks of this process, so that the arrays may change or go."""
        self.cells = list(self._own(copy=True))
        self.parts = {}
        return self

    def run(self) -> None:
        """Write everything, and wait until it is in its place."""
        staged, contents, cells = self.staging.staged, self.contents, self.cells or self._own()
        self.staging.run(
            lambda: self.format.create(staged, contents, self.chunks),
            lambda: self.format.write(staged, contents, cells),
        )

    def _chunk(self, name: str) -> tuple[int, ...]:
        """The shape of the chunks that an array is stored in, with its axes in the order of the file."""
        lengths, itemsize = part_lengths(self.parts[name]), self.contents.variables[name].dtype.itemsize
        stored = reversed_grid(lengths, self.layout.blocks.ndim) if self.format.reverses else lengths
        return chunk_shape(stored, itemsize)

    def _own(self, *, copy: bool = False) -> Iterator[Cells]:
        """The parts that this process writes."""
        for name, parts in self.parts.items():
            for part, block in parts.items():
                if part.process == self.staging.process and block is not None:
                    cells = host_cells(block, part, self.layout, reverse=self.format.reverses, copy=copy)
                    yield name, part.bounds, cells


def _format(path: Any) -> tuple[AbstractFormat, Path]:
    """The format of a file, by its name."""
    path = Path(path)
    for format in FORMATS:
        if path.suffix in format.suffixes:
            return format, path
    suffixes = " or ".join(suffix for format in FORMATS for suffix in format.suffixes)
    raise ValueError(f"`path` must end in {suffixes}; got {str(path)!r}.")


def _agree(layout: Layout, arrays: Mapping[str, Any], what: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    """A name for this attempt to write, and the processes of the mesh, after a check that all of them write the same.

    Raises `ValueError` on every process where they do not.
    """
    if not isinstance(layout.mesh, Mesh):
        raise ValueError(f"`grid` must have a mesh with devices; got {layout.mesh}.")
    digest, nonce = zlib.crc32(repr(what).encode()), secrets.randbits(32)
    found = exchange_numbers(layout.mesh, digest, nonce)
    if others := sorted(process for process, (value, _) in found.items() if value != digest):
        raise ValueError(
            f"`path` and arrays of the same names, shapes and dtypes must be written by every process; processes "
            f"{others} write something else than {what[0]} on process {jax.process_index()}."
        )
    devices = set(layout.mesh.devices.flat)
    for name, array in arrays.items() if len(found) > 1 else ():
        if isinstance(array, Array) and array.sharding.device_set != devices:
            raise ValueError(f"`arrays` must lie on the devices of `grid`; got {array.sharding} for {name!r}.")
    first = min(found)
    return f"{found[first][1]:08x}", tuple(sorted(found))
