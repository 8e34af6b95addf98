"""The kernels over cuDecomp: loads and registers them, and keeps its handles and grid descriptors (`ffi/cudecomp`)."""

import atexit
import ctypes
import functools
import os
import threading
from dataclasses import astuple, dataclass
from typing import Any

import jax
import numpy as np

from . import library


_process = os.getpid()
TRANSPOSE, HALO = "decompops_cudecomp_transpose", "decompops_cudecomp_halo"


@dataclass(frozen=True)
class Grid:
    """A grid and its division in cuDecomp's terms, for transposes or for updates of halos.

    `order` holds each pencil's axes, the fastest first. `along`: ranks exchange along the first axis of the process
    grid `parts` (X- with Y-pencils, or halos along Y) or along the second (Y- with Z-pencils, or halos along Z).
    `backend` is that of transposes or of halos, by cuDecomp's numbers. Field for field what `Division` in
    ffi/cudecomp/grids.h is.
    """

    lengths: tuple[int, ...]
    parts: tuple[int, int]
    order: tuple[tuple[int, ...], ...]
    along: int
    halo: bool
    backend: int


@dataclass(frozen=True)
class Search:
    """What cuDecomp shall choose. Field for field what `Search` in ffi/cudecomp/grids.h is.

    `halo`: how halos of z-pencils are updated; else how transposes communicate. With `parts` of zero the process grid,
    too.
    """

    lengths: tuple[int, ...]
    parts: tuple[int, int]
    order: tuple[tuple[int, ...], ...]
    dtype: int
    halo_width: tuple[int, int, int]
    periodic: tuple[bool, ...]
    halo: bool
    mpi: bool
    nccl: bool
    nvshmem: bool
    trials: int


def problem() -> str | None:
    """What keeps the kernels over cuDecomp from working in this process, and what to do; `None` if nothing does."""
    return library.build()["cudecomp_problem"] or library.mpi_problem() or library.loading_problem("decompops_cudecomp")


@functools.cache
def load() -> ctypes.CDLL:
    """The library. Raises `ImportError` with what to do where it does not work."""
    if found := problem():
        raise ImportError(f"`backend=CuDecomp()` does not work here: {found}.")
    kernels = library.open_kernels("decompops_cudecomp")
    for name in ("error", "platform"):
        getattr(kernels, f"decompops_cudecomp_{name}").restype = ctypes.c_char_p
    for name in ("use_device", "add_handle", "add_grid", "choose", "mpi_knows_gpus", "elements", "reserve", "clear"):
        getattr(kernels, f"decompops_cudecomp_{name}").restype = ctypes.c_int64
    return kernels


def platform() -> str:
    """The platform of the devices that the kernels are for, as XLA calls it."""
    return load().decompops_cudecomp_platform().decode()


@functools.cache
def register() -> None:
    """Make the kernels known to XLA, and see to it that they end before MPI does."""
    targets = {name: library.pointer(load(), name) for name in (TRANSPOSE, HALO)}
    library.register_targets(targets, platform=platform())
    atexit.register(_clear)


def _clear() -> None:
    if os.getpid() != _process:  # a forked child has the parent's handles, but no right to them
        return
    # Devices work in order: with this, what was started before is done, also what nobody waits for.
    jax.block_until_ready(jax.jit(lambda: np.int32(0))())
    _call("clear")


def _call(name: str, *arguments: Any) -> int:
    result = getattr(load(), f"decompops_cudecomp_{name}")(*arguments)
    if result < 0:
        raise RuntimeError(load().decompops_cudecomp_error().decode())
    return result


def use_device(device: int) -> int:
    return _call("use_device", ctypes.c_int(device))


# Handles and descriptors are made collectively, in the order in which Python traces or calls operators: the same on
# every rank that runs the same program. Compiling only looks them up.
_lock = threading.Lock()
_handles: dict[tuple[str, tuple[int, ...]], int] = {}
_grids: dict[tuple[int, Grid], int] = {}


def add(key: str, communicator: Any, ranks: tuple[int, ...], grid: Grid) -> int:
    """The number of the descriptor of `grid` on `ranks` of a communicator, which is made if there is none yet."""
    with _lock:
        handle = _handle(key, communicator, ranks)
        number = _grids.get((handle, grid))
        if number is None:
            try:
                number = _grids[handle, grid] = _call("add_grid", ctypes.c_int64(handle), *_numbers(grid))
            except RuntimeError as error:
                raise RuntimeError(
                    f"{error}: for {grid} on ranks {ranks}. All ranks must build the same operators and call them in "
                    "the same order, on the same shapes and meshes."
                ) from error
        return number


def choose(key: str, communicator: Any, ranks: tuple[int, ...], search: Search) -> tuple[int, int, int]:
    """What cuDecomp finds best on `ranks` of a communicator: the process grid's rows and columns, and the backend."""
    chosen = (ctypes.c_int32 * 3)()
    with _lock:
        _call("choose", ctypes.c_int64(_handle(key, communicator, ranks)), *_numbers(search), chosen)
    return chosen[0], chosen[1], chosen[2]


def mpi_knows_gpus() -> bool:
    """Whether MPI says that it can communicate a GPU's memory."""
    return bool(_call("mpi_knows_gpus"))


def _handle(key: str, communicator: Any, ranks: tuple[int, ...]) -> int:
    handle = _handles.get((key, ranks))
    if handle is None:
        group = communicator.Get_group().Incl(ranks)
        part = communicator.Create_group(group)
        handle = _handles[key, ranks] = _call("add_handle", ctypes.c_int(part.py2f()))
    return handle


def _numbers(fields: Grid | Search) -> tuple[Any, ctypes.c_int64]:
    """All of a dataclass as int32 numbers, and how many there are."""
    numbers = np.array(jax.tree.leaves(astuple(fields)), np.int32)
    return (ctypes.c_int32 * len(numbers))(*numbers), ctypes.c_int64(len(numbers))


def find(key: str, ranks: tuple[int, ...], grid: Grid) -> int:
    """The number of a descriptor that has been made."""
    with _lock:
        return _grids[_handles[key, ranks], grid]


def elements(number: int, width: int = 0) -> int:
    """The elements of work space that a transpose needs, or an update of halos of `width` layers."""
    return _call("elements", ctypes.c_int64(number), ctypes.c_int64(width))


def reserve(number: int, nbytes: int) -> None:
    """Have cuDecomp allocate work space of its own."""
    _call("reserve", ctypes.c_int64(number), ctypes.c_int64(nbytes))
