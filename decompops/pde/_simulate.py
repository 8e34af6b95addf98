"""`simulate`: a long run, which is observed, written to disk, interrupted, and goes on."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax import Array
from jax.sharding import Mesh

from .._check import check_count, check_number
from ..io import Checkpoints, Writer
from ._advance import advance, advance_controlled, state_of
from ._clock import Clock, Position
from ._integrator import AbstractIntegrator, History
from ._observed import Observed
from ._progress import progress as show_progress
from ._saver import Saver
from ._step_control import AbstractStepControl
from ._stopping import Request, listening


class NotFinite(RuntimeError):
    """A simulation reached a state that is not finite. The last one that is finite is `state`, at the time `t`."""

    def __init__(self, text: str, state: Any, t: float):
        super().__init__(text)
        self.state, self.t = state, t


@dataclass(frozen=True)
class Snapshots:
    """What `simulate` writes to disk, in the background, as `decompops.io.write` does.

    - `path`: the name of each file, with a place for the number of the interval, such as `"run/{:06}.zarr"`.
    - `every`: after how many intervals; 1 by default.
    - `fields`: a function from a state to a dictionary of fields on the grid. By default the fields of the state, as
        "u".
    - `units`, `attributes`: as for `io.write`.
    """

    path: str | os.PathLike
    every: int = 1
    fields: Callable | None = None
    units: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        check_count("every", self.every)
        names = {str(self.path).format(i) for i in range(2)}
        if len(names) < 2:
            raise ValueError(f"`path` must have a place for a number, such as 'run/{{:06}}.zarr'; got {self.path!r}.")

    def write(self, writer: Writer, solver: AbstractIntegrator, number: int, t: float, u: Array) -> None:
        """Write the state of interval `number`, if it is one of `every`."""
        if number % self.every == 0:
            equation: Any = solver.equation
            fields = {"u": equation.fields(u)} if self.fields is None else self.fields(u)
            path, facts = str(self.path).format(number), {"units": self.units, "attributes": self.attributes}
            writer.write(path, fields, equation.transform, box=equation.box, time=t, **facts)


@dataclass(frozen=True)
class Simulation:
    """What `simulate` returns.

    - `u`: the last state, or the `History` of a multi-step method if it began with one.
    - `t`: its time.
    - `steps`: how many steps were made, from the very beginning.
    - `times`: the times of the observations.
    - `observed`: what `observe` returned at these times, as NumPy arrays, stacked; `None` without it.
    """

    u: Any
    t: float
    steps: int
    times: np.ndarray
    observed: Any


def simulate(
    solver: AbstractIntegrator,
    u: Any,
    t_end: float,
    *,
    t: float = 0.0,
    args: Any = None,
    interval: float | None = None,
    observe: Callable | None = None,
    control: AbstractStepControl | None = None,
    write: Snapshots | None = None,
    checkpoint: str | os.PathLike | None = None,
    minutes: float = 10.0,
    progress: bool = True,
) -> Simulation:
    """Run from the time `t` to `t_end`, in any number of steps and with any number of interruptions.

    With `checkpoint` the run is saved from time to time, and goes on from there when the same program is started again,
    on the same mesh or another one. When a queue warns it, by SIGTERM or SIGUSR1, the run saves itself, and the program
    ends with the exit status 128 + the number of the signal. For steps that are differentiated, see `rollout`.

    **Arguments:**

    - `solver`: such as `ETDRK`. All steps are `solver.dt` long. With `control`, only the first one that is tried.
    - `u`: the state at the time `t`, or the `History` of a multi-step method.
    - `t_end`: the end. A run that was saved may go on to a later one.
    - `args`: handed on to the equation.
    - `interval`: the time from one observation to the next. It divides the whole time, and is a whole number of steps
        where these are all equal. By default there is one interval.
    - `observe`: a function `(t, u)` of a state, which is compiled. It is called at the beginning and after each
        interval.
    - `control`: `CFL` or `ErrorControl`, for a one-step method.
    - `write`: the `Snapshots` to write at the beginning and after intervals.
    - `checkpoint`: a folder for the checkpoints of this run. It needs `pip install "decompops[io]"`.
    - `minutes`: how long the run goes on from one checkpoint to the next.
    - `progress`: whether the first process shows the time, the rate, and the time left.

    **Returns:** a `Simulation`.

    **Raises:** `ValueError` or `TypeError` for arguments that do not fit, also with the run that is saved in the
    folder; `NotFinite` for a state that is not finite, after the last one that is has been saved; what `decompops.io`
    raises.
    """
    if not (control is None or isinstance(control, AbstractStepControl)):
        raise TypeError(f"`control` must be `CFL`, `ErrorControl` or None; got {control!r}.")
    if not (write is None or isinstance(write, Snapshots)):
        raise TypeError(f"`write` must be a `Snapshots` or None; got {write!r}.")
    check_number("minutes", minutes, least=0)
    carried = solver.start(u)
    if control is not None and isinstance(carried, History):
        raise TypeError("`control` must be None for a multi-step method, whose steps are all equal; use `ETDRK`.")
    dt = float(solver.dt)
    clock = Clock.of(float(t), float(t_end), interval, None if control is not None else dt)
    position = Position(carried, 0, 0, clock.start, 0, 0.0, dt)
    mesh: Any = solver.in_structure.layout.mesh
    run = _Run(solver, args, clock, control)
    observed = Observed(observe, mesh)
    with ExitStack() as stack:
        saver = _saver(stack, checkpoint, minutes, mesh, solver)
        writer = stack.enter_context(Writer())
        report = stack.enter_context(show_progress(progress, clock.start, clock.end))

        def look(position: Position) -> None:
            state, now = state_of(position.carried), clock.begin(position.intervals)
            observed.look(now, state)
            if write is not None:
                write.write(writer, solver, position.intervals, now, state)

        position = saver.restored(clock, position, observed)
        if not observed.times:
            look(position)
        while position.intervals < clock.intervals:
            before, (position, finite) = position, run.advance(position, saver.pace.steps)
            report(clock.time(position), position.steps)
            if not finite:
                saver.save(clock, position, observed)
                raise _not_finite(clock, position, checkpoint)
            if position.intervals > before.intervals:
                look(position)
            saver.after(clock, position, position.steps - before.steps, observed)
        saver.save(clock, position, observed)
    times, results = observed.stacked()
    last = position.carried if isinstance(u, History) else state_of(position.carried)
    return Simulation(last, clock.time(position), position.steps, times, results)


@dataclass(frozen=True)
class _Run:
    """Programs that go on from one position to another."""

    solver: AbstractIntegrator
    args: Any
    clock: Clock
    control: AbstractStepControl | None

    def advance(self, position: Position, most: int) -> tuple[Position, bool]:
        """The position after at most so many steps, at the end of the interval at the latest; and whether the next
        state is finite."""
        clock = self.clock
        if self.control is None:
            left = clock.steps_left(position)
            base, done, count = np.asarray(position.base), np.int32(position.done), np.int32(min(left, most))
            carried, made, finite = advance(self.solver, position.carried, base, done, count, self.args)
            made = int(made)
            done, ended = position.done + made, made == left
            position = replace(position, carried=carried, done=done, steps=position.steps + made)
        else:
            start, length = np.asarray(clock.begin(position.intervals)), np.asarray(clock.interval)
            carried, since, proposal, made, finite = advance_controlled(
                self.solver,
                self.control,
                position.carried,
                start,
                np.asarray(position.since),
                np.asarray(position.proposal),
                length,
                np.int32(most),
                self.args,
            )
            ended = float(since) >= float(since.dtype.type(clock.interval))
            position = replace(
                position,
                carried=carried,
                since=0.0 if ended else float(since),
                proposal=float(proposal),
                steps=position.steps + int(made),
            )
        return replace(position, intervals=position.intervals + ended), bool(finite)


def _saver(
    stack: ExitStack, folder: str | os.PathLike | None, minutes: float, mesh: Mesh, solver: AbstractIntegrator
) -> Saver:
    """Without a folder, signals do what they always do."""
    if folder is None:
        return Saver(None, minutes, mesh, solver.in_structure, Request())
    checkpoints = stack.enter_context(Checkpoints(folder))
    return Saver(checkpoints, minutes, mesh, solver.in_structure, stack.enter_context(listening()))


def _not_finite(clock: Clock, position: Position, folder: Any) -> NotFinite:
    t = clock.time(position)
    saved = "" if folder is None else f" It is saved in {folder}."
    return NotFinite(
        f"`u` must stay finite, but after t = {t:.6g} (step {position.steps}) it does not. The state there is `state` "
        f"of this exception.{saved} Use smaller steps, or more points.",
        position.carried,
        t,
    )
