"""The devices, the sizes and the time limit that all sections of a report share."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ... import AbstractBackend
from ..bench.model import near_square


Shape = tuple[int, int, int]


class Clock:
    """The time limit of a report and of its current section."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds
        self.begin(1.0)

    def begin(self, share: float) -> None:
        """Start a section, which may take this share of the time that is left."""
        self._past: list[tuple[float, float]] = []
        now = time.monotonic()
        self._section_end = now + share * (self.end - now)

    def left(self) -> float:
        """The seconds that the section still has."""
        return max(self._section_end - time.monotonic(), 0.0)

    def allows(self, cost: float = 1.0) -> bool:
        """Return whether there is time for one more case.

        The case is expected to take as long as the longest earlier case with the same or a lower `cost`. Process 0
        decides for all processes, so that all processes run the same cases.
        """
        now = time.monotonic()
        expected = max((seconds for past, seconds in self._past if past <= cost), default=0.0)
        mine = now + expected < self._section_end
        return bool(multihost_utils.process_allgather(np.array(mine)).ravel()[0])

    def record(self, cost: float, start: float) -> None:
        """Remember a case that began at `start`."""
        self._past.append((cost, time.monotonic() - start))


@dataclass(frozen=True)
class Setting:
    """The devices, the sizes and the time limit that all sections of a report share.

    - `shapes`: the grids of the benchmarks, the smallest one first.
    - `small`: the grid for accuracy and memory.
    - `strong`: the number of cells along each axis of the grid for strong scaling.
    - `weak`: the number of cells along each axis of the block that each device has in weak scaling.
    - `block_bytes`: the sizes of the blocks whose copies and all-to-alls are timed.
    - `child_counts`: numbers of CPU cores. For each number, a child process with that many cores measures scaling.
    - `on_step`: a function that is called with the name of each measurement, before the measurement.
    """

    devices: list
    backend: AbstractBackend
    shapes: tuple[Shape, ...] = ((64, 64, 64), (128, 128, 128), (256, 256, 256))
    small: Shape = (48, 48, 48)
    strong: int = 256
    weak: int = 128
    block_bytes: tuple[int, ...] = (2**20, 2**23, 2**26)
    repeats: int = 5
    child_counts: tuple[int, ...] = ()
    clock: Clock = field(default_factory=lambda: Clock(600))
    on_step: Callable[[str], None] = lambda text: None

    @property
    def mesh_sizes(self) -> tuple[int, int]:
        """The mesh of all devices, as square as possible."""
        return near_square(len(self.devices))

    def each(self, cases: Iterable[Any], run: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Run each case for which there is time.

        The result has three lists. `rows` holds the results of `run`. `failed` holds the cases that failed, with their
        errors. `left_out` holds the cases for which there was no time.
        """
        found: dict[str, Any] = {"rows": [], "failed": [], "left_out": []}
        for case in cases:
            cost = math.prod(getattr(case, "shape", ()))
            if not self.clock.allows(cost):
                found["left_out"].append(described(case))
                continue
            self.on_step(described(case))
            start = time.monotonic()
            try:
                found["rows"].append(run(case))
            except Exception as error:  # The other cases should still run.
                found["failed"].append({"case": described(case), "error": first_line(error)})
            self.clock.record(cost, start)
        return found


def described(case: Any) -> str:
    """Describe a case by its kind, operator, grid, dtype and mesh. A case need not have a kind or a dtype."""
    if not hasattr(case, "operator"):
        return str(case)
    words = (getattr(case, "kind", ""), case.operator, _by(case.shape), getattr(case, "dtype", ""))
    return " ".join([*filter(None, words), "on mesh", _by(case.mesh)])


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def first_line(error: Exception) -> str:
    """Return the type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def gathered_numbers(*numbers: int) -> np.ndarray:
    """Gather these numbers from all processes, as an array of shape `(processes, len(numbers))`."""
    return multihost_utils.process_allgather(np.array(numbers)).reshape(jax.process_count(), -1)
