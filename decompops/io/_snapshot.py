"""`write` and `Writer` write snapshots of sharded fields and spectra to disk; `read` reads snapshots."""

import errno
import os
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping
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
from .._expansion import Expansion, Mismatch
from .._grid import GridLike, grid_of
from .._layout import exchange_numbers
from .._operator.transform import AbstractTransform
from .._structure import Space
from ._attributes import Attribute
from ._contents import BOX, RESERVED, describe
from ._format import AbstractFormat, Cells
from ._hdf5 import HDF5
from ._parts import chunk_shape, host_cells, part_lengths, parts_of, processes_of, read_array
from ._staging import Staging, find
from ._zarr import Zarr


FORMATS: tuple[AbstractFormat, ...] = (Zarr(), HDF5())


@dataclass(frozen=True)
class Snapshot:
    """The contents of a snapshot, as `read` returns them.

    - `arrays`: the fields or spectra by name.
    - `time`: the time, or `None` if the file has no time.
    - `box`: the box of the grid, or `None` if the file has no box.
    - `units`: the units of arrays and coordinates by name. Names without a unit are left out.
    - `attributes`: the `attributes` that were passed to `write`.
    - `norm`: the scale of spectra, an option of their transform such as "backward"; `None` for fields, and if the file
        has no norm.
    """

    arrays: dict[str, Array | np.ndarray]
    time: float | None
    box: Box | None
    units: dict[str, str]
    attributes: dict[str, Attribute]
    norm: str | None = None


