"""`simulate` makes long runs that can be observed, written to disk, interrupted and continued."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from .._common.agreement import differing, raised_by_all_of
from .._common.check import check_count, check_number, check_untraced
from ..io import Checkpoints, Writer
from ..io._agreement import check_writable_by_all
from ..io._parts import processes_of
from ._advance import advance, advance_controlled
from ._clock import Clock, Position
from ._description import described
from ._equation import AbstractEquation
from ._integrator import AbstractIntegrator, History, is_finite, state_of
from ._observed import Observed
from ._progress import progress as show_progress
from ._saver import Saver
from ._step_control import AbstractStepControl, with_dt
from ._stopping import Request, listening


class _Stopped(RuntimeError):
    def __init__(self, text: str, state: Any, t: float):
        super().__init__(text)
        self.state, self.t = state, t

    def __reduce__(self) -> tuple:  # Python copies and pickles errors by their message alone.
        return type(self), (str(self), self.state, self.t)


class NotFinite(_Stopped):
    """The error for a simulation that reached a state with infinities or NaNs.

    - `state`: the last finite state, or the `History` of a multi-step method.
    - `t`: the time of this state.
    """


class StepTooShort(_Stopped):
    """The error for a simulation whose `control` asks for a step as short as the rounding error of the time.

    - `state`: the last state, which is finite.
    - `t`: the time of this state.
    """


@dataclass(frozen=True)
class Snapshots:
    """The snapshots that `simulate` writes in the background, in the formats of `decompops.io.write`.

    **Arguments:**

    - `path`: the path of the files, with a placeholder for the number of intervals since the beginning of the run, such
        as `"run/{:06}.zarr"`. The length of an interval is the argument `interval` of `simulate`.
    - `every`: the number of intervals from one snapshot to the next.
    - `fields`: a function from a state to a dictionary of fields on the grid. By default, the snapshot has the fields
        of the state under the name "u".
    - `units`, `attributes`: the arguments of `io.write` with these names.

    **Raises:** `ValueError` if `path` has no placeholder, or if `every` is not a positive integer.
    """

    path: str | os.PathLike
    every: int = 1
    fields: Callable | None = None
    units: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        check_count("every", self.every)
        try:
            names = {str(self.path).format(i) for i in range(2)}
        except (IndexError, KeyError, ValueError):
            names = set()
        if len(names) < 2:
            raise ValueError(
                f"`path` must have a placeholder for a number, such as 'run/{{:06}}.zarr'; got {self.path!r}."
            )

    def check(self, number: int) -> None:
        """Raise `OSError` or `RuntimeError` on every process if one of them cannot write the snapshot of `number`."""
        check_writable_by_all(Path(str(self.path).format(number)).absolute().parent)

    def write(self, writer: Writer, solver: AbstractIntegrator, number: int, t: float, u: Array) -> None:
        """Write the state of interval `number`, if `every` divides `number`."""
        if number % self.every == 0:
            equation: Any = solver.equation
            fields = {"u": equation.fields(u)} if self.fields is None else self.fields(u)
            grid, state = equation.transform.in_structure.layout, solver.in_structure.layout
            for name, array in fields.items() if isinstance(fields, Mapping) else ():
                if state.holds(array) and not grid.holds(array):
                    raise ValueError(
                        f"`fields` must return fields on the grid; got a state for {name!r}. Apply `equation.fields`."
                    )
            path, facts = str(self.path).format(number), {"units": self.units, "attributes": self.attributes}
            writer.write(path, fields, equation.transform, time=t, **facts)


@dataclass(frozen=True)
class Simulation:
    """The result of `simulate`.

    - `u`: the last state, or the last `History` if the run started from a `History`.
    - `t`: the time of the last state.
    - `steps`: the number of steps since the beginning, including all steps before interruptions.
    - `times`: the times of the observations, of shape `(intervals + 1,)`.
    - `observed`: the results of `observe` at these times: NumPy arrays, stacked along a new leading axis. If there is
        no `observe`, this is `None`.
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
    progress: Callable | bool = True,
) -> Simulation:
    """Simulate from the time `t` to the time `t_end`, in any number of steps and with any number of interruptions.

    With `checkpoint`, the run saves itself every `minutes` minutes. If the program is started again, on the same mesh
    or on another mesh, the run continues from the newest checkpoint. If a batch system sends SIGTERM, SIGUSR1 or
    SIGUSR2, the run saves itself, and the program ends with the exit status 128 plus the number of the signal; Python
    allows this only in the main thread. To differentiate through time steps, use `solver.rollout` instead.

    !!! example

        ```python
        solver = pde.ETDRK(pde.NavierStokes(fft, viscosity=1e-3), dt=0.01)
        result = pde.simulate(
            solver,
            solver.equation.state(velocity),
            10.0,
            interval=0.5,
            observe=lambda t, u: jnp.sum(spectral.mean_square(solver.equation.transform, u)) / 2,
            write=pde.Snapshots("run/{:06}.zarr"),
            checkpoint="run/checkpoints",
        )
        plot.curves(result.times, {"kinetic energy": result.observed})
        ```

    **Arguments:**

    - `solver`: an integrator such as `ETDRK`. The length of all steps is `solver.dt`, rounded so that it divides
        `interval`. With `control`, `solver.dt` is only the length of the first step that is tried.
    - `u`: the state at the time `t`, or the `History` of a multi-step method.
    - `t_end`: the time at which the run ends. A saved run may continue to a later `t_end`.
    - `t`: the time of `u`.
    - `args`: any PyTree, passed to the equation.
    - `interval`: the time from one observation to the next. It must divide `t_end - t`. Without `control`, it must be a
        whole number of steps, up to a relative error of 1e-6. The default is the interval of the run in `checkpoint`,
        or `t_end - t` for a new run.
    - `observe`: a function `(t, u)` of the time t and the state u. `simulate` compiles this function, and calls it at
        the beginning and after each interval.
    - `control`: `CFL` or `ErrorControl`, for a one-step method. By default, all steps have the same length.
    - `write`: the `Snapshots` to write at the beginning and after every `write.every` intervals.
    - `checkpoint`: a folder for the checkpoints of this run. The mesh must have devices of every process. Checkpoints
        need orbax: `pip install orbax-checkpoint`.
    - `minutes`: the time from one checkpoint to the next, in minutes.
    - `progress`: whether the first process shows the simulated time, the time of a step and the remaining time; or a
        function `(t, t_end)` that is called on each process after each compiled program.

    **Returns:** a `Simulation`.

    **Raises:** `ValueError` or `TypeError` on every process if an argument is invalid, if the processes pass other
    times or options, or if an argument does not fit the run saved in `checkpoint`;
    `NotFinite` if a state is not finite; `StepTooShort` if `control` asks for steps that are too short; the errors of
    `decompops.io`, at the beginning if a folder cannot be written to or if another program or thread saves in
    `checkpoint`.
    `NotFinite` and `StepTooShort` hold the last finite state. This state is not saved in `checkpoint`.

    **Warns:** if the newest checkpoint is damaged, so that the run continues from an older checkpoint; if a saved run
    continues with other options of the equation or of the integrator, such as another box or viscosity.
    """
    times = {"t": t, "t_end": t_end, **({} if interval is None else {"interval": interval})}
    # JAX traces a program on all processes, which then cannot exchange errors.
    for name, tree in {**times, "solver": solver, "u": u, "args": args, "control": control}.items():
        check_untraced(name, tree, "simulate", "`solver.rollout`")
    if not isinstance(solver, AbstractIntegrator):
        raise TypeError(f"`solver` must be an integrator, such as `ETDRK(equation, dt=0.01)`; got {solver!r}.")
    mesh: Any = solver.in_structure.layout.mesh
    with raised_by_all_of(mesh):
        if not (control is None or isinstance(control, AbstractStepControl)):
            raise TypeError(f"`control` must be `CFL`, `ErrorControl` or None; got {control!r}.")
        if not (write is None or isinstance(write, Snapshots)):
            raise TypeError(f"`write` must be a `Snapshots` or None; got {write!r}.")
        if not (callable(progress) or isinstance(progress, bool)):
            raise TypeError(f"`progress` must be True, False or a function of (t, t_end); got {progress!r}.")
        for name, number in times.items():
            check_number(name, number)
        check_number("minutes", minutes, least=0)
        carried = solver.start(u)
        if control is not None and isinstance(carried, History):
            methods = "`ETDRK` or `IMEXRK`" if isinstance(solver.equation, AbstractEquation) else "`IMEXRK`"
            raise TypeError(
                "`control` must be None for a multi-step method, whose steps all have the same length; got "
                f"{control!r}. For `{type(solver.equation).__name__}`, the one-step methods are {methods}."
            )
        dt = float(solver.dt) if control is None else float(check_number("solver.dt", solver.dt, positive=True))
        clock = Clock.of(float(t), float(t_end), interval, None if control is not None else dt)
        observed = Observed(observe, mesh, is_saved=checkpoint is not None)
        # All processes save a checkpoint together.
        if checkpoint is not None and len(owners := processes_of(mesh)) < jax.process_count():
            raise ValueError(
                "`checkpoint` must be None on a mesh without devices of every process; got the processes "
                f"{list(owners)} of {jax.process_count()}. Save the result by `io.write`, or choose another mesh."
            )
        description = described(solver, args)
        options = description, described(control, None), observe is None, checkpoint is None
    files = write and (str(write.path), write.every)
    if others := differing(mesh, (clock, dt, interval is None, options, files)):
        raise ValueError(
            "every process must simulate with the same times and `solver.dt`, the same options of `solver`, `args` and "
            "`control`, and with `observe`, `write` and `checkpoint` alike; processes "
            f"{others} differ from process {jax.process_index()}, which simulates from t = {clock.start!r} to "
            f"{clock.end!r} with steps of {dt!r} and {description}."
        )
    finite = is_finite(solver, carried)
    check_untraced("u", finite, "simulate", "`solver.rollout`")  # Under `jax.jit`, all results are traced.
    position = Position(carried, 0, 0, 0.0, 0, dt)
    with ExitStack() as stack:
        # A signal does not end the program before all files are complete.
        request = Request() if checkpoint is None else stack.enter_context(listening())
        checkpoints = None if checkpoint is None else stack.enter_context(Checkpoints(checkpoint))
        writer = stack.enter_context(Writer())
        saver = Saver(checkpoints, writer, request, minutes, solver.in_structure, description)
        refused = saver.claim()  # Until the claim, another job may save a newer checkpoint.
        found = saver.restored(clock, position, interval, observed)
        clock, position = found or (clock, position)
        if refused is not None and position.intervals < clock.intervals:
            raise refused  # An error now saves the time until the first checkpoint.
        run = _Run(solver if clock.dt is None else with_dt(solver, clock.dt), args, clock, control)
        report = stack.enter_context(show_progress(progress, clock.start, clock.time(position), clock.end))

        def record(position: Position) -> None:
            state, now = state_of(position.carried), clock.begin(position.intervals)
            observed.add(now, state)
            if write is not None:
                write.write(writer, solver, position.intervals, now, state)

        if found is None:
            if not finite:
                raise ValueError(f"`u` must be finite, but it has infinities or NaNs at t = {clock.start:.6g}.")
            record(position)
        elif write is not None and position.intervals < clock.intervals:
            write.check(position.intervals + 1)
        while position.intervals < clock.intervals:
            before, (position, finite, short) = position, run.advance(position, saver.pace.steps)
            report(clock.time(position), position.steps)
            if short or not finite:
                raise _stopped(finite, clock, position, control, saver.restart)
            if position.intervals > before.intervals:
                record(position)
            saver.after(clock, position, position.steps - before.steps, observed)
        saver.finish(clock, position, observed)
    times = np.array([clock.begin(i) for i in range(clock.intervals + 1)])
    last = position.carried if isinstance(u, History) else state_of(position.carried)
    return Simulation(last, clock.time(position), position.steps, times, observed.results)


