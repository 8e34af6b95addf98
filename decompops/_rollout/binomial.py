"""Binomial schedules: they say which states of a long chain of steps are stored, and which are recomputed."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """The order in which a reverse-mode derivative of a chain of blocks stores and recomputes states.

    A block is one step, or several consecutive steps. The derivative *reverses* the blocks from last to first: to
    differentiate a block, it needs the state before this block. A *move* advances the state before a block to the state
    before the next block. A *place* is memory for one state. No other schedule with the same number of places needs
    fewer moves (Griewank & Walther, ACM Trans. Math. Softw. 26, 2000).

    The stored states are a stack. A move reads a state and writes the next state to the place above. If no later move
    needs the state that was read, the move overwrites this state instead. When the state before a block is on top of
    the stack, the block is reversed, and the state is removed.

    - `first`: for each block, the place to which the forward run writes the state before the block.
    - `blocks`, `sources`, `targets`: for each move after the forward run, the number of the block, the place that the
        move reads, and the place that it writes.
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

    The schedule stores at most `checkpoints` states. Let l be `length`, c be `checkpoints`, and r the smallest integer
    with `l <= C(c + r, r)`, where C is the binomial coefficient. Then the number of moves is `r l - C(c + r, r - 1)`.
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

    The next `length` blocks have `checkpoints` places. The state before these blocks takes one of the places.
    """
    r = _repetitions(length, checkpoints)
    return min(math.comb(checkpoints + r - 1, checkpoints), length - math.comb(checkpoints + r - 2, checkpoints - 1))
