"""Saves a simulation from time to time, and restores a saved simulation."""

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


# The approximate run time of a program. Between programs, Python handles signals and shows the progress.
SECONDS_PER_PROGRAM = 1.0


class Pace:
    """The number of steps of a program that runs for about `SECONDS_PER_PROGRAM`, equal on all processes."""

    def __init__(self):
        self.steps, self._last = 4, None

    def adapt(self, steps: int) -> int:
        """Return the number of steps that this process proposes for the next program. The last one took `steps`."""
        now, last = time.monotonic(), self._last
        self._last = now
        if last is None or not steps:  # The first program was compiled.
            return self.steps
        return max(1, min(4 * self.steps, round(steps * SECONDS_PER_PROGRAM / max(now - last, 1e-6)), 2**30))


class Saver:
    """The checkpoints of a run, if it saves any, and the agreement of its processes after each program."""

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
        """Return the position of the newest checkpoint, or `first` if the run has no checkpoint.

        Raises `ValueError` for a checkpoint of a run with other intervals, observations or, in a multi-step method,
        another step length.
        """
        if self._checkpoints is None or self._checkpoints.latest is None:
            return first
        tree = self._tree(clock, first)
        found = self._checkpoints.restore(tree, {"u": self._structure})
        if (found["start"], found["interval"]) != (clock.start, clock.interval):
            raise ValueError(
                f"`t` and `interval` must be as in the run saved in {self._checkpoints.folder}, {found['start']:g} and "
                f"{found['interval']:g}; got {clock.start:g} and {clock.interval:g}. Use another folder for "
                "`checkpoint`."
            )
        position = Position(found["u"], **{name: found[name] for name in _NUMBERS})
        if found["dt"] != tree["dt"]:
            if isinstance(found["u"], History):
                raise ValueError(
                    f"`solver.dt` must be as in the run saved in {self._checkpoints.folder}, {found['dt']:g}, for a "
                    f"multi-step method; got {tree['dt']:g}. Use this `dt`, or another folder for `checkpoint`."
                )
            # The steps have another length now, so they are counted from the current time on.
            now = replace(clock, dt=found["dt"] or None).time(position)
            position = replace(position, base=now, done=0, since=now - clock.begin(position.intervals))
        observed.load(self._checkpoints.folder / "observed.npz", position.intervals + 1, state_of(first.carried))
        return position

    def save(self, clock: Clock, position: Position, observed: Observed) -> None:
        """Save the run, unless the newest checkpoint is already at this position."""
        if self._checkpoints is None or self._checkpoints.latest == position.steps:
            return
        if jax.process_index() == 0:
            observed.save(self._checkpoints.folder / "observed.npz")
        self._checkpoints.save(position.steps, self._tree(clock, position), {"u": self._structure})
        self._last = time.monotonic()

    def after(self, clock: Clock, position: Position, steps: int, observed: Observed) -> None:
        """Save the run if a checkpoint is due or a process got a signal. After a signal, end the program."""
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
                message = f"Stopped by signal {stop} at t = {t:.6g}. Run the program again to continue from {folder}."
                print(message, file=sys.stderr)
            raise SystemExit(128 + stop)

    def _tree(self, clock: Clock, position: Position) -> dict[str, Any]:
        numbers = {name: getattr(position, name) for name in _NUMBERS}
        facts = {"start": clock.start, "interval": clock.interval, "dt": clock.dt or 0.0}
        return {"u": position.carried, **numbers, **facts}


_NUMBERS = ("steps", "intervals", "base", "done", "since", "proposal")
