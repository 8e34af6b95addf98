"""When a simulation saves itself, and how it goes on from there."""

import sys
import time
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from .._layout import exchange_numbers
from .._structure import Structure
from ..io import Checkpoints
from ._advance import state_of
from ._clock import Clock, Position
from ._integrator import History
from ._observed import Observed
from ._stopping import Request


# About how long a program runs before Python looks around, for signals and to show progress.
SECONDS_PER_PROGRAM = 1.0


class Pace:
    """How many steps a program makes, so that all processes take `SECONDS_PER_PROGRAM` for it."""

    def __init__(self):
        self.steps, self._last = 4, None

    def adapt(self, steps: int) -> int:
        """What this process would choose, after a program of so many steps."""
        now, last = time.monotonic(), self._last
        self._last = now
        if last is None or not steps:  # The first program was compiled.
            return self.steps
        return max(1, min(4 * self.steps, round(steps * SECONDS_PER_PROGRAM / max(now - last, 1e-6)), 2**30))


class Saver:
    """The checkpoints of a run, if it has any; and what its processes agree on after each program."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        minutes: float,
        mesh: Mesh,
        structure: Structure,
        request: Request,
    ):
        self._checkpoints, self._seconds, self._mesh, self._structure = checkpoints, 60 * minutes, mesh, structure
        self._request, self._last, self.pace = request, time.monotonic(), Pace()

    def restored(self, clock: Clock, first: Position, observed: Observed) -> Position:
        """The position of the newest checkpoint; `first` without one."""
        if self._checkpoints is None or self._checkpoints.latest is None:
            return first
        tree = self._tree(clock, first)
        found = self._checkpoints.restore(tree, {"u": self._structure})
        if (found["start"], found["interval"]) != (clock.start, clock.interval):
            raise ValueError(
                f"`t` and `interval` must be those of the run in {self._checkpoints.folder}, {found['start']:g} and "
                f"{found['interval']:g}; got {clock.start:g} and {clock.interval:g}. Use another folder for "
                "`checkpoint`."
            )
        position = Position(found["u"], **{name: found[name] for name in _NUMBERS})
        if found["dt"] != tree["dt"]:
            if isinstance(found["u"], History):
                raise ValueError(
                    f"`solver.dt` must be that of the run in {self._checkpoints.folder}, {found['dt']:g}, for a "
                    f"multi-step method; got {tree['dt']:g}."
                )
            # Steps of another length are counted from here on.
            now = replace(clock, dt=found["dt"] or None).time(position)
            position = replace(position, base=now, done=0, since=now - clock.begin(position.intervals))
        observed.load(self._checkpoints.folder / "observed.npz", position.intervals + 1, state_of(first.carried))
        return position

    def save(self, clock: Clock, position: Position, observed: Observed) -> None:
        """Save the run, unless it was saved here before."""
        if self._checkpoints is None or self._checkpoints.latest == position.steps:
            return
        if jax.process_index() == 0:
            observed.save(self._checkpoints.folder / "observed.npz")
        self._checkpoints.save(position.steps, self._tree(clock, position), {"u": self._structure})
        self._last = time.monotonic()

    def after(self, clock: Clock, position: Position, steps: int, observed: Observed) -> None:
        """Save the run where it is time, or where a process was asked to end, which then ends the program."""
        due = self._checkpoints is not None and time.monotonic() - self._last >= self._seconds
        numbers = exchange_numbers(self._mesh, self._request.number, int(due), self.pace.adapt(steps))
        _, due, self.pace.steps = numbers[min(numbers)]
        stop = max(signal for signal, _, _ in numbers.values())
        if due or stop:
            self.save(clock, position, observed)
        if stop and self._checkpoints is not None:
            self._checkpoints.wait()
            if jax.process_index() == 0:
                folder, t = self._checkpoints.folder, clock.time(position)
                print(f"Stopped by signal {stop} at t = {t:.6g}. Start again to go on from {folder}.", file=sys.stderr)
            raise SystemExit(128 + stop)

    def _tree(self, clock: Clock, position: Position) -> dict[str, Any]:
        numbers = {name: getattr(position, name) for name in _NUMBERS}
        facts = {"start": clock.start, "interval": clock.interval, "dt": clock.dt or 0.0}
        return {"u": position.carried, **numbers, **facts}


_NUMBERS = ("steps", "intervals", "base", "done", "since", "proposal")
