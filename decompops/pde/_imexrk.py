"""An implicit–explicit Runge–Kutta method: implicit for the linear part, explicit for the nonlinear part."""

import functools
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import check_number
from .._common.remember import in_one_program
from ..spectral._vector import cast
from ._equation import AbstractSplitEquation, Time, check_split_equation
from ._integrator import AbstractIntegrator, check_state, scaled, slope, solved


# The coefficients of ARS(4,4,3), with one entry for each stage after the first. NODES has the times of the stages, in
# steps. EXPLICIT has the weights of the explicit slopes of all earlier stages. IMPLICIT has the weights of the implicit
# slopes of the earlier stages and of the stage itself. The first stage is the state itself. Its implicit slope is never
# needed, so it has no weight.
NODES = (1 / 2, 2 / 3, 1 / 2, 1)
EXPLICIT = ((1 / 2,), (11 / 18, 1 / 18), (5 / 6, -5 / 6, 1 / 2), (1 / 4, 7 / 4, 3 / 4, -7 / 4))
IMPLICIT = ((1 / 2,), (1 / 6, 1 / 2), (-1 / 2, 1 / 2, 1 / 2), (3 / 2, -3 / 2, 1 / 2, 1 / 2))


class IMEXRK(AbstractIntegrator):
    """The implicit–explicit Runge–Kutta method ARS(4,4,3) of Ascher, Ruuth & Spiteri (Appl. Numer. Math. 25, 1997).

    The method has order 3 and takes any equation with a `resolvent`. A step evaluates `nonlinear` four times, and
    `resolvent` four times with `h = dt / 2`. The implicit part is L-stable: a mode with an infinite decay rate vanishes
    in one step. A steady state of the equation is also a steady state of the method. If the resolvent enforces a
    constraint, such as zero divergence in `Channel`, every stage and every new state satisfies the constraint. Beside
    walls that move as functions of time, and beside walls where a force changes with time, the error falls more slowly
    than of order 3, as of order 2 for large steps; `SBDF` keeps its order. JAX can differentiate with respect to the
    state, `dt` and the parameters of the equation.

    **Arguments:**

    - `equation`: an `AbstractSplitEquation`, such as `NavierStokes` or `Channel`.
    - `dt`: the time step, a nonnegative number.

    **Raises:** `TypeError` if `equation` is not an `AbstractSplitEquation`, or if `dt` is not a number; `ValueError` if
    `dt` is negative.

    !!! example

        ```python
        solver = pde.IMEXRK(pde.NavierStokes(fft, viscosity=1e-3), dt=0.01)
        u, _ = solver.rollout(solver.equation.transform(velocity), 100)
        ```
    """

    equation: AbstractSplitEquation
    dt: Number
    order: ClassVar[int] = 3

    def __check_init__(self):
        check_split_equation(self.equation)
        check_number("dt", self.dt, least=0)

    def start(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Return `u` itself. Raises `TypeError` or `ValueError` unless `u` is a state of the equation."""
        return check_state(self.equation, u)

    def step(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """Return the state at `t + dt` for the state `u` at `t`. `args` is passed to the equation."""
        check_state(self.equation, u)
        return _step(self, t, u, args)


@functools.partial(in_one_program, has_loop=True)
def _step(solver: IMEXRK, t: Time, u: Array, args: Any) -> Array:
    return runge_kutta_step(solver.equation, cast(t, u), cast(solver.dt, u), u, args)


def runge_kutta_step(equation: AbstractSplitEquation, t: Array, h: Array, u: Array, args: Any) -> Array:
    """Return the state at `t + h` for the state `u` at `t`.

    Each stage v is the solution of `v - h a L v = r`, where r is known from earlier stages. So h times the implicit
    slope of the stage is `(v - r) / a`. L itself is never applied. If the resolvent is a Stokes solve, the slope also
    contains the pressure gradient. The weights of the new state are the weights of the last stage, so the last stage is
    the new state.

    A loop computes the stages, because a program with four copies of the resolvent would take four times as long to
    compile.
    """
    stages, dtype = len(NODES), h.dtype
    # Row i has the weights of the slopes of stage i in the later stages. Weights beyond the last stage are zero.
    explicit, implicit = np.zeros((stages, stages)), np.zeros((stages, stages))
    for after, (forward, backward) in enumerate(zip(EXPLICIT, IMPLICIT)):
        for i, weight in enumerate(forward):
            explicit[i, after - i] = weight
        for i, weight in enumerate(backward[:-1]):
            implicit[i, after - i] = weight
    times = t + h * np.asarray((0, *NODES), dtype)
    diagonal = IMPLICIT[0][0]

    def advance(state: tuple[Array, tuple[Array, ...]], row: tuple[Array, ...]) -> tuple[Any, None]:
        """Return the next stage, and for each later stage the state plus the weighted slopes so far."""
        stage, ahead = state
        time, next_time, forward, backward = row
        push = scaled(h, slope(equation, time, stage, args))
        rest, *later = (known + scaled(weight, push) for known, weight in zip(ahead, forward))
        stage = solved(equation, next_time, rest, diagonal * h)
        pull = (stage - rest) / diagonal
        return (stage, (*(known + scaled(weight, pull) for known, weight in zip(later, backward[1:])), u)), None

    rows = times[:-1], times[1:], jnp.asarray(explicit, dtype), jnp.asarray(implicit, dtype)
    (new, _), _ = lax.scan(advance, (u, (u,) * stages), rows)
    return new
