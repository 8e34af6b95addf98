"""`write` and `Writer` write snapshots of sharded fields and spectra to disk."""

import errno
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from .._common.agreement import exchange_numbers
from .._common.check import check_number, check_untraced
from .._common.ownership import new_identity
from .._core.structure import Space
from .._operator.grid import GridLike
from ._agreement import check_same, raised_by_all_of
from ._contents import describe
from ._ending import begin, end
from ._format import Cells
from ._formats import check_dtypes, format_of
from ._parts import chunk_shape, host_cells, part_lengths, parts_of, processes_of
from ._staging import Staging


def write(
    path: str | os.PathLike,
    arrays: Mapping[str, Array | np.ndarray],
    grid: GridLike,
    *,
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
        io.write("run/000100.zarr", {"velocity": u, "pressure": p}, fft, time=0.5)
        ```

    **Arguments:**

    - `path`: the file to write. It ends in `.zarr` for Zarr 3 (a folder), or in `.h5` or `.hdf5` for HDF5. For fields
        with two or three axes in HDF5, a second file, `.xdmf`, is written next to it. ParaView opens this file. It
        shows a field with a component for each axis as a vector.
    - `arrays`: a dictionary of fields `(*batch, nx, ny, nz)` or of spectra by name, with or without padding. Their
        dtypes are `bool`, integers, real numbers of 16 to 64 bits, and complex numbers of 64 or 128 bits; in Zarr also
        `int4`, `bfloat16` and the float8 types of tensorstore. NumPy arrays are written by the first process alone.
    - `grid`: the transform that takes the fields or returns the spectra, such as an `FFT3D`; or the `Decomposition` or
        the `Layout` of the arrays. If it was built with a `box`, the file has coordinates: the positions of the points,
        or the angular wavenumbers of the modes. A `Decomposition` or a `Layout` stands for equally spaced points, the
        first of which is at zero. For other points, such as those of `Cells` or between walls, pass the transform.
    - `time`: the time of the snapshot, a number.
    - `space`: "field", or "spectrum" for spectra that `grid` returns. With a transform as `grid`, the file then records
        the bases, the modes and the `norm` of the transform.
    - `units`: a dictionary of units. Its keys are names of arrays, names of coordinates such as "x" or "kx", and
        "time".
    - `attributes`: a dictionary to store in the file. Its values are strings, numbers, lists of strings and lists of
        numbers. Scalars and arrays of NumPy become numbers and lists.
    - `patience`: the number of seconds that a process waits for another process before it raises an error.

    **Raises:** `ValueError` or `TypeError` on every process if an argument is not valid. `ImportError` if the library
    for the format, tensorstore or h5py, is not installed. `OSError` if the disk is full or if the folder cannot be
    written to. `FileExistsError` if `path` or the XDMF file exists, but decompops did not write it, or if somebody has
    added files to a Zarr snapshot there. `RuntimeError` if another process failed.

    **Warns:** if an HDF5 file has complex fields, which ParaView cannot show.
    """
    options = {"time": time, "space": space, "units": units, "attributes": attributes}
    _Writing(path, arrays, grid, patience=patience, **options).run()


class Writer:
    """Write snapshots in the background, while the program computes.

    `writer.write` takes the arguments of `io.write`. It waits until the previous snapshot is complete, copies the
    blocks of this process, and returns. So each process holds at most one copy of its blocks. At the end of the `with`
    block, or of the program if there is no `with`, the writer waits for the last snapshot.

    !!! example

        ```python
        with io.Writer() as writer:
            for i in range(100):
                u, _ = solver.rollout(u, 50)
                writer.write(f"run/{i:06}.zarr", {"velocity": fields(u)}, fft, time=50 * dt * i)
        ```
    """

    def __init__(self):
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, thread_name_prefix="decompops.io")
        self._pending: Future | None = None

    def write(
        self, path: str | os.PathLike, arrays: Mapping[str, Array | np.ndarray], grid: GridLike, **options: Any
    ) -> None:
        """Start to write a snapshot. This method takes the arguments of `io.write`.

        **Raises:** the errors of `io.write`, if an argument is not valid or if the folder cannot be written to. The
        error of the previous snapshot, if that snapshot could not be written. `RuntimeError` after the end of the
        `with` block.
        """
        if self._thread is None:
            raise RuntimeError("a `Writer` must not write after its `with` block; this one has ended. Make a new one.")
        writing = _Writing(path, arrays, grid, **options)
        with writing.staging.telling():
            self.wait()
            self._pending = self._thread.submit(writing.copy().run)
            begin(self.wait)

    def wait(self) -> None:
        """Wait until the last snapshot is complete. **Raises:** its error, if it could not be written."""
        pending, self._pending = self._pending, None
        end(self.wait)
        if pending is not None:
            pending.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.shutdown()


class _Writing:
    """One snapshot to write. Every process calls the constructor, which checks that all write the same snapshot."""

    def __init__(self, path: Any, arrays: Any, grid: Any, *, patience: float = 600.0, **description: Any):
        self.cells: list[Cells] | None = None
        check_untraced("arrays", arrays, "write")  # JAX traces it on all processes, which then cannot exchange errors.
        with raised_by_all_of(grid):
            check_number("patience", patience, positive=True)
            self.format, self.path = format_of(path)
            self.contents, self.layout = describe(arrays, grid, **description)
            check_dtypes(self.format, self.contents)
            self.format.check(self.path, self.contents)
            mesh, process = self.layout.mesh, jax.process_index()
            if not isinstance(mesh, Mesh) or process not in (processes := processes_of(mesh)):
                raise ValueError(
                    f"`grid` must have a mesh with devices of this process; got {mesh} on process {process}."
                )
            self.parts = {name: parts_of(f"arrays[{name!r}]", array, self.layout) for name, array in arrays.items()}
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
        digest, identity, error = zlib.crc32(repr((path, repr(self.contents))).encode()), new_identity(), None
        staging = Staging(self.path, identity, process, processes, patience, self.format.check_own)
        if process == first:
            error = self._error_of(staging.begin)
        words = int(identity[:8], 16), int(identity[8:], 16)
        found = exchange_numbers(mesh, digest, 0 if error is None else error.errno or errno.EIO, *words)
        if process != first:
            identity = "".join(f"{word:08x}" for word in found[first][2:])
            staging = Staging(self.path, identity, process, processes, patience, self.format.check_own)
        self.contents = self.contents.identified(identity)
        try:
            self._check_agreement(mesh, arrays, path, {other: numbers[0] for other, numbers in found.items()})
            if error is not None:
                raise error
            if number := found[first][1]:
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
            for path in self.format.paths(self.path, self.contents):
                with suppress(FileNotFoundError):
                    path.lstat()  # This finds names that are too long, before anything is written.
                self.format.check_own(path)
            begin()
        except OSError as error:
            return error
        return None

    def _check_agreement(self, mesh: Mesh, arrays: Mapping[str, Any], path: str, digests: dict[int, int]) -> None:
        """Raise `ValueError` on every process if the processes are about to write different snapshots."""
        check_same(
            digests,
            "every process must write to the same `path`, with the same names, shapes and dtypes of `arrays` and the "
            "same options",
            f"writes {path}",
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
