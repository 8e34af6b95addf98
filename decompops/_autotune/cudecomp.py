"""`CuDecompTuner`: lets cuDecomp choose its process grid and communication. If cuDecomp cannot, it runs trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from jax.sharding import AbstractMesh

from .._backend.cudecomp import grids
from .._backend.cudecomp.backend import DTYPES, NAMES, CuDecomp, order_of
from .._backend.mpi import launch
from .._backend.xla.backend import XLA
from .._common.check import check_choice, check_flag
from .._core.decomposition import Decomposition
from .._operator.fft import FFT3D
from .._operator.halo import HaloExchange
from .._plan.stage import Move
from .trial import Task, fastest, there_and_back
from .tuner import AbstractTuner


Kind = Literal["transpose", "halo"]
Library = Literal["mpi", "nccl", "nvshmem"]
Sizes = tuple[int, ...]
_LIBRARIES = ("mpi", "nccl", "nvshmem")


@dataclass(frozen=True)
class CuDecompTuner(AbstractTuner):
    """Choose the process grid and the communication of `CuDecomp()`. The choice is one candidate for `dops.autotune`.

    With CUDA-aware MPI, cuDecomp makes the choice itself. It times transposes (without Fourier transforms) or halo
    updates, and the first rank prints the times. Without CUDA-aware MPI, or if a halo is wider than a block, cuDecomp
    cannot choose. The tuner then measures every way of communicating itself, by Fourier transforms or by halo
    exchanges, and reports each measurement as a `Trial`.

    !!! example

        ```python
        dec = dops.autotune((1024, 1024, 1024), dtype="float64", backends=[dops.CuDecompTuner(halo=2)])
        fft, exchange = dops.FFT3D(dec, real=True), dops.HaloExchange(dec, 2)
        ```

    **Arguments:**

    - `halo`, `periodic`: the arguments of the `HaloExchange` that is timed. If there is no halo along x and y, the
        communication of halo exchanges is not tuned.
    - `grid_mode`: "transpose" chooses the process grid by the time of transposes, "halo" by the time of halo exchanges.
    - `libraries`: the libraries that may communicate. `None` allows all of them, except "mpi" if MPI is not CUDA-aware.
        Libraries that are missing in cuDecomp's build are skipped.
    - `cuda_aware_mpi`: whether MPI accepts pointers to a GPU's memory. `None` asks MPI.
    - `communicator`: the key of a communicator that was passed to `CuDecomp.initialize`. The `devices` of
        `dops.autotune` must be the devices of its ranks.

    **Raises:** `ValueError` or `TypeError` if an argument is not valid. `dops.autotune` raises `ValueError` if the grid
    does not have three axes, and `RuntimeError` if `CuDecomp.initialize()` has not been called, or if cuDecomp fails.
    """

    halo: Any = 0
    periodic: Any = True
    grid_mode: Kind = "transpose"
    libraries: Sequence[Library] | None = None
    cuda_aware_mpi: bool | None = None
    communicator: str = "world"

    def __post_init__(self):
        check_choice("grid_mode", self.grid_mode, NAMES)
        x, y, _ = self.widths
        if self.grid_mode == "halo" and x == y == 0:
            raise ValueError(f"`halo` must be positive along x or y for `grid_mode='halo'`; got {self.halo!r}.")
        if self.libraries is not None and not (self.libraries and set(self.libraries) <= set(_LIBRARIES)):
            raise ValueError(f"`libraries` must be some of {_LIBRARIES}; got {self.libraries!r}.")
        if self.cuda_aware_mpi is not None:
            check_flag("cuda_aware_mpi", self.cuda_aware_mpi)

    @property
    def exchange(self) -> HaloExchange:
        """The halo exchange that is tuned, on an abstract mesh."""
        return HaloExchange(AbstractMesh((1,), ("x",)), self.halo, periodic=self.periodic, backend=XLA())

    @property
    def widths(self) -> tuple[int, int, int]:
        """The wider side of the halo along x, y and z."""
        x, y, z = (max(pair) for pair in self.exchange.halo)
        return x, y, z

    def candidates(self, task: Task) -> list[Decomposition]:
        if (len(task.shape), len(task.axes)) != (3, 2):
            raise ValueError(
                "`shape` must have three axes and `axes` two, because cuDecomp's process grids have two; got "
                f"{task.shape} and {task.axes}."
            )
        if task.dtype.name not in DTYPES:
            raise TypeError(f"`dtype` must be one of {DTYPES}, which cuDecomp has; got {task.dtype}.")
        known = launch.find(self.communicator, CuDecomp(communicator=self.communicator))
        if not {device.process_index for device in task.devices} <= known.ranks.keys():
            raise ValueError(
                f"`devices` must be devices of the ranks of communicator {self.communicator!r}; got {task.devices}."
            )
        cuda_aware = grids.mpi_is_cuda_aware() if self.cuda_aware_mpi is None else self.cuda_aware_mpi
        if "mpi" in (self.libraries or ()) and not cuda_aware:
            raise ValueError(
                f"`libraries` must not have 'mpi' unless MPI says that it is CUDA-aware; got {self.libraries!r}. If "
                "MPI is CUDA-aware but does not say so, pass `cuda_aware_mpi=True`."
            )
        libraries = tuple(self.libraries or _LIBRARIES[not cuda_aware :])

        (nx, ny, _), (x, y, _) = task.shape, self.widths

        def choose(kind: Kind, sizes: list[Sizes]) -> tuple[Sizes, str]:
            # cuDecomp's search for halo updates fails if, on any of the process grids, a halo is wider than a block.
            fits = all(x <= nx // rows and y <= ny // columns for rows, columns in sizes)
            if cuda_aware and (fits or kind == "transpose"):
                return self._by_cudecomp(task, kind, sizes, libraries)
            return self._by_trials(task, kind, sizes, libraries)

        first: Kind = self.grid_mode
        second: Kind = "transpose" if first == "halo" else "halo"
        sizes, name = choose(first, task.sizes)
        if sizes not in task.sizes:  # cuDecomp pads, so it may choose a mesh that `task` excludes.
            sizes, name = self._by_trials(task, first, task.sizes, libraries)
        chosen = {first: name}
        if second == "transpose" or max(x, y) > 0:
            _, chosen[second] = choose(second, [sizes])
        return [self._decompose(task, sizes, **chosen)]

    def _decompose(self, task: Task, sizes: Sizes, **chosen: Any) -> Decomposition:
        return task.decompose(sizes, CuDecomp(**chosen, communicator=self.communicator))

    def _by_cudecomp(self, task: Task, kind: Kind, sizes: list[Sizes], libraries: tuple[str, ...]) -> tuple[Sizes, str]:
        """Return the process grid and the way to communicate that cuDecomp chooses.

        If `sizes` has only one process grid, cuDecomp keeps it.
        """
        known = launch.known[self.communicator]
        ranks = tuple(known.ranks[device.process_index] for device in task.devices)
        if kind == "transpose":
            (field, orders), dtype = _transposed(task), np.result_type(task.dtype, np.complex64)
        else:
            field, orders, dtype = task.shape, ((2, 1, 0),) * 3, task.dtype
        rows, columns = sizes[0] if len(sizes) == 1 else (0, 0)
        search = grids.Search(
            field,
            (rows, columns),
            orders,
            DTYPES.index(dtype.name),
            self.widths,
            self.exchange.periodic,
            kind == "halo",
            *(library in libraries for library in _LIBRARIES),
            trials=task.repeats,
        )
        rows, columns, number = grids.choose(self.communicator, known.handle, ranks, search)
        return (rows, columns), NAMES[kind][number - 1]

    def _by_trials(self, task: Task, kind: Kind, sizes: list[Sizes], libraries: tuple[str, ...]) -> tuple[Sizes, str]:
        """Return the process grid and the communication with the fastest Fourier transforms or halo exchanges."""
        names = [name for name in NAMES[kind] if name.split("_")[0] in libraries]
        candidates = [self._decompose(task, grid, **{kind: name}) for name in names for grid in sizes]
        chosen = candidates[fastest(task, candidates, there_and_back(task.real) if kind == "transpose" else self._halo)]
        return chosen.sizes, cast(str, getattr(chosen.backend, kind))

    def _halo(self, decomposition: Decomposition) -> HaloExchange:
        return HaloExchange(decomposition, self.halo, periodic=self.periodic)


def _transposed(task: Task) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the lengths of the fields that Fourier transforms exchange, and the storage orders of their pencils."""
    any_grid = Decomposition(AbstractMesh((2, 2), ("x", "y")), shape=task.shape, pad=True, backend=XLA())
    moves = [stage for stage in FFT3D(any_grid, real=task.real).plan().stages if isinstance(stage, Move)]
    z_to_y, y_to_x = (move for move in moves if move.gathered is not None)
    layouts = y_to_x.after, y_to_x.before, z_to_y.before
    return z_to_y.before.lengths, tuple(order_of((0, 1, 2), layout) for layout in layouts)
