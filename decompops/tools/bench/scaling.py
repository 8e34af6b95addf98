"""The command `scaling`: measure what single steps cost on this machine, and let two models predict many ranks.

`model.py` predicts whole operators, and `order.py` what the ranks need to agree on the order of calls.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import equinox as eqx
import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding

from ... import FFT3D, MPI, Stencil
from ...solve import CG
from ...spectral import Helmholtz
from .model import OPERATORS, Machine, Seconds, Shape, fitted, near_square, seconds, strong, weak
from .order import ANNOUNCEMENT_BYTES, Costs, Order, simulate
from .run import make_mesh


_LARGE_BYTES = 1 << 22
_SOLVER_STEPS = 20
# The number of times that `report_scaling` calls `on_step`.
STEPS = 4


@dataclass(frozen=True)
class Future:
    """The machine whose scaling is predicted. What is `None` is as measured on this machine.

    - `sizes`: numbers of ranks.
    - `ranks`: the number of ranks of a node.
    - `latency`: seconds that a short message travels.
    - `link`: bytes that a node sends in a second.
    """

    sizes: list[int]
    ranks: int | None = None
    latency: float | None = None
    link: float | None = None

    def machine(self, here: Machine) -> Machine:
        names = ("ranks", "latency", "link")
        return replace(here, **{name: given for name in names if (given := getattr(self, name)) is not None})


def report_scaling(shape: Shape, future: Future, on_step: Callable[[str], None] = lambda text: None) -> list[str]:
    """Return the lines that the command `scaling` prints for blocks of `shape`.

    All ranks must call this function. `on_step` is called with the name of each step, before the step.
    """
    mesh, one = near_square(jax.process_count()), make_mesh((1, 1), jax.local_devices())
    on_step("timing operators on one rank")
    dispatch = _median(_times(_transform(one, (2, 2, 2))))
    times = {name: _times(make(one, shape)) for name, make in _CALLS.items()}
    alone = {name: _median(found) for name, found in times.items()} | {"copy": _median(_times(_copy(shape)))}
    on_step("timing messages")
    network = _network()
    on_step("timing operators on all ranks")
    grid, everywhere = _grid(shape, mesh), make_mesh(mesh, jax.devices())
    real = {name: _median(_times(make(everywhere, grid))) for name, make in _CALLS.items()}
    for found in (alone, real):
        found["solver step"] /= _SOLVER_STEPS
    here = fitted(network, shape, alone)
    on_step("running the models")
    model = {name: seconds(work(grid, mesh), mesh, here) for name, work in OPERATORS.items()}
    there = future.machine(here)
    spread = _spread(times["transform"])
    costs = Costs(dispatch, here.overhead, there.latency, 1 / there.link, alone["transform"], spread)
    return [
        f"blocks of {_named(shape)}, single precision; {_named(mesh)} ranks, {here.ranks} on each node",
        f"on each rank: transforms {here.operations / 1e9:.3g} GFlop/s, copies {here.memory / 1e9:.3g} GB/s,",
        f"stencils {here.stencils / 1e6:.3g} and updates {here.updates / 1e6:.3g} million cells/s",
        f"link {here.link / 1e9:.3g} GB/s, latency {1e6 * here.latency:.3g} us, "
        f"overhead of a message {1e6 * here.overhead:.3g} us",
        *_compared(alone, real, model),
        *_predicted(shape, future.sizes, there),
        *_ordered(costs, 8 * math.prod(shape), future.sizes),
    ]


def _compared(alone: dict[str, float], real: dict[str, float], model: dict[str, Seconds]) -> list[str]:
    lines = ["", f"{'ms':12} {'one rank':>10} {'all ranks':>10} {'model':>10} {'model/real':>10}"]
    for name, found in real.items():
        times = (alone[name], found, model[name].total)
        cells = "".join(f" {1e3 * seconds:10.3f}" for seconds in times)
        lines.append(f"{name:12}{cells} {model[name].total / found:10.2f}")
    return lines


def _predicted(block: Shape, sizes: list[int], machine: Machine) -> list[str]:
    """Return lines with predicted times. In strong scaling, the first number of ranks has blocks of shape `block`."""
    grid = _grid(block, near_square(sizes[0]))
    curves = [
        curve for name in OPERATORS for curve in (weak(name, block, sizes, machine), strong(name, grid, sizes, machine))
    ]
    heads = [f"{name}, {kind}" for name in OPERATORS for kind in ("weak", "strong")]
    lines = [
        "",
        f"predicted ms (share of the network), with {machine.ranks} ranks on each node",
        f"weak: a block of {_named(block)} on each rank; strong: a grid of {_named(grid)}",
        f"{'ranks':>8}" + "".join(f" {head:>19}" for head in heads),
    ]
    for size, row in zip(sizes, zip(*curves)):
        cells = (f"{1e3 * one.total:.3g} ({one.network / one.total:.0%})" for one in row)
        lines.append(f"{size:8}" + "".join(f" {cell:>19}" for cell in cells))
    return lines


def _ordered(costs: Costs, block_bytes: int, sizes: list[int]) -> list[str]:
    lines = [
        "",
        "us a call: the time of a transform with a tree of announcements;",
        "tree, one by one: the share that each order of announcements adds to a call",
        f"{'ranks':>8} {'us a call':>12} {'tree':>12} {'one by one':>12}",
    ]
    for size in sizes:
        free, tree, flat = (simulate(near_square(size), costs, block_bytes, order) for order in get_args(Order))
        lines.append(f"{size:8} {1e6 * tree:12.1f} {tree / free - 1:12.2%} {flat / free - 1:12.2%}")
    return lines


def _named(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _grid(block: Shape, mesh: tuple[int, int]) -> Shape:
    return block[0] * mesh[0], block[1] * mesh[1], block[2]


def _transform(mesh: Mesh, shape: Shape) -> Callable[[], Any]:
    return _call(FFT3D(mesh, shape=shape, backend=MPI()), np.complex64)


def _stencil(mesh: Mesh, shape: Shape) -> Callable[[], Any]:
    return _call(_one_minus_laplacian(mesh, shape), np.float32)


def _copy(shape: Shape) -> Callable[[], Any]:
    """Return a function that copies a complex field to memory that exists already, as kernels pack messages."""
    source, target = np.ones(shape, np.complex64), np.ones(shape, np.complex64)
    return lambda: np.copyto(target, source)


def _solver_step(mesh: Mesh, shape: Shape) -> Callable[[], Any]:
    """Return a call of a solver. Its preconditioner is so poor that it always takes `_SOLVER_STEPS` steps."""
    preconditioner = Helmholtz(FFT3D(mesh, real=True, shape=shape, backend=MPI()), 100.0)
    operator = _one_minus_laplacian(mesh, shape)
    return _call(CG(operator, preconditioner, rtol=1e-9, max_steps=_SOLVER_STEPS, if_unconverged="return"), np.float32)


_CALLS = {"transform": _transform, "stencil": _stencil, "solver step": _solver_step}


def _one_minus_laplacian(mesh: Mesh, shape: Shape) -> Stencil:
    def of_block(h: Array) -> Array:
        inner = slice(1, -1)
        u = h[inner, inner, inner]
        x, y, z = h[:, inner, inner], h[inner, :, inner], h[inner, inner, :]
        around = x[2:] + x[:-2] + y[:, 2:] + y[:, :-2] + z[:, :, 2:] + z[:, :, :-2]
        return 7 * u - around

    return Stencil(mesh, of_block, shape=shape, backend=MPI())


def _call(operator: Any, dtype: type) -> Callable[[], Any]:
    """Return a function that applies an operator to a random field. Each process makes its own block of the field."""
    layout = operator.in_layout
    rng = np.random.default_rng(jax.process_index())
    block = rng.standard_normal(layout.local_shape).astype(dtype)
    field = jax.make_array_from_single_device_arrays(
        layout.shape, NamedSharding(layout.mesh, layout.spec), [jax.device_put(block, jax.local_devices()[0])]
    )
    call = eqx.filter_jit(lambda operator, field: operator(field))
    return lambda: call(operator, field)


def _times(call: Callable[[], Any], least: float = 0.5) -> np.ndarray:
    """Return the seconds of as many calls as take about `least` seconds in all. All ranks begin together."""

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(call())
        return time.perf_counter() - start

    slowest = _world().allreduce(min(seconds() for _ in range(4)), _mpi().MAX)  # The first call compiles.
    return np.array([seconds() for _ in range(min(max(int(least / slowest), 5), 300))])


def _median(times: np.ndarray) -> float:
    """Return the mean over all ranks of the median of the times."""
    return float(np.mean(_world().allgather(float(np.median(times)))))


def _spread(times: np.ndarray) -> float:
    """Return the relative standard deviation of the fastest nine tenths of the times."""
    fastest = np.sort(times)[: len(times) * 9 // 10]
    return float(np.std(fastest) / np.mean(fastest))


def _network() -> Machine:
    """Measure the costs of messages between two nodes, and return a machine whose rates are still unknown.

    Each rank of the first node exchanges messages with a rank of the second node. If there is only one node, each rank
    counts as a node.
    """
    world = _world()
    ranks = world.Split_type(_mpi().COMM_TYPE_SHARED).size
    ranks = 1 if ranks == world.size else world.bcast(ranks)
    overhead, small = _ping_pong(world, ranks)
    link = ranks * _LARGE_BYTES / _both_ways(world, ranks)
    return Machine(math.inf, math.inf, math.inf, math.inf, overhead, max(small - 2 * overhead, 0.0), link, ranks)


def _ping_pong(world: Any, other: int, repeats: int = 300) -> tuple[float, float]:
    """Return the seconds until a short message from rank 0 to rank `other` is started, and until it has arrived."""
    message, started, arrived = np.zeros(ANNOUNCEMENT_BYTES, np.uint8), 0.0, 0.0
    world.Barrier()
    for _ in range(repeats if world.rank in (0, other) else 0):
        start = time.perf_counter()
        if world.rank == 0:
            request = world.Isend(message, other)
            started += time.perf_counter() - start
            request.Wait()
            world.Recv(message, other)
            arrived += (time.perf_counter() - start) / 2
        else:
            world.Recv(message, 0)
            world.Send(message, 0)
    return world.bcast((started / repeats, arrived / repeats))


def _both_ways(world: Any, ranks: int, repeats: int = 10) -> float:
    """Return the time in which each rank of the first two nodes sends and receives a long message."""
    sent, received, seconds = np.zeros(_LARGE_BYTES, np.uint8), np.zeros(_LARGE_BYTES, np.uint8), 0.0
    world.Barrier()
    other = (world.rank + ranks) % (2 * ranks)
    if world.rank < 2 * ranks:
        start = time.perf_counter()
        for _ in range(repeats):
            request = world.Isend(sent, other)  # Posted first, both directions work at once: see docs/kernels_mpi.md.
            world.Recv(received, other)
            request.Wait()
        seconds = (time.perf_counter() - start) / repeats
    return world.allreduce(seconds, _mpi().MAX)


def _mpi() -> Any:
    from mpi4py import MPI as module

    return module


def _world() -> Any:
    return _mpi().COMM_WORLD
