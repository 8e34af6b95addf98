"""`Solution`: what a solver returns, and `Reason`: why it ended."""

import enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Bool, Inexact, Int, Real


class Reason(enum.IntEnum):
    """Why a solver ended.

    - `CONVERGED`: the residual is at most `rtol` times the norm of the right-hand side, plus `atol`.
    - `NOT_CONVERGED`: the solver has used `max_steps` steps.
    - `STAGNATED`: rounding errors keep the residual above the tolerance.
    - `BREAKDOWN`: a step of the method is not defined, mostly because the operator or the preconditioner is not as the
        method requires.
    - `NOT_FINITE`: the right-hand side, or a result of the operator, contains NaN or infinity.
    - `INCOMPATIBLE`: there is no solution, because the right-hand side has a part in the null space of the operator.
    """

    CONVERGED = 0
    NOT_CONVERGED = 1
    STAGNATED = 2
    BREAKDOWN = 3
    NOT_FINITE = 4
    INCOMPATIBLE = 5


# The reason while a solver has not ended.
RUNNING = -1

_TEXTS = {
    Reason.NOT_CONVERGED: "it needs more steps. Pass a larger `max_steps`, or a better `preconditioner`",
    Reason.STAGNATED: "rounding errors keep the residual above the tolerance. Pass a larger `rtol`{finer}",
    Reason.BREAKDOWN: "a step of the method is not defined: {needs}",
    Reason.NOT_FINITE: "the right-hand side or a result of the operator contains NaN or infinity",
    Reason.INCOMPATIBLE: "the operator maps constants to zero, so the right-hand side must have zero mean in each "
    "closed part of the grid. Pass "
    '`null_space="constants"` to ignore the mean',
}


class NotConverged(RuntimeError):
    """The error of a solver that did not converge.

    - `solution`: the `Solution` so far.
    """

    def __init__(self, message: str, solution: Any):
        super().__init__(message)
        self.solution = solution

    def __reduce__(self) -> tuple:  # Python copies and pickles errors by their message alone.
        return type(self), (str(self), self.solution)


class Solution(eqx.Module):
    """The solution of a linear system, and how it was found. `*batch` are the batch axes of the right-hand side.

    - `value`: the solution, a field. NaN if the reason is `NOT_FINITE` or `INCOMPATIBLE`.
    - `residuals`: the norm of the residual after 0, 1, 2, ... steps, divided by the norm of the right-hand side, of
        shape `(max_steps + 1, *batch)`. NaN after the last step. The last residual is computed from `value`; those
        before it follow from the recurrences of the method.
    - `iterations`: the number of steps.
    - `reason`: why the solver ended: the number of a `Reason`.
    """

    value: Inexact[Array, "*field"]
    residuals: Real[Array, "steps *batch"]
    iterations: Int[Array, "*batch"]
    reason: Int[Array, "*batch"]

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """Whether the residual is within the tolerance."""
        return self.reason == np.int32(Reason.CONVERGED)

    def __repr__(self) -> str:
        if isinstance(self.reason, Tracer | jax.ShapeDtypeStruct):
            return super().__repr__()
        reasons = np.unique(np.asarray(self.reason))
        names = ", ".join(Reason(reason).name for reason in reasons)
        return f"Solution(reason={names}, iterations={np.asarray(self.iterations)}, value={self.value.shape})"


def problem(title: str, needs: str, solution: Solution) -> str | None:
    """Return the text of the error for a `solution` that did not converge, or `None` for one that did.

    `needs` says what the method called `title` requires.
    """
    reasons, iterations = (np.asarray(x).reshape(-1) for x in (solution.reason, solution.iterations))
    failed = np.flatnonzero(reasons)
    if not len(failed):
        return None
    worst = failed[np.argmax(reasons[failed])]
    residuals = np.asarray(solution.residuals).reshape(len(solution.residuals), -1)
    fields = "" if reasons.size == 1 else f" for {len(failed)} of {reasons.size} fields"
    is_double = jnp.finfo(solution.value.dtype).dtype == np.float64
    finer = "" if is_double else ", or fields in double precision"
    text = _TEXTS[Reason(reasons[worst])].format(needs=needs, finer=finer)
    return (
        f"`{title}` did not converge{fields}: the relative residual is {residuals[iterations[worst], worst]:.1e} after "
        f"{iterations[worst]} steps, because {text}."
    )
