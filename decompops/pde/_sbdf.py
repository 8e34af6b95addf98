"""Semi-implicit backward differentiation, with one evaluation of the nonlinear part in each step."""

import functools
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import Integer, as_number, check_choice, check_number, taking
from .._common.remember import in_one_program
from .._common.typed import zeros_like
from ..spectral._vector import cast
from ._equation import AbstractSplitEquation, Time, check_split_equation
from ._imexrk import runge_kutta_step
from ._integrator import AbstractIntegrator, History, check_state, scaled, slope, solved


Order = Literal[2, 3]
# The new state is the solution v of `v - c h L v = sum(a u) + c h sum(b N)`, with the step length h and the linear part
# L of the equation. For each order, METHODS has the number c, the weights a of the last states u, and the weights b of
# the slopes N of these states. The weight of the newest state is first.
METHODS = {
    2: (2 / 3, (4 / 3, -1 / 3), (2, -1)),
    3: (6 / 11, (18 / 11, -9 / 11, 2 / 11), (3, -3, 1)),
}


class SBDF(AbstractIntegrator):
    """Semi-implicit BDF of order 2 or 3 (Ascher, Ruuth & Wetton, SIAM J. Numer. Anal. 32, 1995).

    This multi-step method takes any equation with a `resolvent`. A step evaluates `nonlinear` once and `resolvent`
    once. A step of `IMEXRK` evaluates each of them four times. The first `order - 1` steps are steps of `IMEXRK`. A
    mode with an infinite decay rate vanishes in one step. A steady state of the equation is also a steady state of the
    method. If the resolvent enforces a constraint, every new state satisfies the constraint. JAX can differentiate with
    respect to the state, `dt` and the parameters of the equation.

    `step` takes and returns a `History`, which has `order` arrays of the size of the state.

    **Arguments:**

    - `equation`: an `AbstractSplitEquation`, such as `NavierStokes`.
    - `dt`: the time step, a nonnegative number.
    - `order`: 2 or 3.

    **Raises:** `ValueError` if `order` is neither 2 nor 3, or if `dt` is negative; `TypeError` if `equation` is not an
    `AbstractSplitEquation`, or if `dt` is not a number.

    !!! example

        ```python
        solver = pde.SBDF(pde.NavierStokes(fft, viscosity=1e-3), dt=0.01, order=3)
        u, _ = solver.rollout(u, 100)  # from a state to a state

        history = solver.start(u)
        history, _ = solver.rollout(history, 100)
        history, _ = solver.rollout(history, 100, t=1.0)  # equal to one rollout of 200 steps
        u = history.state
        ```
    """

    equation: AbstractSplitEquation
    dt: Number
    order: Order = eqx.field(default=2, static=True, converter=taking(Order | Integer, as_number))

    def __check_init__(self):
        check_choice("order", self.order, get_args(Order))
        check_split_equation(self.equation)
        check_number("dt", self.dt, least=0)

    def start(self, u: Inexact[Array, "*spectrum"] | History) -> History:
        """Return a `History` with the state `u` and no earlier states. If `u` is a `History`, return `u` itself.

        **Raises:** `ValueError` if `u` is a `History` of a method of a different order; `TypeError` or `ValueError` if
        `u` is neither a state of the equation nor a `History` of such states.
        """
        if isinstance(u, History):
            if len(u.ahead) != self.order - 1:
                raise ValueError(
                    f"`u` must be a `History` of an `SBDF` of order {self.order}; got one of order {len(u.ahead) + 1}. "
                    "Pass the state `history.state` instead."
                )
            check_state(self.equation, u.state)
            return u
        check_state(self.equation, u)
        return History(u, (zeros_like(u),) * (self.order - 1), jnp.zeros((), jnp.int32))

    def step(self, t: Time, u: History, args: Any = None) -> History:
        """Return the history at `t + dt` for the history `u` at `t`. `args` is passed to the equation.

        **Raises:** `TypeError` if `u` is not a `History`; `ValueError` if `u` is a `History` of a method of a different
        order.
        """
        if not isinstance(u, History):
            raise TypeError(f"`u` must be a `History`, such as `solver.start(u)`; got {u!r}.")
        return _step(self, t, self.start(u), args)


@functools.partial(in_one_program, has_loop=True)
def _step(solver: SBDF, t: Time, u: History, args: Any) -> History:
    state, ahead, known = u.state, u.ahead, u.known
    h, t = cast(solver.dt, state), cast(t, state)
    first = slope(solver.equation, t, state, args)
    c, states, slopes = METHODS[solver.order]
    push = scaled(c * h, first)
    # The terms that this state adds to the right-hand sides of this step and of the next steps. A history stores
    # the sums of these terms, because the sums take less memory than all earlier states and slopes.
    now, *later = (a * state + b * push for a, b in zip(states, slopes))

    @jax.checkpoint  # Otherwise a derivative would store all stages of this rarely taken branch.
    def one_step() -> Array:
        return runge_kutta_step(solver.equation, t, h, state, args)

    def multi_step() -> Array:
        return solved(solver.equation, t + h, now + ahead[0], c * h)

    new = jax.lax.cond(known < solver.order - 1, one_step, multi_step)
    ahead = (*map(jnp.add, later, ahead[1:]), later[-1])
    return History(new, ahead, jnp.minimum(known + 1, solver.order - 1))
