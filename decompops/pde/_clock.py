"""Where a simulation is in time."""

import math
from dataclasses import dataclass, field
from typing import Any


# Relative to what is counted: times are sums of steps, and not exact.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Position:
    """What a method carries, and how far it is.

    - `steps`, `intervals`: how many steps were made, and how many intervals are complete, since the beginning.
    - `base`, `done`: the time from which steps are counted, and their number since then, where all are equal.
    - `since`, `proposal`: the time in the interval that has begun, and the length of the next step, where steps are
        controlled.
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
    """The time from `start` on, in intervals, with steps of `dt` where all are equal and else `None`."""

    start: float
    interval: float
    intervals: int
    dt: float | None

    @staticmethod
    def of(start: float, end: float, interval: float | None, dt: float | None) -> "Clock":
        """The clock of a run, after a check that steps divide intervals, and intervals the whole."""
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
                f"`interval` must be a whole number of steps of `solver.dt`, {dt:g}; got {length:g}. Steps of "
                f"{near:.6g} would do."
            )
        return Clock(start, length, intervals, dt)

    @property
    def end(self) -> float:
        """The end of the last interval."""
        return self.begin(self.intervals)

    def begin(self, interval: int) -> float:
        """When an interval begins."""
        return self.start + self.interval * interval

    def time(self, position: Position) -> float:
        """The time of a position."""
        if self.dt is None:
            return self.begin(position.intervals) + position.since
        return position.base + self.dt * position.done

    def steps_left(self, position: Position) -> int:
        """How many steps of equal length end the interval.

        Raises `ValueError` where none do, in an interval that was begun with steps of another length.
        """
        now, end = self.time(position), self.begin(position.intervals + 1)
        left = _count(end - now, self.dt or 0.0)
        if left is None:
            raise ValueError(
                f"`solver.dt` must divide the rest of the interval, from {now:g} to {end:g}; got {self.dt:g}, where "
                "the saved run had another one."
            )
        return left


def _count(whole: float, part: float) -> int | None:
    """How many times `part` goes into `whole`, if it divides it."""
    if not part > 0:
        return None
    count = round(whole / part)
    return count if count > 0 and abs(count * part - whole) <= ROUNDING * whole else None
