"""`read` reads snapshots of fields and spectra onto any mesh."""

import math
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from .._common.agreement import differing, exchange_numbers
from .._common.box import Box
from .._core.expansion import Expansion, Mismatch
from .._core.layout import Layout
from .._operator.grid import GridLike, structure_of
from .._operator.transform import AbstractTransform
from ._agreement import mesh_of, raised_by_all_of
from ._attributes import Attribute
from ._contents import BOX, CHECKSUM, RESERVED, Contents
from ._format import AbstractFile, AbstractFormat
from ._formats import format_of
from ._parts import read_array
from ._staging import find


# The states of a try to read a snapshot.
READ, REPLACED, FAILED = range(3)
# How often `read` begins again if another snapshot has replaced the one that it was reading.
ATTEMPTS = 20


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


def read(path: str | os.PathLike, grid: GridLike | None = None, names: Any = None) -> Snapshot:
    """Read a snapshot onto any mesh. Each process reads its own blocks.

    All processes of the mesh must call this function. Another program may write a snapshot to the same path meanwhile:
    the result is then the old or the new snapshot, the same one on all processes, and never a mixture.

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
    become 32-bit arrays on devices; an array with larger integers raises `ValueError`.

    **Raises:** `FileNotFoundError` if the snapshot does not exist. `ValueError` if the file is damaged, if it is not a
    snapshot, if a different version of decompops wrote it in a different format, if `grid` or `names` do not fit the
    file, or if processes pass other `names` or layouts. `grid` does not fit spectra of other bases or modes. Every
    process of the mesh of `grid` then raises an error of the same type. `RuntimeError` if the processes read other
    snapshots, or if other snapshots replaced the file again and again. `MemoryError` if an array does not fit into the
    memory. `OSError` if this process may not open the file, or has too many open files.

    **Warns:** if the box of `grid` differs from the box of the file.
    """
    with raised_by_all_of(grid):
        format, path = format_of(path)
    mesh, error = mesh_of(grid), None
    for _ in range(ATTEMPTS):
        state, checksum, snapshot, error = _attempt(format, path, grid, names)
        states = {0: (state, checksum)} if mesh is None else exchange_numbers(mesh, state, checksum)
        kinds = {state for state, _ in states.values()}
        if kinds == {READ} and len(set(states.values())) == 1 and snapshot is not None:
            _check_same(mesh, snapshot.arrays)
            _warn_of_another_box(path, snapshot.box, None if grid is None else structure_of(grid).layout.box)
            return snapshot
        if FAILED in kinds and REPLACED not in kinds:
            with raised_by_all_of(grid):
                if error is not None:
                    raise error
        time.sleep(0.01)
    raise error or RuntimeError(
        "`path` must be the same snapshot on every process, and stay the same while it is read; got other ones in "
        f"{ATTEMPTS} attempts to read {path}."
    )


def _check_same(mesh: Mesh | None, arrays: dict[str, Any]) -> None:
    """Raise `ValueError` on every process if the processes have read other arrays, or to other places."""
    places = {name: str(array.sharding.spec) for name, array in sorted(arrays.items())} if mesh is not None else {}
    if mesh is not None and (others := differing(mesh, places)):
        raise ValueError(
            f"`names` and `grid` must be the same on every process; got {places} on process {jax.process_index()}, "
            f"others on {others}."
        )


def _warn_of_another_box(path: Path, saved: Box | None, own: Box | None) -> None:
    if saved is None or own is None or jax.process_index():
        return
    lengths = cast(tuple, saved.lengths), cast(tuple, own.lengths)
    if not np.allclose(*lengths, rtol=1e-6, atol=0):
        text = f"the box was {list(lengths[0])}, and is {list(lengths[1])}"
        warnings.warn(f"The arrays of {path} now belong to another box: {text}.", stacklevel=3)


def _attempt(
    format: AbstractFormat, path: Path, grid: Any, names: Any
) -> tuple[int, int, Snapshot | None, Exception | None]:
    """Try to read a snapshot. Return the state of this try, the checksum of the snapshot, the snapshot and the error.

    If another snapshot replaces the one that is read, its result is a mixture of both, and its error means nothing.
    """
    checksum, snapshot, error = 0, None, None
    try:
        found = find(path)
    except OSError as missing:  # Python before 3.13 also raises the errors of a folder that it may not look into.
        return FAILED, checksum, snapshot, missing
    stamp = format.stamp(found)
    try:
        with closing(format.open(found)) as file:
            snapshot = _read(file, path, grid, names)
            checksum = int(file.contents.attributes[CHECKSUM])  # pyright: ignore[reportArgumentType]
    except Exception as raised:
        error = raised
    # While another program moves a new snapshot to `path`, the old one is elsewhere, and is removed soon.
    is_removed = found != path and error is not None
    if stamp is None or is_removed or format.stamp(found) != stamp:
        return REPLACED, checksum, None, error
    return READ if error is None else FAILED, checksum, snapshot, error


def _read(file: AbstractFile, path: Path, grid: Any, names: Any) -> Snapshot:
    contents = file.contents
    names = chosen_names(names, contents)
    layout = None if grid is None else layout_for(grid, contents, path)
    expansion = grid.expansion if isinstance(grid, AbstractTransform) and contents.space == "spectrum" else None
    arrays, factor = {}, _factor(path, contents.meaning, expansion)
    for name in names:
        array = _array(file, path, name, layout)
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


def chosen_names(names: Any, contents: Contents) -> tuple[str, ...]:
    """Return the names of the arrays to read. Raises `ValueError` if a snapshot has no array of a name."""
    known, is_one = tuple(contents.variables), isinstance(names, str) or not isinstance(names, Iterable)
    names = known if names is None else (names,) if is_one else tuple(names)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"`names` must be some of {', '.join(known)}; got {unknown[0]!r}.")
    return names


def layout_for(grid: GridLike, contents: Contents, path: Path) -> Layout:
    """Return the layout of the arrays of a snapshot on `grid`. Raises `ValueError` if their lengths differ."""
    layout = structure_of(grid, contents.space).layout
    if layout.true_shape != contents.lengths:
        what = "fields" if contents.space == "field" else "spectra"
        raise ValueError(
            f"`grid` must have the lengths of the {what} in {path}, {contents.lengths}; got {layout.true_shape}. Read "
            "with a grid of these lengths, and interpolate with `spectral.Resample`."
        )
    return layout


def _array(file: AbstractFile, path: Path, name: str, layout: Layout | None) -> Array | np.ndarray:
    """Read an array: onto the devices of `layout`, or as a whole NumPy array if `layout` is `None`."""
    shape, dtype = file.contents.variables[name].shape, file.contents.variables[name].dtype
    try:
        if layout is not None:
            return read_array(name, partial(file.read, name), shape, dtype, layout)
        if (size := math.prod(shape) * dtype.itemsize) >= 2**63:
            raise MemoryError(f"{size} bytes")
        whole = np.empty(shape, dtype)
    except MemoryError as error:
        raise MemoryError(
            f"`path` must have arrays that fit into the memory; got {path}, where {name!r} has the shape {shape}. Pass "
            "a `grid` on more devices. If you do not expect this shape, the file is damaged."
        ) from error
    file.read(name, tuple((0, n) for n in shape), whole)
    return whole


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
