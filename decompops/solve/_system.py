"""`System`: one linear system on sharded fields, as the Krylov methods see it, and `iterate`, which solves it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._common.sharding import while_any
from .._common.typed import zeros_like
from ._fields import Fields
from ._solution import RUNNING, Reason


class State(NamedTuple):
    """The state of a method of solution. All entries except `x` have one number for each field of the batch.

    - `x`: the solution so far.
    - `norm`: the norm of its residual.
    - `active`: whether the method goes on.
    - `broken`: whether a step was not defined.
    - `iterations`: the number of steps.
    - `residuals`: the relative residual after each step.
    """

    x: Array
    norm: Array
    active: Array
    broken: Array
    iterations: Array
    residuals: Array


@dataclass(frozen=True, kw_only=True)
class System(Fields):
    """A linear system, as `AbstractSolver.cycle` sees it.

    `dots`, `norm`, `times` and `select` treat each field of a batch separately. `dots` adds up the products of several
    pairs of fields by one all-reduce.

    - `apply`, `precondition`: the operator and the preconditioner. Their results are zero in the padding.
    - `scale`: the norm of the right-hand side, for relative residuals.
    - `target`: the norm of residuals that is small enough.
    - `max_steps`: the largest number of steps.
    """

    apply: Callable[[Array], Array]
    precondition: Callable[[Array], Array]
    scale: Array
    target: Array
    max_steps: int

    def observed(self, state: State, norm: Array) -> State:
        """Return `state` with the norm of the residual of its `x`, and with `active` where the norm is too large."""
        norm = jnp.where(state.active, norm, state.norm)
        residuals = recorded(state.residuals, state.iterations, state.active, norm / self.scale)
        return state._replace(norm=norm, residuals=residuals, active=state.active & ~(norm <= self.target))

    def moved(self, state: State, x: Array, good: Array) -> State:
        """Return `state` after a step to `x`, where it is `active`. A step that is not `good` is not made, and the
        method ends there: pass False where a step is not defined, such as after a division by zero.
        """
        went = state.active & good
        iterations = state.iterations + went.astype(np.int32)
        return state._replace(
            x=self.select(went, x, state.x),
            active=went & (iterations < self.max_steps),
            broken=state.broken | (state.active & ~good),
            iterations=iterations,
        )


# A method: it improves the `x` of a state whose residual is given, until its own estimate of the residual is small.
Cycle = Callable[[System, State, Array], State]


def iterate(system: System, cycle: Cycle, b: Array, norm: Array) -> tuple[Array, Array, Array, Array]:
    """Solve the system for the right-hand side `b` with norm `norm`, by cycles of a method.

    The residual is computed anew after each cycle. So a solution counts as converged only if its residual is small,
    even if rounding errors have spoilt the recurrences of the method.

    **Returns:** the solution, the relative residuals, the number of steps, and the reason.
    """
    finite = jnp.isfinite(norm) & jnp.isfinite(system.target)
    steps = jnp.expand_dims(jnp.arange(system.max_steps + 1, dtype=np.int32), tuple(range(1, norm.ndim + 1)))
    start = (
        zeros_like(b),
        b,
        norm,
        jnp.where(
            finite, jnp.where(norm <= system.target, Reason.CONVERGED.value, RUNNING), Reason.NOT_FINITE.value
        ).astype(np.int32),
        jnp.zeros_like(norm, np.int32),
        jnp.where(steps == 0, (norm / jnp.where(system.scale == 0, 1, system.scale))[None], jnp.nan),
    )

    def improved(carry: tuple) -> tuple:
        x, r, norm, reason, iterations, residuals = carry
        running = reason == RUNNING
        end = cycle(system, State(x, norm, running, norm != norm, iterations, residuals), r)
        new = b - system.apply(end.x)
        new_norm = system.norm(new)
        slow = ~(new_norm <= 0.5 * norm)
        found = jnp.where(end.iterations >= system.max_steps, Reason.NOT_CONVERGED.value, RUNNING)
        # A method of another package may make no step. Without this rule, it would make none for ever.
        stuck = end.broken | (end.iterations == iterations)
        found = jnp.where(slow & stuck, Reason.BREAKDOWN.value, found)
        found = jnp.where(slow & (end.norm <= system.target), Reason.STAGNATED.value, found)
        found = jnp.where(new_norm <= system.target, Reason.CONVERGED.value, found)
        found = jnp.where(jnp.isfinite(new_norm), found, Reason.NOT_FINITE.value).astype(np.int32)
        better = running & (new_norm <= norm)
        kept = jnp.where(better, new_norm, norm)
        return (
            system.select(better, end.x, x),
            system.select(better, new, r),
            kept,
            jnp.where(running, found, reason),
            end.iterations,
            recorded(end.residuals, end.iterations, running, kept / system.scale),
        )

    carry = while_any(lambda carry: jnp.any(carry[3] == RUNNING), improved, start)
    x, _, _, reason, iterations, residuals = carry
    return x, residuals, iterations, reason


def recorded(residuals: Array, iterations: Array, where: Array, values: Array) -> Array:
    """Return the history with `values` in the places `iterations`, for the fields of the batch given by `where`."""
    steps = jnp.expand_dims(jnp.arange(len(residuals), dtype=np.int32), tuple(range(1, residuals.ndim)))
    return jnp.where((steps == iterations[None]) & where[None], values[None], residuals)
