"""The time of a simulation: its position and its intervals."""

import math
from dataclasses import dataclass, field
from typing import Any


# The relative tolerance for whole numbers of steps. Times are sums of steps, so they have rounding errors.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Position:
    """The position of a simulation in time.

    - `carried`: the state, or the `History` of a multi-step method.
    - `steps`, `intervals`: the numbers of steps and of complete intervals since the beginning.
    - `base`, `done`: for steps of equal length, the time from which steps are counted, and the number of steps since.
    - `since`, `proposal`: for controlled steps, the time since the beginning of the current interval, and the proposed
        length of the next step.
    """

    carried: Any = field(repr=False)
    steps: int
    intervals: int
    base: float
    done: int
    since: float
    proposal: float


@dataclass(frozen=True)
class Clock:
    """The intervals of a simulation from the time `start` on. `dt` is `None` if steps are controlled."""

    start: float
    interval: float
    intervals: int
    dt: float | None

    @staticmethod
    def of(start: float, end: float, interval: float | None, dt: float | None) -> "Clock":
        """Return the clock of a run. Raises `ValueError` unless steps divide intervals and intervals divide the run."""
        if not (math.isfinite(start) and math.isfinite(end) and end >= start):
            raise ValueError(f"`t_end` must be a finite time not before `t`, {start:g}; got {end!r}.")
        length = end - start if interval is None else float(interval)
        if end == start:
            return Clock(start, length, 0, dt)
        intervals = _count(end - start, length)
        if intervals is None:
            raise ValueError(f"`interval` must divide the time from {start:g} to {end:g}; got {interval!r}.")
        if dt is not None and _count(length, dt) is None:
            near = length / max(1, math.ceil(length / dt * (1 - ROUNDING))) if dt > 0 else length
            raise ValueError(
                f"`interval` must be a whole number of steps of `solver.dt`, {dt:g}; got {length:g}. For example, "
                f"choose `dt={near:.6g}`."
            )
        return Clock(start, length, intervals, dt)

    @property
    def end(self) -> float:
        """The end of the last interval."""
        return self.begin(self.intervals)

    def begin(self, interval: int) -> float:
        """Return the time at which an interval begins."""
        return self.start + self.interval * interval

    def time(self, position: Position) -> float:
        """Return the time of a position."""
        if self.dt is None:
            return self.begin(position.intervals) + position.since
        return position.base + self.dt * position.done

    def steps_left(self, position: Position) -> int:
        """Return the number of steps of equal length until the end of the interval.

        Raises `ValueError` if the rest of the interval is no whole number of steps, because the saved run had another
        step length.
        """
        now, end = self.time(position), self.begin(position.intervals + 1)
        left = _count(end - now, self.dt or 0.0)
        if left is None:
            raise ValueError(
                f"`solver.dt` must divide the rest of the interval, from {now:g} to {end:g}; got {self.dt:g}. The "
                "saved run has another `dt`: use it until the end of the interval."
            )
        return left


def _count(whole: float, part: float) -> int | None:
    """Return how many times `part` fits into `whole`, or `None` if `part` does not divide `whole`."""
    if not part > 0:
        return None
    count = round(whole / part)
    return count if count > 0 and abs(count * part - whole) <= ROUNDING * whole else None
