"""Binomial schedules: which states of a long chain to store, and which to compute again."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """Which states of a chain of blocks are stored, and computed again, so that the blocks can be reversed in turn.

    The schedule has the fewest moves (Griewank & Walther, ACM Trans. Math. Softw. 26, 2000). Stored states are a
    stack: a move takes the state before one block to the state before the next one, and puts it into the place above,
    or into its own place if it is not needed again. The block whose state lies on top is reversed, and the state is
    dropped.

    - `first`: the place of the state before each block, in the forward run. Moves that it has made are not repeated.
    - `blocks`, `sources`, `targets`: for each move, the block, and the places that it reads and writes.
    - `ends`: for each block, how many moves have been made when it is reversed.
    - `tops`: for each block, the place that its state is in when it is reversed.
    """

    first: np.ndarray
    blocks: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    ends: np.ndarray
    tops: np.ndarray


def binomial_schedule(length: int, places: int) -> Schedule:
    """The optimal schedule for a chain of `length` blocks, with at least two places for states if it has two blocks.

    All places but one hold checkpoints. The last one holds the state that moves on.
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
    """The moves of the optimal schedule: `r l - C(c + r, r - 1)`, with the least r for which `l <= C(c + r, r)`."""
    repetitions = _repetitions(length, checkpoints)
    return repetitions * length - math.comb(checkpoints + repetitions, repetitions - 1) if repetitions else 0


def _repetitions(length: int, checkpoints: int) -> int:
    repetitions = 0
    while math.comb(checkpoints + repetitions, checkpoints) < length:
        repetitions += 1
    return repetitions


def _split(length: int, checkpoints: int) -> int:
    """After how many of `length` blocks to store a state, where `checkpoints` are left, the first state's included."""
    r = _repetitions(length, checkpoints)
    return min(math.comb(checkpoints + r - 1, checkpoints), length - math.comb(checkpoints + r - 2, checkpoints - 1))
