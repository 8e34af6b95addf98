"""The rollout of many steps in one program, which JAX can differentiate."""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from .._common.check import check_count
from .._common.say import say
from .checkpointing import Chain, Placement, checkpointed
from .memory import Budget, best_plan, check_budget


_logger = logging.getLogger(__name__)


class Options(NamedTuple):
    """The checked options of a rollout.

    - `steps`: the number of steps.
    - `every`: the number of steps between two calls of `observe` and `report`.
    - `observe`, `report`: the functions of the user, or `None`.
    - `memory`: the memory that a reverse-mode derivative may take; `None` to store about `2 * sqrt(steps)` states.
    """

    steps: int
    every: int
    observe: Callable | None
    report: Callable | None
    memory: Budget | None


def check_options(steps: Any, *, every: Any, observe: Any, progress: Any, keep: Any, keep_on_host: Any) -> Options:
    """Return the options of a rollout. Raises `TypeError` or `ValueError` if one is invalid."""
    steps = check_count("steps", steps)
    every = _near_root(steps) if every is None else check_count("every", every)
    if steps % every:
        raise ValueError(f"`every` must divide the {steps} steps; got {every}.")
    if not (observe is None or callable(observe)):
        raise TypeError(f"`observe` must be a function of (t, u) or None; got {observe!r}.")
    if not (callable(progress) or isinstance(progress, bool)):
        raise TypeError(f"`progress` must be True, False or a function of (done, steps); got {progress!r}.")
    report = _print_progress if progress is True else progress or None
    if observe is None and report is None:
        every = steps
    return Options(steps, every, observe, report, check_budget(keep, keep_on_host))


def check_observed(observed: Any) -> Any:
    """Return what `observe` returned. Raises `TypeError` unless it holds numbers."""
    for leaf in jax.tree.leaves(observed):
        if not eqx.is_array_like(leaf):
            raise TypeError(f"`observe` must return numbers or arrays of numbers; got {leaf!r}.")
    return observed


def roll_out(
    step: Callable, seen: Callable, first: Any, options: Options, *, layout: Placement, state_of: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Return what the last step returns, and the stacked results of `seen`.

    **Arguments:**

    - `step`: a function `(carried, i)` that takes step number i.
    - `seen`: a function `(carried, done)`, called after every `options.every` steps.
    - `first`: what the first step takes.
    - `layout`: where the arrays of `first` are.
    - `state_of`: a function of `carried` that returns what users call a state.
    """

    def result(carried: Any, n: Array) -> Any:
        return check_observed(seen(carried, n * options.every))

    def tell(n: Array) -> None:
        if options.report is not None:
            jax.debug.callback(partial(_call, options.report), n * options.every, options.steps)

    if options.memory is None:
        return _in_chunks(step, result, tell, first, options.steps, options.every)
    plan = partial(best_plan, memory=options.memory, layout=layout, state_of=state_of)
    return checkpointed(Chain(step, result, tell, options.steps, options.every), first, plan)


def scan_in_chunks(
    advance: Callable, state: Any, length: int, chunk: int, result: Callable = lambda state, i: None
) -> tuple[Any, Any]:
    """Return the state after `length` calls of `advance(state, i)`, and the `result(state, i)` after each call.

    The derivative stores the first state of each chunk of about `chunk` calls, and all states of one chunk at a time.
    If each chunk has one call, or one chunk has all calls, nothing is recomputed. If chunks do not divide `length`, the
    last chunk skips the calls beyond `length` and repeats the last result. A second loop for a shorter last chunk would
    contain `advance` again, so the program would take twice as long to compile.
    """

    def call(state: Any, i: Array) -> tuple[Any, Any]:
        state = advance(state, i)
        return state, result(state, i)

    if not 1 < chunk < length:
        return jax.lax.scan(call, state, jnp.arange(length))

    @jax.checkpoint  # Without a checkpoint, `cond` would store the intermediate results of `advance`.
    def advance_or_skip(state: Any, i: Array) -> Any:
        return jax.lax.cond(i < length, advance, lambda state, _: state, state, i)

    def call_or_skip(state: Any, i: Array) -> tuple[Any, Any]:
        state = advance_or_skip(state, i)
        return state, result(state, jnp.minimum(i, length - 1))

    @jax.checkpoint
    def calls(state: Any, first: Array) -> tuple[Any, Any]:
        return jax.lax.scan(call_or_skip if length % chunk else call, state, first + jnp.arange(chunk))

    near = [n for n in range(2 * chunk // 3, 3 * chunk // 2 + 1) if n > 1 and length % n == 0]
    chunk = min(near, key=lambda n: abs(n - chunk), default=chunk)
    state, results = jax.lax.scan(calls, state, jnp.arange(0, length, chunk))
    return state, jax.tree.map(lambda parts: jax.lax.collapse(parts, 0, 2)[:length], results)


def _in_chunks(
    step: Callable, result: Callable, report: Callable, first: Any, steps: int, every: int
) -> tuple[Any, Any]:
    """Return the last state, and one result for each `every` steps.

    JAX can differentiate this function in forward and in reverse mode.
    """

    def advance(carried: Any, i: Array) -> Any:
        @jax.checkpoint
        def one(carried: Any, j: Array) -> Any:
            return step(carried, i * every + j)

        carried, _ = scan_in_chunks(one, carried, every, chunk)
        report(i + 1)
        return carried

    @jax.checkpoint
    def seen(carried: Any, i: Array) -> Any:
        return result(carried, i + 1)

    chunk = math.isqrt(steps)
    return scan_in_chunks(advance, first, steps // every, chunk // every, seen)


def _near_root(steps: int) -> int:
    """Return the largest divisor of `steps` that is at most `sqrt(steps)`."""
    return max(n for n in range(1, math.isqrt(steps) + 1) if steps % n == 0)


def _call(report: Callable, done: Any, steps: Any) -> None:
    """Call `report`, and log its errors. An error would end the program of one device, and all others would wait."""
    try:
        report(done, steps)
    except BaseException:
        _logger.exception("`progress` has raised an error. The rollout goes on.")


def _print_progress(done: Any, steps: Any) -> None:
    if jax.process_index() == 0:
        say(f"\r{int(done)} of {int(steps)} steps", end="\n" if done == steps else "")
