"""The clock of a simulation: its intervals, and its position in time."""

import math
from dataclasses import dataclass, field
from typing import Any


# The relative tolerance of the checks for a whole number of steps. Times are sums of steps, so times have rounding
# errors.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Position:
    """The position of a simulation in time.

    - `carried`: the state, or the `History` of a multi-step method.
    - `steps`, `intervals`: the numbers of steps and of complete intervals since the beginning of the simulation.
    - `since`: the time from the beginning of the current interval to the state. With steps of equal length, this time
        does not include the last `done` steps.
    - `done`: for steps of equal length, the number of steps after the time `since`.
    - `proposal`: for steps whose lengths a step control chooses, the proposed length of the next step.
    """

    carried: Any = field(repr=False)
    steps: int
    intervals: int
    since: float
    done: int
    proposal: float


@dataclass(frozen=True)
class Clock:
    """The intervals of a simulation from the time `start` on. `dt` is `None` if a step control chooses the steps."""

    start: float
    interval: float
    intervals: int
    dt: float | None

    @staticmethod
    def of(start: float, end: float, interval: float | None, dt: float | None) -> "Clock":
        """Return the clock of a run. Its `dt` divides the interval up to one rounding error.

        Raises `ValueError` if an interval is not a whole number of steps, or if the run is not a whole number of
        intervals. Rounding errors are allowed.
        """
        if not (math.isfinite(start) and math.isfinite(end) and end >= start):
            raise ValueError(f"`t_end` must be a finite time not before `t`, {start!r}; got {end!r}.")
        length = end - start if interval is None else float(interval)
        intervals = 0 if end == start else count(end - start, length)
        if intervals is None:
            raise ValueError(f"`interval` must divide the time from {start!r} to {end!r}; got {length!r}.")
        if dt is None or length == 0:
            return Clock(start, length, intervals, dt)
        steps = count(length, dt)
        if steps is None:
            near = length / max(1, math.ceil(length / dt * (1 - ROUNDING))) if dt > 0 else length
            raise ValueError(
                f"`interval` must be a whole number of steps of `solver.dt`, {dt!r}; got {length!r}. For example, "
                f"choose `dt={near!r}`."
            )
        return Clock(start, length, intervals, length / steps)

    @property
    def end(self) -> float:
        """The end of the last interval."""
        return self.begin(self.intervals)

    def begin(self, interval: int) -> float:
        """Return the time at which an interval begins."""
        return self.start + self.interval * interval

    def time(self, position: Position) -> float:
        """Return the time of a position."""
        return self.base(position) + (self.dt or 0.0) * position.done

    def base(self, position: Position) -> float:
        """Return the time from which `position.done` counts the steps."""
        return self.begin(position.intervals) + position.since

    def steps_left(self, position: Position) -> int:
        """Return the number of steps of equal length that are left in the interval, rounded to an integer."""
        return round((self.interval - position.since) / (self.dt or self.interval)) - position.done


def count(whole: float, part: float) -> int | None:
    """Return how many times `part` fits into `whole`, or `None` if `part` does not divide `whole`."""
    if not part > 0:
        return None
    times = round(whole / part)
    return times if times > 0 and abs(times * part - whole) <= ROUNDING * whole else None