def write(
    path: str | os.PathLike,
    arrays: Mapping[str, Array | np.ndarray],
    grid: GridLike,
    *,
    box: Box | None = None,
    time: Any = None,
    space: Space = "field",
    units: Mapping[str, str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    patience: float = 600.0,
) -> None:
    """Write fields or spectra to a snapshot. `read` reads it on any mesh, and xarray and ParaView can open it.

    All processes of the mesh must call this function. Each process writes its own blocks, without padding; no array is
    gathered. The snapshot appears at `path` when it is complete. Until then, an older snapshot stays at `path`.

    !!! example

        ```python
        io.write("run/000100.zarr", {"velocity": u, "pressure": p}, fft, box=dops.Box(1.0), time=0.5)
        ```

    **Arguments:**

    - `path`: the file to write. It ends in `.zarr` for Zarr 3 (a folder), or in `.h5` or `.hdf5` for HDF5. For fields
        with two or three axes in HDF5, a second file, `.xdmf`, is written next to it. ParaView opens this file. It
        shows a field with a component for each axis as a vector.
    - `arrays`: a dictionary of fields `(*batch, nx, ny, nz)` or of spectra by name, with or without padding.
    - `grid`: the transform that takes the fields or returns the spectra, such as an `FFT3D`; or the `Decomposition` or
        the `Layout` of the arrays.
    - `box`: the box that the grid fills. With a box, the file has coordinates: the positions of the points, or the
        angular wavenumbers of the modes.
    - `time`: the time of the snapshot, a number.
    - `space`: "field", or "spectrum" for spectra that `grid` returns. With a transform as `grid`, the file then records
        the bases, the modes and the `norm` of the transform.
    - `units`: a dictionary of units. Its keys are names of arrays, names of coordinates such as "x" or "kx", and
        "time".
    - `attributes`: a dictionary to store in the file. Its values are strings, numbers, lists of strings and lists of
        numbers. Scalars and arrays of NumPy become numbers and lists.
    - `patience`: the number of seconds that a process waits for another process before it raises an error.

    **Raises:** `ValueError` or `TypeError` on every process if an argument is not valid. `ImportError` if the library
    for the format, tensorstore or h5py, is not installed. `OSError` if the disk is full, if the folder cannot be
    written to, or if `path` exists but is not a snapshot. `RuntimeError` if another process failed.

    **Warns:** if an HDF5 file has complex fields, which ParaView cannot show.
    """
    options = {"box": box, "time": time, "space": space, "units": units, "attributes": attributes}
    _Writing(path, arrays, grid, patience=patience, **options).run()


class Writer:
    """Write snapshots in the background, while the program computes.

    `writer.write` takes the arguments of `io.write`. It waits until the previous snapshot is complete, copies the
    blocks of this process, and returns. So each process holds at most one copy of its blocks.

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
        """Start to write a snapshot. This method takes the arguments of `io.write`.

        **Raises:** the errors of `io.write`, if an argument is not valid or if the folder cannot be written to. The
        error of the previous snapshot, if that snapshot could not be written.
        """
        writing = _Writing(path, arrays, grid, **options)
        with writing.staging.telling():
            self.wait()
            self._pending = self._thread.submit(writing.copy().run)

    def wait(self) -> None:
        """Wait until the last snapshot is complete. **Raises:** its error, if it could not be written."""
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
    """Read a snapshot onto any mesh. Each process reads its own blocks.

    !!! example

        ```python
        snapshot = io.read("run/000100.zarr", fft)
        u = snapshot.arrays["velocity"]     # sharded as the input of `fft`
        ```

    **Arguments:**

    - `path`: a snapshot that `write` wrote.
    - `grid`: a transform, a `Decomposition` or a `Layout`, as in `write`. The arrays of the result lie on the devices
        of `grid`. If `grid` is `None`, every process gets whole arrays, as NumPy arrays. If `grid` is a transform,
        spectra are rescaled to its `norm`.
    - `names`: the name or the names of the arrays to read. The default is all arrays.

    **Returns:** a `Snapshot`. Its arrays have the dtypes of the file. But if JAX is not in 64-bit mode, 64-bit arrays
    become 32-bit arrays on devices.

    **Raises:** `FileNotFoundError` if the snapshot does not exist. `ValueError` if the file is damaged, if it is not a
    snapshot, if a different version of decompops wrote it in a different format, or if `grid` or `names` do not fit the
    file. `grid` does not fit spectra of other bases or modes.
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
    expansion = grid.expansion if isinstance(grid, AbstractTransform) and contents.space == "spectrum" else None
    arrays, factor = {}, _factor(path, contents.meaning, expansion)
    for name in names:
        variable = contents.variables[name]
        if layout is None:
            arrays[name] = np.empty(variable.shape, variable.dtype)
            file.read(name, tuple((0, n) for n in variable.shape), arrays[name])
        else:
            array = read_array(partial(file.read, name), variable.shape, variable.dtype, layout)
            arrays[name] = array if factor == 1 else array * np.asarray(factor, array.dtype)
    norm = (contents.meaning or {}).get("norm") if expansion is None else expansion.norm
    time, box = contents.coordinates.get("time"), contents.attributes.get(BOX)
    return Snapshot(
        arrays,
        None if time is None else float(time),
        None if box is None else Box(tuple(box)),  # pyright: ignore[reportArgumentType]
        contents.units,
        {name: value for name, value in contents.attributes.items() if name not in RESERVED},
        norm,
    )


def _factor(path: Path, known: Mapping[str, Any] | None, expansion: Expansion | None) -> float:
    """Return the factor from the coefficients of a file to those of `expansion`; one if either is not known.

    Raises `ValueError` if the coefficients have other bases or modes.
    """
    if known is None or expansion is None:
        return 1.0
    try:
        return expansion.factor_from(known)
    except Mismatch as error:
        raise ValueError(
            f"`grid` must have the `{error.option}` of the spectra in {path}, {error.known}; got {error.own}. Read "
            "them with a transform like theirs."
        ) from error


class _Writing:
    """One snapshot to write. Every process calls the constructor, which checks that all write the same snapshot."""

    def __init__(self, path: Any, arrays: Any, grid: Any, *, patience: float = 600.0, **description: Any):
        self.format, self.path = _format(path)
        self.cells: list[Cells] | None = None
        self.contents, self.layout = describe(arrays, grid, **description)
        self.format.check(self.path, self.contents)
        mesh, process = self.layout.mesh, jax.process_index()
        if not isinstance(mesh, Mesh) or process not in (processes := processes_of(mesh)):
            raise ValueError(f"`grid` must have a mesh with devices of this process; got {mesh} on process {process}.")
        self.parts = {name: parts_of(array, self.layout) for name, array in arrays.items()}
        self.chunks = {name: self._chunk(name) for name in self.parts}
        self.staging = self._begin(mesh, processes, arrays, str(path), patience)

    def _begin(
        self, mesh: Mesh, processes: tuple[int, ...], arrays: Mapping[str, Any], path: str, patience: float
    ) -> Staging:
        """Return the temporary folder of this snapshot. The first process creates it, and removes it after a failure.

        Raises an error on every process if the folder cannot be created, or if the processes are about to write
        different snapshots.
        """
        process, first = jax.process_index(), processes[0]
        digest, token, error = zlib.crc32(repr((path, repr(self.contents))).encode()), secrets.randbits(32), None
        staging = Staging(self.path, token, process, processes, patience)
        if process == first:
            error = self._error_of(staging.begin)
        found = exchange_numbers(mesh, digest, token, 0 if error is None else error.errno or errno.EIO)
        if process != first:
            staging = Staging(self.path, found[first][1], process, processes, patience)
        try:
            self._check_agreement(mesh, arrays, path, {other: numbers[0] for other, numbers in found.items()})
            if error is not None:
                raise error
            if number := found[first][2]:
                reason = os.strerror(number)
                raise RuntimeError(f"{self.path} was not written, because process {first} failed: {reason}")
        except BaseException:
            if process == first:
                staging.remove()
            raise
        return staging

    def _error_of(self, begin: Callable[[], None]) -> OSError | None:
        """Call `begin()`, which creates the folder. If it raises an `OSError`, return this error."""
        try:
            if self.path.exists() and not self.format.may_replace(self.path):
                return FileExistsError(
                    errno.EEXIST,
                    f"`path` must be new or a snapshot; got {self.path}, which decompops did not write. Choose another "
                    "path, or remove what is there.",
                )
            begin()
        except OSError as error:
            return error
        return None

    def _check_agreement(self, mesh: Mesh, arrays: Mapping[str, Any], path: str, digests: dict[int, int]) -> None:
        """Raise `ValueError` on every process if the processes are about to write different snapshots."""
        mine = digests[jax.process_index()]
        if others := sorted(process for process, digest in digests.items() if digest != mine):
            raise ValueError(
                "every process must write to the same `path`, with the same names, shapes and dtypes of `arrays` and "
                f"the same options; processes {others} differ from process {jax.process_index()}, which writes {path}."
            )
        devices = set(mesh.devices.flat)
        for name, array in arrays.items() if len(digests) > 1 else ():
            if isinstance(array, Array) and array.sharding.device_set != devices:
                raise ValueError(
                    f"`arrays` must lie on the devices of `grid`; got {array.sharding} for {name!r}. Move it by "
                    "`jax.device_put`."
                )

    def copy(self) -> "_Writing":
        """Copy the blocks of this process, so that the program may donate or delete the arrays."""
        self.cells = list(self._own(copy=True))
        self.parts = {}
        return self

    def run(self) -> None:
        """Write the snapshot, and wait until the complete snapshot is at its path."""
        staged, contents, cells = self.staging.staged, self.contents, self.cells or self._own()
        self.staging.run(
            lambda: self.format.create(staged, contents, self.chunks),
            lambda: self.format.write(staged, contents, cells),
        )

    def _chunk(self, name: str) -> tuple[int, ...]:
        """Return the shape of the chunks of an array."""
        return chunk_shape(part_lengths(self.parts[name]), self.contents.variables[name].dtype.itemsize)

    def _own(self, *, copy: bool = False) -> Iterator[Cells]:
        """Yield the parts that this process writes."""
        for name, parts in self.parts.items():
            for part, block in parts.items():
                if part.process == self.staging.process and block is not None:
                    yield name, part.bounds, host_cells(block, part, self.layout, copy=copy)


def _format(path: Any) -> tuple[AbstractFormat, Path]:
    """Return the format of a file by its suffix, and its path without symbolic links."""
    path = Path(path)
    for format in FORMATS:
        if path.suffix in format.suffixes:
            return format, path.resolve()
    suffixes = " or ".join(suffix for format in FORMATS for suffix in format.suffixes)
    raise ValueError(f"`path` must end in {suffixes}; got {str(path)!r}.")