@dataclass(frozen=True)
class _Run:
    """The compiled programs that advance a simulation from one position to another."""

    solver: AbstractIntegrator
    args: Any
    clock: Clock
    control: AbstractStepControl | None

    def advance(self, position: Position, most: int) -> tuple[Position, bool, bool]:
        """Return the position after at most `most` steps, which do not go beyond the end of the interval.

        Also returns whether the next state is finite, and whether the next step is too short.
        """
        if self.control is None:
            left = self.clock.steps_left(position)
            base, done, count = np.asarray(self.clock.base(position)), np.int32(position.done), min(left, most)
            carried, made, finite = advance(self.solver, position.carried, base, done, np.int32(count), self.args)
            short, ended = False, int(made) == left
            position = replace(position, done=position.done + int(made))
        else:
            start, length = np.asarray(self.clock.begin(position.intervals)), self.clock.interval
            real = position.carried.real.dtype
            whole = np.asarray(position.since, real)
            carried, since, proposal, made, finite, short = advance_controlled(
                self.solver,
                self.control,
                position.carried,
                start,
                (whole, np.asarray(position.since - float(whole), real)),
                np.asarray(position.proposal),
                np.asarray(length),
                np.int32(most),
                self.args,
            )
            ended = float(since[0]) >= float(real.type(length))
            position = replace(position, since=sum(map(float, since)), proposal=float(proposal))
        position = replace(position, carried=carried, steps=position.steps + int(made))
        if ended:
            position = replace(position, intervals=position.intervals + 1, since=0.0, done=0)
        return position, bool(finite), bool(short)


def _stopped(
    finite: bool, clock: Clock, position: Position, control: AbstractStepControl | None, restart: str
) -> _Stopped:
    """Return the error if the next state is not finite, or if the next step is too short."""
    t = clock.time(position)
    kept = (
        f"after t = {t:.6g} (step {position.steps}). The last finite state is the attribute `state` of this exception."
    )
    if not finite:
        text = f"`u` must stay finite, but it has infinities or NaNs {kept} Use smaller steps or more points.{restart}"
        return NotFinite(text, position.carried, t)
    text = (
        f"`control` must allow steps that are longer than rounding errors, but {control!r} proposes steps of "
        f"{position.proposal:.3g} {kept} Use a larger tolerance or float64 with `ErrorControl`. With `CFL`, the "
        f"velocity has become too large.{restart}"
    )
    return StepTooShort(text, position.carried, t)
