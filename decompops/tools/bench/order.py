"""A model of the MPI kernels on many ranks: the time that the ranks need to agree on the order of calls.

The first rank of a mesh decides which call comes next, and announces this call to the other ranks along a tree of
ranks. `simulate` follows the clocks of all ranks through calls of a transform.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np


Order = Literal["none", "tree", "one by one"]
ANNOUNCEMENT_BYTES = 824  # `Announcement` in ffi/mpi/order.h


@dataclass(frozen=True)
class Costs:
    """The costs of single steps in seconds.

    - `dispatch`: the time from one call to the next, without the work of the call.
    - `overhead`: the time that a rank is busy with one message, as its sender or as its receiver.
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
