"""Loads and registers the kernels over cuDecomp (`ffi/cudecomp`), and keeps cuDecomp's handles and grid descriptors."""

import atexit
import ctypes
import functools
import os
import threading
from dataclasses import astuple, dataclass
from typing import Any

import jax
import numpy as np

from ..native import library


_process = os.getpid()
TRANSPOSE, HALO = "decompops_cudecomp_transpose", "decompops_cudecomp_halo"


@dataclass(frozen=True)
class Grid:
    """A grid and its decomposition in cuDecomp's terms, for transposes or halo updates.

    - `order`: for each pencil, the order in which its axes are stored, fastest first.
    - `along`: the axis of the process grid `parts` along which ranks exchange. 0 is the first axis, for transposes
        between X- and Y-pencils and for halos along Y. 1 is the second axis, for transposes between Y- and Z-pencils
        and for halos along Z.
    - `backend`: cuDecomp's number for the communication backend of transposes or of halos.

    The fields equal those of `Division` in ffi/cudecomp/grids.h.
    """

    lengths: tuple[int, ...]
    parts: tuple[int, int]
    order: tuple[tuple[int, ...], ...]
    along: int
    halo: bool
    backend: int


@dataclass(frozen=True)
class Search:
    """A request to cuDecomp's autotuner. The fields equal those of `Search` in ffi/cudecomp/grids.h.

    With `halo`, cuDecomp chooses the backend for halo updates of z-pencils; without it, the backend for transposes. If
    the numbers in `parts` are zero, cuDecomp also chooses the process grid.
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
    """Return why the kernels over cuDecomp do not work in this process, and what to do; `None` if they work."""
    return library.build()["cudecomp_problem"] or library.mpi_problem() or library.loading_problem("decompops_cudecomp")


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library of kernels. Raises `ImportError` if the library does not work."""
    if found := problem():
        raise ImportError(f"`backend=CuDecomp()` does not work here: {found}.")
    kernels = library.open_kernels("decompops_cudecomp")
    for name in ("error", "platform"):
        getattr(kernels, f"decompops_cudecomp_{name}").restype = ctypes.c_char_p
    for name in ("use_device", "add_handle", "add_grid", "choose", "mpi_knows_gpus", "elements", "reserve", "clear"):
        getattr(kernels, f"decompops_cudecomp_{name}").restype = ctypes.c_int64
    return kernels


def platform() -> str:
    """Return XLA's name of the platform that the kernels were built for."""
    return load().decompops_cudecomp_platform().decode()


@functools.cache
def register() -> None:
    """Register the kernels with XLA. When the process ends, their resources are released before MPI is finalized."""
    targets = {name: library.pointer(load(), name) for name in (TRANSPOSE, HALO)}
    library.register_targets(targets, platform=platform())
    atexit.register(_clear)


def _clear() -> None:
    if os.getpid() != _process:  # The handles in a forked child still belong to the parent.
        return
    # A device runs its programs in order. When this trivial program is ready, all earlier programs are ready, too.
    jax.block_until_ready(jax.jit(lambda: np.int32(0))())
    _call("clear")


def _call(name: str, *arguments: Any) -> int:
    result = getattr(load(), f"decompops_cudecomp_{name}")(*arguments)
    if result < 0:
        raise RuntimeError(load().decompops_cudecomp_error().decode())
    return result


def use_device(device: int) -> int:
    return _call("use_device", ctypes.c_int(device))


# All ranks make handles and descriptors together, in the order in which Python traces or calls operators. This order is
# the same on every rank that runs the same program. Compilation makes no handles or descriptors.
_lock = threading.Lock()
_handles: dict[tuple[str, tuple[int, ...]], int] = {}
_grids: dict[tuple[int, Grid], int] = {}


def add(key: str, communicator: Any, ranks: tuple[int, ...], grid: Grid) -> int:
    """Return the identifier of the descriptor of `grid` on `ranks` of a communicator. Make it if necessary."""
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
    """Return cuDecomp's choice for `ranks` of a communicator: process grid (rows and columns) and backend."""
    chosen = (ctypes.c_int32 * 3)()
    with _lock:
        _call("choose", ctypes.c_int64(_handle(key, communicator, ranks)), *_numbers(search), chosen)
    return chosen[0], chosen[1], chosen[2]


def mpi_is_cuda_aware() -> bool:
    """Return whether MPI reports that it is CUDA-aware."""
    return bool(_call("mpi_knows_gpus"))


def _handle(key: str, communicator: Any, ranks: tuple[int, ...]) -> int:
    handle = _handles.get((key, ranks))
    if handle is None:
        group = communicator.Get_group().Incl(ranks)
        part = communicator.Create_group(group)
        handle = _handles[key, ranks] = _call("add_handle", ctypes.c_int(part.py2f()))
    return handle


def _numbers(fields: Grid | Search) -> tuple[Any, ctypes.c_int64]:
    """Return all fields of a dataclass as int32 numbers, and the count of these numbers."""
    numbers = np.array(jax.tree.leaves(astuple(fields)), np.int32)
    return (ctypes.c_int32 * len(numbers))(*numbers), ctypes.c_int64(len(numbers))


def find(key: str, ranks: tuple[int, ...], grid: Grid) -> int:
    """Return the number of an existing descriptor."""
    with _lock:
        return _grids[_handles[key, ranks], grid]


def elements(number: int, width: int = 0) -> int:
    """Return the size of the work space for a transpose (`width` 0) or a halo update of `width` layers, in elements."""
    return _call("elements", ctypes.c_int64(number), ctypes.c_int64(width))


def reserve(number: int, nbytes: int) -> None:
    """Let cuDecomp allocate its own work space of `nbytes` bytes."""
    _call("reserve", ctypes.c_int64(number), ctypes.c_int64(nbytes))
