"""Restores a saved simulation."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from .._core.expansion import Mismatch
from .._core.structure import Structure
from ..io import Checkpoints
from ..io._contents import Damaged
from ..io._leaves import Leaf, leaves_of
from ._clock import ROUNDING, Clock, Position, count
from ._description import changes
from ._integrator import History, state_of
from ._observed import Observed


NAMES = "observed"  # in the description of a run
NUMBERS = ("steps", "intervals", "since", "done", "proposal")


def saved_tree(clock: Clock, position: Position, observed: Observed) -> dict[str, Any]:
    """Return the tree of values that a checkpoint of a run saves."""
    numbers = {name: getattr(position, name) for name in NUMBERS}
    facts = {"start": clock.start, "interval": clock.interval, "dt": clock.dt or 0.0}
    return {"u": position.carried, **numbers, **facts, "observed": observed.leaves}


def restored(
    checkpoints: Checkpoints,
    structure: Structure,
    description: dict[str, Any],
    clock: Clock,
    first: Position,
    interval: float | None,
    observed: Observed,
) -> tuple[Clock, Position] | None:
    """Return the clock and the position of the newest undamaged checkpoint, and restore its results into `observed`.

    Returns `None` if the run has no checkpoint. The clock has the interval of the saved run, from which `interval` may
    differ by a rounding error. `description` describes the integrator of this run; a warning says in what it differs
    from the saved run. Raises `ValueError` if the run does not fit the checkpoint, or if all checkpoints are damaged.
    """
    if not checkpoints.steps:
        return None
    like, folder = saved_tree(clock, first, observed), checkpoints.folder
    number, found = _newest(checkpoints, structure, like, observed, description)
    position = Position(found["u"], **{name: found[name] for name in NUMBERS})
    saved = Clock(found["start"], found["interval"], position.intervals, found["dt"] or None)
    if saved.interval == 0:  # A run that ended where it began, so that it has neither intervals nor steps.
        saved = replace(saved, interval=clock.interval, dt=clock.dt)
    is_other = interval is not None and abs(saved.interval - clock.interval) > ROUNDING * saved.interval
    if saved.start != clock.start or is_other:
        raise ValueError(
            f"`t` and `interval` must be as in the run saved in {folder}, {saved.start!r} and {saved.interval!r}; got "
            f"{clock.start!r} and {clock.interval!r}. Use another folder for `checkpoint`."
        )
    now = saved.time(position)
    if now - clock.end > ROUNDING * saved.interval:
        raise ValueError(
            f"`t_end` must not be before the time of the run saved in {folder}, {now!r}; got {clock.end!r}. Use a "
            "later `t_end`, or another folder for `checkpoint`."
        )
    if saved.interval != clock.interval:  # It is not given, or differs by a rounding error, as 0.3 / 6 does from 0.05.
        if count(clock.end - clock.start, saved.interval) is None:
            raise ValueError(
                f"`t_end` must be a whole number of intervals after `t`, {clock.start!r}; got {clock.end!r}. The run "
                f"saved in {folder} has the interval {saved.interval!r}."
            )
        clock = Clock.of(clock.start, clock.end, saved.interval, clock.dt)
    if saved.dt != clock.dt:
        position = _with_other_steps(saved, clock, position, folder)
    observed.restore(found["observed"])
    description = {**description, NAMES: observed.names}
    differences = changes({NAMES: observed.names, **(checkpoints.description(number) or description)}, description)
    if differences and jax.process_index() == 0:
        warnings.warn(f"The run saved in {folder} continues differently: {'; '.join(differences)}.", stacklevel=4)
    return clock, position


def _newest(
    checkpoints: Checkpoints,
    structure: Structure,
    like: dict[str, Any],
    observed: Observed,
    description: dict[str, Any],
) -> tuple[int, dict[str, Any]]:
    """Return the number and the values of the newest checkpoint that is not damaged.

    Warn of newer checkpoints that are damaged.
    """
    error = None
    for number in reversed(checkpoints.steps):
        try:
            return number, _read(checkpoints, number, structure, like, observed, description)
        except Damaged as damage:  # All processes raise it if one of them cannot read the checkpoint.
            error = damage
        if jax.process_index() == 0:
            warnings.warn(
                f"The checkpoint {checkpoints.path(number)} is damaged. An older checkpoint is used instead.",
                stacklevel=5,
            )
    raise ValueError(
        f"`checkpoint` must have a complete checkpoint, but all checkpoints in {checkpoints.folder} are damaged. Use "
        "another folder for `checkpoint`."
    ) from error


def _read(
    checkpoints: Checkpoints,
    number: int,
    structure: Structure,
    like: dict[str, Any],
    observed: Observed,
    description: dict[str, Any],
) -> dict[str, Any]:
    """Return a checkpoint. Raises `ValueError` if the run differs from the saved run, or if a file is damaged."""
    contents = checkpoints.contents(number)
    _check_state(checkpoints, number, contents, leaves_of("like", {"u": like["u"]}, {"u": structure}), description)
    known = {name: (leaf["type"], leaf["shape"]) for name, leaf in contents.items() if name.startswith("observed/")}
    intervals = contents.get("intervals", {}).get("value", 0)
    leaves = observed.like(intervals + 1, state_of(like["u"]))
    wanted = {f"observed/{i}": (str(leaf.dtype), list(leaf.shape)) for i, leaf in enumerate(leaves)}
    if known != wanted:
        raise ValueError(
            "`observe` must return results of the same types and shapes as in the run saved in "
            f"{checkpoints.folder}, which has {list(known.values())} after {intervals} intervals; got "
            f"{list(wanted.values())}. Use another folder for `checkpoint`."
        )
    names = (checkpoints.description(number) or {}).get(NAMES, observed.names)
    if names != observed.names:
        raise ValueError(
            f"`observe` must return results with the names of the run saved in {checkpoints.folder}, {names}; got "
            f"{observed.names}. Use another folder for `checkpoint`."
        )
    return checkpoints.restore({**like, "observed": leaves}, {"u": structure}, number)


def _check_state(
    checkpoints: Checkpoints,
    number: int,
    contents: dict[str, dict[str, Any]],
    leaves: dict[str, Leaf],
    description: dict[str, Any],
) -> None:
    """Raise `ValueError` unless the state of this run, with these `leaves`, can continue from the saved state."""
    folder, saved = checkpoints.folder, {name: contents[name] for name in contents if name.split("/")[0] == "u"}
    if saved.keys() != leaves.keys():
        methods = [_method(facts) for facts in (checkpoints.description(number) or {}, description)]
        raise ValueError(
            f"`solver` must carry the same arrays from step to step as in the run saved in {folder}, {methods[0]}; got "
            f"{methods[1]}. Use that method, or another folder for `checkpoint`."
        )
    for name, leaf in leaves.items():
        try:
            leaf.factor(saved[name])
        except Mismatch as error:
            raise ValueError(
                f"`solver.equation.transform` must have the `{error.option}` of the run saved in {folder}, "
                f"{error.known}; got {error.own}. Use the saved options, or another folder for `checkpoint`. To "
                "continue on another grid, load the saved state by `simulate` with the saved options and `t_end` at "
                "its time, and interpolate its fields with `spectral.Resample`."
            ) from error
        if leaf.kind != {key: saved[name].get(key) for key in leaf.kind}:
            was, now = ({key: facts[key] for key in leaf.kind} for facts in (saved[name], leaf.kind))
            raise ValueError(
                f"`u` must have the dtype and the shape without padding of the run saved in {folder}, {was}; got "
                f"{now}. Use another folder for `checkpoint`."
            )


def _method(description: dict[str, Any]) -> str:
    name, order = description.get("solver", "another method"), description.get("solver.order")
    return name if order is None else f"`{name}` of order {order}"


def _with_other_steps(saved: Clock, clock: Clock, position: Position, folder: Path) -> Position:
    """Return the position of the saved run, rewritten so that steps of the length `clock.dt` can follow.

    Raises `ValueError` if the method is a multi-step method, or if the rest of the interval is not a whole number of
    these steps.
    """
    if isinstance(position.carried, History):
        raise ValueError(
            f"`solver.dt` must be as in the run saved in {folder}, {saved.dt!r}, for a multi-step method; got "
            f"{clock.dt!r}. Use this `dt`, or another folder for `checkpoint`."
        )
    now, end = saved.time(position), saved.begin(position.intervals + 1)
    since = now - saved.begin(position.intervals)
    if clock.dt is not None and count(saved.interval - since, clock.dt) is None:
        steps = f"has `dt={saved.dt!r}`" if saved.dt else "uses `control`"
        raise ValueError(
            f"`solver.dt` must divide the rest of the interval, from {now!r} to {end!r}; got {clock.dt!r}. The run "
            f"saved in {folder} {steps}: use the same steps until the end of the interval."
        )
    return replace(position, since=since, done=0)
