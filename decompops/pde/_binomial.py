"""Binomial schedules: which states of a long chain to store, and which to recompute."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """A schedule that stores and recomputes states of a chain of blocks, so that the blocks can be reversed in turn.

    The schedule has the fewest moves (Griewank & Walther, ACM Trans. Math. Softw. 26, 2000). A move advances the state
    before a block to the state before the next block. The stored states are a stack: a move writes to the place above
    the state that it reads, or overwrites this state if it is not needed again. The block whose state is on top of the
    stack is reversed, and its state is removed.

    - `first`: for each block, the place to which the forward run writes the state before the block. The moves of the
        forward run are not repeated.
    - `blocks`, `sources`, `targets`: for each move, the block, the place to read and the place to write.
    - `ends`: for each block, the number of moves before it is reversed.
    - `tops`: for each block, the place of its state when it is reversed.
    """

    first: np.ndarray
    blocks: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    ends: np.ndarray
    tops: np.ndarray


def binomial_schedule(length: int, places: int) -> Schedule:
    """Return the optimal schedule for a chain of `length` blocks. Two or more blocks need at least two places.

    All places but the last hold checkpoints. The last place holds the state that moves.
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
    """Return the number of moves of the optimal schedule for `l` blocks and `c` checkpoints.

    The number is `r l - C(c + r, r - 1)`, with the smallest r for which `l <= C(c + r, r)`.
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

    `checkpoints` places are left for the next `length` blocks, and the state before them has one of these places.
    """
    r = _repetitions(length, checkpoints)
    return min(math.comb(checkpoints + r - 1, checkpoints), length - math.comb(checkpoints + r - 2, checkpoints - 1))
