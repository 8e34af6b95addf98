"""`CuDecomp.autotune`: cuDecomp's own choice of process grid and communication, or ours where it cannot make one."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from ._autotune import Trial, check_dtype, fastest, mesh_sizes, there_and_back
from ._backend import grids, launch
from ._backend.cudecomp import DTYPES, NAMES, CuDecomp, order_of
from ._backend.xla import XLA
from ._blocks import Triple
from ._check import check_count, check_flag, check_shape
from ._decomposition import Decomposition
from ._operator.fft import FFT3D
from ._operator.halo import HaloExchange
from ._plan.stage import Move
from ._sharding import AxisTypes


Kind = Literal["transpose", "halo"]
Sizes = tuple[int, int]
LIBRARIES = ("mpi", "nccl", "nvshmem")


def autotune(
    shape: Sequence[int],
    *,
    dtype: Any,
    halo: Any,
    periodic: Any,
    grid_mode: str,
    libraries: Sequence[str] | None,
    mpi_knows_gpus: bool | None,
    communicator: str,
    axes: tuple[str, str],
    axis_types: AxisTypes,
    repeats: int,
    on_trial: Callable[[Trial], None] | None,
) -> Decomposition:
    """What `CuDecomp.autotune` does."""
    lengths, repeats, dtype = check_shape("shape", shape), check_count("repeats", repeats), check_dtype(dtype)
    if dtype.name not in DTYPES:
        raise TypeError(f"`dtype` must be one of {DTYPES}, which cuDecomp has; got {dtype}.")
    if grid_mode not in NAMES:
        raise ValueError(f"`grid_mode` must be one of {tuple(NAMES)}; got {grid_mode!r}.")
    real = not jnp.issubdtype(dtype, jnp.complexfloating)
    any_grid = Decomposition(AbstractMesh((2, 2), axes, axis_types=axis_types), shape=lengths, backend=XLA())
    exchange = HaloExchange(any_grid, halo, periodic=periodic)
    x, y, z = (max(pair) for pair in exchange.halo)
    if grid_mode == "halo" and x == y == 0:
        raise ValueError(f"`halo` must be positive along x or y for `grid_mode='halo'`; got {halo!r}.")

    known = launch.find(communicator, CuDecomp(communicator=communicator))
    knows = grids.mpi_knows_gpus() if mpi_knows_gpus is None else check_flag("mpi_knows_gpus", mpi_knows_gpus)
    chosen = LIBRARIES[not knows :] if libraries is None else tuple(libraries)
    if not chosen or not set(chosen) <= set(LIBRARIES):
        raise ValueError(f"`libraries` must be some of {LIBRARIES}; got {libraries!r}.")
    if "mpi" in chosen and not knows:
        raise ValueError(
            f"`libraries` must not have 'mpi' if MPI does not say that it knows GPUs; got {libraries!r}. If it knows "
            "them nevertheless, say so by `mpi_knows_gpus=True`."
        )

    devices = np.array([device for device in jax.devices() if device.process_index in known.ranks])
    ranks = tuple(known.ranks[device.process_index] for device in devices)

    def decompose(sizes: Sizes, **backends: Any) -> Decomposition:
        mesh = Mesh(devices.reshape(sizes), axes, axis_types=axis_types)
        return Decomposition(mesh, shape=lengths, backend=CuDecomp(**backends, communicator=communicator))

    def by_cudecomp(kind: Kind, sizes: Sizes | None) -> tuple[Sizes, str]:
        if kind == "transpose":
            (field, orders), moved = _transposed(any_grid, lengths, real), np.result_type(dtype, np.complex64)
        else:
            field, orders, moved = lengths, ((2, 1, 0),) * 3, dtype
        allowed = (library in chosen for library in LIBRARIES)
        number, parts = DTYPES.index(moved.name), sizes or (0, 0)
        search = grids.Search(
            field, parts, orders, number, (x, y, z), exchange.periodic, kind == "halo", *allowed, trials=repeats
        )
        rows, columns, backend = grids.choose(communicator, known.handle, ranks, search)
        return (rows, columns), NAMES[kind][backend - 1]

    def one_by_one(kind: Kind, sizes: Sizes | None) -> tuple[Sizes, str]:
        candidates = [
            decompose(grid, **{kind: name})
            for name in NAMES[kind]
            if name.split("_")[0] in chosen
            for grid in ([sizes] if sizes else mesh_sizes(len(devices)))
        ]
        operator = there_and_back(real) if kind == "transpose" else _exchange(halo, periodic)
        dec = candidates[fastest(candidates, operator, dtype, repeats, on_trial)]
        return dec.sizes, cast(str, getattr(dec.backend, kind))

    def choose(kind: Kind, sizes: Sizes | None) -> tuple[Sizes, str]:
        # On a grid where a halo exceeds a block cuDecomp fails altogether.
        grids_tried = [sizes] if sizes else mesh_sizes(len(devices))
        fits = all(x <= lengths[0] // rows and y <= lengths[1] // columns for rows, columns in grids_tried)
        return (by_cudecomp if knows and (fits or kind == "transpose") else one_by_one)(kind, sizes)

    first, second = ("halo", "transpose") if grid_mode == "halo" else ("transpose", "halo")
    sizes, backend = choose(first, None)
    backends = {first: backend}
    if second == "transpose" or max(x, y) > 0:
        _, backends[second] = choose(second, sizes)
    return decompose(sizes, **backends)


def _transposed(dec: Decomposition, lengths: Triple, real: bool) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The lengths of what transforms move, and how they store its x-, y- and z-pencils."""
    moves = [stage for stage in FFT3D(dec, real=real).plan(lengths).stages if isinstance(stage, Move)]
    z_to_y, y_to_x = (move for move in moves if move.gathered is not None)
    layouts = y_to_x.after, y_to_x.before, z_to_y.before
    return z_to_y.before.lengths, tuple(order_of((0, 1, 2), layout) for layout in layouts)


def _exchange(halo: Any, periodic: Any) -> Callable[[Decomposition], Callable]:
    return lambda decomposition: HaloExchange(decomposition, halo, periodic=periodic)
