"""Binomial schedules: which states of a long chain to store, and which to recompute."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """The states of a chain of blocks that a reverse-mode derivative stores, and the states that it recomputes.

    The derivative *reverses* the blocks from last to first: it needs the state before a block to differentiate the
    block. A *move* advances the state before a block to the state before the next block. The schedule has the fewest
    moves (Griewank & Walther, ACM Trans. Math. Softw. 26, 2000).

    The stored states are a stack. A move writes to the place above the state that it reads, or overwrites the state
    that it reads if no later move needs this state. When the state before a block is on top of the stack, the block is
    reversed, and the state is removed.

    - `first`: for each block, the place to which the forward run writes the state before the block.
    - `blocks`, `sources`, `targets`: for each move after the forward run, the block, the place to read and the place
        to write.
    - `ends`: for each block, the number of these moves that are made before the block is reversed.
    - `tops`: for each block, the place of the state before the block when the block is reversed.
    """

    first: np.ndarray
    blocks: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    ends: np.ndarray
    tops: np.ndarray


def binomial_schedule(length: int, places: int) -> Schedule:
    """Return the optimal schedule for a chain of `length` blocks. Two or more blocks need at least two places.

    All places but the last hold stored states. The last place holds the state that is being advanced.
    """
    stored, moves, ends, tops = [0], [], [], []
    first = np.zeros(length, np.int32)
    for block in reversed(range(length)):
        while stored[-1] < block:
            place = len(stored)
            start, target = stored[-1], stored[-1] + _split(block + 1 - stored[-1], places - place)
            if block == length - 1:
                first[start + 1 : target + 1] = place
            else:
                moves += [(at, place - (at == start), place) for at in range(start, target)]
            stored.append(target)
        ends.append(len(moves))
        tops.append(len(stored) - 1)
        stored.pop()
    blocks, sources, targets = np.array(moves, np.int32).reshape(-1, 3).T
    return Schedule(first, blocks, sources, targets, np.array(ends[::-1], np.int32), np.array(tops[::-1], np.int32))


def count_moves(length: int, checkpoints: int) -> int:
    """Return the number of moves of the optimal schedule for a chain of `length` blocks.

    For `l = length` and `c = checkpoints`, the number is `r l - C(c + r, r - 1)`, with the smallest r for which
    `l <= C(c + r, r)`.
    """
    repetitions = _repetitions(length, checkpoints)
    return repetitions * length - math.comb(checkpoints + repetitions, repetitions - 1) if repetitions else 0


def _repetitions(length: int, checkpoints: int) -> int:
    repetitions = 0
    while math.comb(checkpoints + repetitions, checkpoints) < length:
        repetitions += 1
    return repetitions


def _split(length: int, checkpoints: int) -> int:
    """Return the number of blocks after which to store a state.

    `checkpoints` places are left for the next `length` blocks. The state before these blocks has one of the places.
    """
    r = _repetitions(length, checkpoints)
    return min(math.comb(checkpoints + r - 1, checkpoints), length - math.comb(checkpoints + r - 2, checkpoints - 1))
