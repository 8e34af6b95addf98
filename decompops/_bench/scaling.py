"""What the order of calls costs on many ranks: a model of the MPI kernels, and its costs measured here.

The first rank of a mesh decides which call comes next, and a tree of ranks passes it on (docs/kernels.md). `simulate`
follows the clocks of all ranks through calls of a transform with two exchanges.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .._backend.mpi import MPI
from ..fft import FFT3D


Order = Literal["tree", "one by one", "none"]
ANNOUNCEMENT_BYTES = 824  # `Announcement` in ffi/mpi/team.h


@dataclass(frozen=True)
class Costs:
    """In seconds.

    `dispatch`: from one call to the next, without its work. `overhead`: a rank's time for one message. `latency`: from
    one rank to another. `byte`: of a byte in a message. `transform`: of one block along all axes. `spread`: by how much of
    that ranks differ, as a standard deviation.
    """

    dispatch: float
    overhead: float
    latency: float
    byte: float
    transform: float
    spread: float


def children(rank: int, size: int) -> list[int]:
    """To which ranks a rank passes an announcement on, in that order (`Team::announce`)."""
    lowest = rank & -rank if rank else 1 << max(size - 1, 1).bit_length()
    bits = [1 << i for i in reversed(range(lowest.bit_length() - 1))]
    return [rank + bit for bit in bits if rank + bit < size]


def simulate(
    parts: tuple[int, int], costs: Costs, block_bytes: int, order: Order = "tree", *, calls: int = 20, seed: int = 0
) -> float:
    """Seconds for each call, of a transform on a mesh of `parts` ranks.

    A block of `block_bytes` is exchanged along each mesh axis that has several ranks.
    """
    rng = np.random.default_rng(seed)
    clock = np.zeros(parts)
    sizes = [size for size in parts if size > 1]
    for _ in range(calls):
        clock += costs.dispatch
        clock = _announced(clock.ravel(), costs, order).reshape(parts)
        for phase in range(len(sizes) + 1):
            share = costs.transform / (len(sizes) + 1)
            clock += share * (1 + costs.spread * rng.standard_normal(parts))
            if phase < len(sizes):
                clock = _exchanged(clock, parts.index(sizes[phase]), costs, block_bytes)
    return float(clock.max()) / calls


def _announced(clock: np.ndarray, costs: Costs, order: Order) -> np.ndarray:
    """When ranks begin with a call that they are ready for at `clock`."""
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
    """When ranks have what those along a mesh axis send them. All of them begin at `clock`."""
    size = clock.shape[axis]
    sent = clock + 2 * costs.overhead * (size - 1)
    travels = costs.latency + costs.byte * block_bytes * (size - 1) / size
    return np.maximum(sent, sent.max(axis=axis, keepdims=True) + travels)


def measured(shape: tuple[int, int, int], repeats: int = 200) -> Costs:
    """The costs on this machine, for blocks of `shape`: all ranks call this. Messages go between ranks 0 and 1."""
    from mpi4py import MPI as mpi

    world = mpi.COMM_WORLD
    small = _ping_pong(world, ANNOUNCEMENT_BYTES, repeats)
    large = _ping_pong(world, 1 << 22, 10)
    overhead = _isend_seconds(world, repeats)
    call = _transform(Mesh(np.array([jax.local_devices()[0]]).reshape(1, 1), ("x", "y")), shape)
    times = _times(call, repeats)
    nothing = _times(_transform(Mesh(np.array([jax.local_devices()[0]]).reshape(1, 1), ("x", "y")), (2, 2, 2)), repeats)
    dispatch = float(np.median(nothing))
    transform = max(float(np.median(times)) - dispatch, 0.0)
    own = np.array([dispatch, transform, float(np.std(np.sort(times)[: repeats * 9 // 10])) / max(transform, 1e-9)])
    dispatch, transform, spread = np.mean(world.allgather(own), axis=0)
    mine = (overhead, max(small - 2 * overhead, 0.0), (large - small) / (1 << 22))
    overhead, latency, byte = world.bcast(mine, root=0)
    return Costs(dispatch, overhead, latency, byte, transform, spread)


def per_call(shape: tuple[int, int, int], parts: tuple[int, int], repeats: int = 200) -> float:
    """Seconds for each call of a transform of all ranks, of blocks of `shape`."""
    from mpi4py import MPI as mpi

    mesh = jax.make_mesh(parts, ("x", "y"))
    call = _transform(mesh, (shape[0] * parts[0], shape[1] * parts[1], shape[2]))
    return float(np.median(mpi.COMM_WORLD.allreduce(_times(call, repeats), op=mpi.MAX)))
