"""Saves a simulation at regular times and at its end."""

import time
from dataclasses import replace
from typing import Any

import jax

from .._common.agreement import exchange_numbers
from .._common.say import say
from .._core.structure import Structure
from ..io import Checkpoints, Writer
from ._clock import Clock, Position
from ._observed import Observed
from ._restart import NAMES, restored, saved_tree
from ._stopping import Request


# Each compiled program should run for about this time, because Python handles signals and shows the progress only
# between programs.
SECONDS_PER_PROGRAM = 1.0


class Pace:
    """The number of steps of a program that runs for about `SECONDS_PER_PROGRAM`. All processes use the same number."""

    def __init__(self):
        self.steps, self._last = 4, None

    def adapt(self, steps: int) -> int:
        """Return the number of steps that this process proposes for the next program. The last program took `steps`."""
        now, last = time.monotonic(), self._last
        self._last = now
        if last is None or not steps:  # The time of the first program includes compilation.
            return self.steps
        return max(1, min(4 * self.steps, round(steps * SECONDS_PER_PROGRAM / max(now - last, 1e-6)), 2**30))


class Saver:
    """Saves the checkpoints of a run, if the run has any.

    After each compiled program, all processes of the run agree whether to save and whether to end.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        writer: Writer,
        request: Request,
        minutes: float,
        structure: Structure,
        description: dict[str, Any],
    ):
        self._checkpoints, self._writer, self._request = checkpoints, writer, request
        # The box is part of the description, so `Checkpoints` need not warn of another box as well.
        self._structure = replace(structure, layout=replace(structure.layout, box=None))
        self._seconds, self._description = 60 * minutes, description
        self._mesh: Any = structure.layout.mesh
        self._last, self.pace = time.monotonic(), Pace()
        self._saved: tuple[int, float] | None = None  # The steps and the time of the newest checkpoint.

    def claim(self) -> Exception | None:
        """Claim the folder of checkpoints, and return the error if that fails. A finished run needs no claim."""
        try:
            if self._checkpoints is not None:
                self._checkpoints.claim()
        except (OSError, RuntimeError) as error:
            return error
        return None

    def restored(
        self, clock: Clock, first: Position, interval: float | None, observed: Observed
    ) -> tuple[Clock, Position] | None:
        """Return the clock and the position of the saved run, or `None` if there is none. See `_restart.restored`."""
        if self._checkpoints is None:
            return None
        found = restored(self._checkpoints, self._structure, self._description, clock, first, interval, observed)
        if found is not None:
            clock, position = found
            self._saved = position.steps, clock.time(position)
        return found

    def save(self, clock: Clock, position: Position, observed: Observed) -> None:
        """Save the run, unless the newest checkpoint is already at this position."""
        if self._checkpoints is None or (self._saved is not None and self._saved[0] == position.steps):
            return
        # All earlier snapshots must be complete, because a run that continues from this checkpoint does not write them
        # again.
        self._writer.wait()
        # If a newer checkpoint was damaged, its number is not used again.
        number = max([position.steps, *(step + 1 for step in self._checkpoints.steps)])
        tree = saved_tree(clock, position, observed)
        description = {**self._description, NAMES: observed.names}
        self._checkpoints.save(number, tree, {"u": self._structure}, description=description)
        self._saved, self._last = (position.steps, clock.time(position)), time.monotonic()

    def after(self, clock: Clock, position: Position, steps: int, observed: Observed) -> None:
        """Save the run if a checkpoint is due. Save it and end the program if any process has received a signal."""
        due = self._checkpoints is not None and time.monotonic() - self._last >= self._seconds
        numbers = exchange_numbers(self._mesh, self._request.number, int(due), self.pace.adapt(steps))
        _, due, self.pace.steps = numbers[min(numbers)]
        stop = max(signal for signal, _, _ in numbers.values())
        if due or stop:
            self.save(clock, position, observed)
        self._end(stop, clock.time(position))

    def finish(self, clock: Clock, position: Position, observed: Observed) -> None:
        """Save the run at its end. If a process has received a signal, end the program."""
        self.save(clock, position, observed)
        if self._checkpoints is not None:
            self._checkpoints.wait()
        numbers = exchange_numbers(self._mesh, self._request.number)
        self._end(max(signal for (signal,) in numbers.values()), clock.time(position))

    @property
    def restart(self) -> str:
        """A sentence that says where this run continues when it is started again; empty if the run is not saved."""
        if self._checkpoints is None:
            return ""
        folder = self._checkpoints.folder
        if self._saved is None:
            return f" The next start begins again, because {folder} has no checkpoint yet."
        return f" The next start continues from t = {self._saved[1]:.6g}, the newest checkpoint in {folder}."

    def _end(self, stop: int, t: float) -> None:
        """If a process has received a signal, wait until the last checkpoint is complete, and end the program."""
        if self._checkpoints is None or not stop:
            return
        self._checkpoints.wait()
        if jax.process_index() == 0:
            folder = self._checkpoints.folder
            say(f"Stopped by signal {stop} at t = {t:.6g}. Run the program again to continue from {folder}.")
        raise SystemExit(128 + stop)
