"""Takes many steps in one compiled program, which stops at the last finite state."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..spectral._vector import cast
from ._integrator import AbstractIntegrator, is_finite, state_of
from ._step_control import AbstractStepControl


@eqx.filter_jit
def advance(
    solver: AbstractIntegrator, carried: Any, t: Any, done: Any, count: Any, args: Any
) -> tuple[Any, Array, Array]:
    """Take at most `count` steps of the length `solver.dt` from `carried`, a state or a `History`.

    `done` is the number of steps from the time t to `carried`. Returns the last state or history, the number of steps,
    and whether the next state is finite. If the next state is not finite, the steps stop at the last finite state.
    """
    like, advance_one = state_of(carried), solver.stepper(carried, args)
    real = like.real.dtype

    def goes_on(loop: tuple) -> Array:
        i, _, finite = loop
        return (i < count) & finite

    def step(loop: tuple) -> tuple:
        i, carried, _ = loop
        new = advance_one(cast(t, like) + cast(solver.dt, like) * (done + i).astype(real), carried)
        finite = is_finite(solver, new)
        return i + finite.astype(i.dtype), jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, carried), finite

    i, carried, finite = jax.lax.while_loop(goes_on, step, (jnp.zeros((), jnp.int32), carried, jnp.array(True)))
    return carried, i, finite


@eqx.filter_jit
def advance_controlled(
    solver: AbstractIntegrator,
    control: AbstractStepControl,
    u: Array,
    t: Any,
    since: tuple[Any, Any],
    h: Any,
    end: Any,
    count: Any,
    args: Any,
) -> tuple[Array, tuple[Array, Array], Array, Array, Array, Array]:
    """Take at most `count` steps from the time `t + since` towards `t + end`. `control` chooses their lengths.

    `since` is the sum of two numbers, of which the second is the rounding error of the first: thousands of equal steps
    have errors that add up. `h` is the proposed length of the first step. Returns the last state, the time since t, the
    proposed length of the next step, the number of steps, whether the next state is finite, and whether the next step
    is too short. If the next state is not finite or the next step is too short, the steps stop at the last finite
    state.
    """
    real = u.real.dtype
    smallest = 10 * jnp.finfo(real).eps * cast(end, u)

    def goes_on(loop: tuple) -> Array:
        i, _, (since, _), _, finite, short = loop
        return (i < count) & (since < cast(end, u)) & finite & ~short

    def step(loop: tuple) -> tuple:
        i, u, (since, rest), h, _, _ = loop
        most = cast(end, u) - since - rest
        new, taken, proposal = control.step(solver, cast(t, u) + since, u, h, most, args)
        taken, proposal = cast(taken, u), cast(proposal, u)
        rejected = taken == 0
        # The first step may be as short as the user likes, if the next steps become longer.
        short = ~((proposal > smallest) | (proposal > h))
        # The state of a rejected step need not be finite: the step is tried again with a smaller length, unless this
        # length is too small.
        finite = is_finite(solver, new) | (rejected & ~short)
        keep = finite & ~short & ~rejected
        # A step that was shortened to end at `end` must not shorten the next steps.
        proposal = jnp.where(keep & (taken >= most), jnp.maximum(proposal, h), proposal)
        # If only a rounding error is left until `end`, the step ends exactly at `end`.
        ended, later = most - taken <= smallest, since + (taken + rest)
        # Between programs, the host keeps the sum of both numbers in double precision. That loses nothing of numbers in
        # single precision. It would lose the second of two in double precision, so these have none.
        error = (taken + rest) - (later - since) if real.itemsize < 8 else jnp.zeros_like(rest)
        later = jnp.where(ended, cast(end, u), later), jnp.where(ended, 0, error)
        new, later = jax.tree.map(lambda a, b: jnp.where(keep, a, b), (new, later), (u, (since, rest)))
        return i + keep.astype(i.dtype), new, later, proposal, finite, short

    times = cast(since[0], u), cast(since[1], u)
    start = jnp.zeros((), jnp.int32), u, times, cast(h, u), jnp.array(True), jnp.array(False)
    i, u, since, h, finite, short = jax.lax.while_loop(goes_on, step, start)
    return u, since, h, i, finite, short
