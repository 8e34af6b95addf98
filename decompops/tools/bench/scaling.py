"""A model of the MPI kernels on many ranks: the time that the ranks need to agree on the order of calls.

The first rank of a mesh decides which call comes next, and announces this call to the other ranks along a tree of
ranks. `measured` measures the costs of single steps on this machine. `simulate` uses these costs to follow the clocks
of all ranks through calls of a transform.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ... import FFT3D, MPI
from .run import make_mesh


Order = Literal["none", "tree", "one by one"]
ANNOUNCEMENT_BYTES = 824  # `Announcement` in ffi/mpi/order.h


@dataclass(frozen=True)
class Costs:
    """The costs of single steps in seconds.

    - `dispatch`: the time from one call to the next, without the work of the call.
    - `overhead`: the time for which a message keeps its sender or its receiver busy.
    - `latency`: the time that a short message travels from one rank to another.
    - `byte`: the additional time of each byte in a message.
    - `transform`: the time to transform one block along all axes; `spread` is its relative standard deviation.
    """

    dispatch: float
    overhead: float
    latency: float
    byte: float
    transform: float
    spread: float


def children(rank: int, size: int) -> list[int]:
    """Return the ranks to which `Team::announce` in C++ sends an announcement of a rank, in the order of sending."""
    lowest = rank & -rank if rank else 1 << max(size - 1, 1).bit_length()
    bits = [1 << i for i in reversed(range(lowest.bit_length() - 1))]
    return [rank + bit for bit in bits if rank + bit < size]


def simulate(
    parts: tuple[int, int], costs: Costs, block_bytes: int, order: Order = "tree", *, calls: int = 20, seed: int = 0
) -> float:
    """Return the seconds of each call of a transform on a mesh of `parts` ranks.

    A block of `block_bytes` is exchanged along each mesh axis that has several ranks.
    """
    rng = np.random.default_rng(seed)
    clock = np.zeros(parts)
    axes = [axis for axis, size in enumerate(parts) if size > 1]
    for _ in range(calls):
        clock += costs.dispatch
        clock = _announced(clock.ravel(), costs, order).reshape(parts)
        for axis in (*axes, None):
            spread = np.maximum(1 + costs.spread * rng.standard_normal(parts), 0)
            clock += costs.transform / (len(axes) + 1) * spread
            if axis is not None:
                clock = _exchanged(clock, axis, costs, block_bytes)
    return float(clock.max()) / calls


def _announced(clock: np.ndarray, costs: Costs, order: Order) -> np.ndarray:
    """Return the time at which each rank begins with a call, if the ranks are ready at the times `clock`."""
    size = len(clock)
    if order == "none" or size == 1:
        return clock
    if order == "one by one":
        heard = clock[0] + costs.overhead * np.arange(size) + costs.latency
        return np.concatenate([[clock[0] + costs.overhead * (size - 1)], np.maximum(clock, heard + costs.overhead)[1:]])
    heard, sent = clock.copy(), np.zeros(size)
    for level in reversed(range((size - 1).bit_length())):
        parents = np.arange(0, size, 2 << level)
        parents = parents[parents + (1 << level) < size]
        others = parents + (1 << level)
        sent[parents] += 1
        arrives = heard[parents] + costs.overhead * sent[parents] + costs.latency
        heard[others] = np.maximum(clock[others], arrives) + costs.overhead
    return heard + costs.overhead * sent


def _exchanged(clock: np.ndarray, axis: int, costs: Costs, block_bytes: int) -> np.ndarray:
    """Return the time at which each rank ends an exchange along `axis`, if the ranks start it at the times `clock`."""
    size = clock.shape[axis]
    sent = clock + 2 * costs.overhead * (size - 1)
    travels = costs.latency + costs.byte * block_bytes * (size - 1) / size
    return np.maximum(sent, sent.max(axis=axis, keepdims=True) + travels)


def measured(
    shape: tuple[int, int, int],
    parts: tuple[int, int],
    repeats: int = 300,
    on_step: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Measure the costs on this machine, with blocks of `shape`. All ranks must call this function.

    The messages go between ranks 0 and 1. Each rank transforms the whole grid alone, so that lines have their full
    length. The time to transform a block is the time of this transform, divided by the number of ranks.
    """
    world, size = _world(), math.prod(parts)
    alone = make_mesh((1, 1), jax.local_devices())
    on_step("timing transforms on one rank")
    dispatch = _seconds(_transform(alone, (2, 2, 2)), repeats)
    whole = _seconds(_transform(alone, _grid_of(shape, parts)), repeats // size)
    transform = np.median(dispatch) + (whole - np.median(dispatch)) / size
    on_step("timing messages")
    overhead, small = _ping_pong(world, ANNOUNCEMENT_BYTES, repeats)
    _, large = _ping_pong(world, _LARGE_BYTES, 10)
    own = (np.median(dispatch), np.median(transform) - np.median(dispatch), _spread(transform))
    everywhere = np.array(world.allgather(own)).mean(axis=0).tolist()
    dispatch, transform, spread = everywhere
    overhead, small, large = world.bcast((overhead, small, large))
    latency = max(small - 2 * overhead, 0.0)
    return Costs(dispatch, overhead, latency, (large - small) / _LARGE_BYTES, transform, spread)


def seconds_per_call(shape: tuple[int, int, int], parts: tuple[int, int], repeats: int = 300) -> float:
    """Return the seconds that a transform on all ranks takes, with blocks of `shape`. All ranks must call this."""
    call = _transform(make_mesh(parts, jax.devices()), _grid_of(shape, parts))
    return max(_world().allgather(float(np.median(_seconds(call, repeats)))))


# The number of times that `report_scaling` calls `on_step`.
STEPS = 4


def report_scaling(
    shape: tuple[int, int, int],
    ranks: list[int],
    latency: float | None,
    on_step: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Return the lines that the command `scaling` prints for blocks of `shape`.

    All ranks must call this function. `latency` is in microseconds; if it is `None`, the measured latency is used.
    `on_step` is called with the name of each step, before the step.
    """
    here = _mesh(jax.process_count())
    costs = measured(shape, here, on_step=on_step)
    block_bytes = 8 * math.prod(shape)
    on_step("timing transforms on all ranks")
    real = seconds_per_call(shape, here)
    model = simulate(here, costs, block_bytes)
    numbers = [f"{name} {1e6 * value:.4g}" for name, value in asdict(costs).items() if name != "spread"]
    lines = [
        f"blocks of {'x'.join(map(str, shape))} complex64; costs in us:",
        f"  {', '.join(numbers)}; spread {costs.spread:.3f}",
        f"{'x'.join(map(str, here))} ranks here: a call takes {1e6 * real:.1f} us, by the model {1e6 * model:.1f}",
        "us a call: the time of a call with a tree of announcements;",
        "tree, one by one: the share that each order of announcements adds to a call",
        f"{'ranks':>8} {'us a call':>12} {'tree':>12} {'one by one':>12}",
    ]
    if latency is not None:
        costs = replace(costs, latency=1e-6 * latency)
    on_step("running the model")
    for size in ranks:
        free, tree, flat = (simulate(_mesh(size), costs, block_bytes, order) for order in get_args(Order))
        lines.append(f"{size:8} {1e6 * tree:12.1f} {tree / free - 1:12.2%} {flat / free - 1:12.2%}")
    return lines


def _mesh(size: int) -> tuple[int, int]:
    """Return the sizes of a mesh of `size` ranks, as square as possible."""
    rows = next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)
    return size // rows, rows


def _grid_of(shape: tuple[int, int, int], parts: tuple[int, int]) -> tuple[int, int, int]:
    return shape[0] * parts[0], shape[1] * parts[1], shape[2]


_LARGE_BYTES = 1 << 22


def _world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _transform(mesh: Mesh, shape: tuple[int, ...]) -> Callable[[], Any]:
    """Return a function that transforms a complex field of `shape`. Each process makes its own block of the field."""
    fft = FFT3D(mesh, shape=shape, backend=MPI())
    layout = fft.plan().source
    block = np.random.default_rng(0).standard_normal(layout.block_shape).astype(np.complex64)
    field = jax.make_array_from_single_device_arrays(
        layout.shape, NamedSharding(mesh, layout.spec), [jax.device_put(block, jax.local_devices()[0])]
    )
    call = jax.jit(fft)
    return lambda: call(field)


def _seconds(call: Callable[[], Any], repeats: int) -> np.ndarray:
    """Return the times of `repeats` calls in seconds. All ranks begin the first call together."""
    for _ in range(20):
        jax.block_until_ready(call())
    _world().Barrier()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return np.array(times)


def _spread(times: np.ndarray) -> float:
    """Return the relative standard deviation of the fastest nine tenths of the times."""
    fastest = np.sort(times)[: len(times) * 9 // 10]
    return float(np.std(fastest) / np.mean(fastest))


def _ping_pong(world: Any, size: int, repeats: int) -> tuple[float, float]:
    """Return two times of a message of `size` bytes in seconds: until it is started, and until it has arrived."""
    message, started, arrived = np.zeros(size, np.uint8), 0.0, 0.0
    world.Barrier()
    for _ in range(repeats if world.rank < 2 else 0):
        start = time.perf_counter()
        if world.rank == 0:
            request = world.Isend(message, 1)
            started += time.perf_counter() - start
            request.Wait()
            world.Recv(message, 1)
            arrived += (time.perf_counter() - start) / 2
        else:
            world.Recv(message, 0)
            world.Send(message, 0)
    world.Barrier()
    return started / repeats, arrived / repeats
