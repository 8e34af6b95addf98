"""Implicit–explicit Runge–Kutta: implicit for the linear part, explicit for the rest."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Inexact

from .._box import Number
from .._check import check_number
from ..spectral._vector import cast
from ._equation import AbstractSplitEquation, Time, check_split_equation
from ._integrator import AbstractIntegrator, check_state, scaled, slope, solved


# ARS(4,4,3). A row for each stage after the first: its time, the weights of the explicit slopes before it, and those of
# the implicit slopes up to its own. The first stage is the state itself, whose implicit slope is never needed.
NODES = (1 / 2, 2 / 3, 1 / 2, 1)
EXPLICIT = ((1 / 2,), (11 / 18, 1 / 18), (5 / 6, -5 / 6, 1 / 2), (1 / 4, 7 / 4, 3 / 4, -7 / 4))
IMPLICIT = ((1 / 2,), (1 / 6, 1 / 2), (-1 / 2, 1 / 2, 1 / 2), (3 / 2, -3 / 2, 1 / 2, 1 / 2))


class IMEXRK(AbstractIntegrator):
    """The implicit–explicit Runge–Kutta method ARS(4,4,3) of Ascher, Ruuth & Spiteri (Appl. Numer. Math. 25, 1997).

    It has order 3 and takes any equation with a `resolvent`, diagonal or not. A step evaluates `nonlinear` and
    `resolvent` four times each, the latter always for `dt / 2`. The implicit part is L-stable: what decays
    infinitely fast is gone after one step. A steady state of the equation is one of the method. Where the resolvent
    enforces a constraint, as a Stokes solve does, every stage and every new state satisfies it. Everything can be
    differentiated by: the state, `dt`, and the parameters of the equation.

    **Arguments:**

    - `equation`: an `AbstractSplitEquation`, such as `NavierStokes`.
    - `dt`: the time step, a number of at least zero.

    !!! example

        ```python
        solver = IMEXRK(NavierStokes(fft, viscosity=1e-3), dt=0.01)
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
        """`u` itself."""
        return check_state(self.equation, u)

    def step(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """The state at `t + dt`, from the state `u` at `t`. `args` is handed on to the equation."""
        check_state(self.equation, u)
        return runge_kutta_step(self.equation, cast(t, u), cast(self.dt, u), u, args)


def runge_kutta_step(equation: AbstractSplitEquation, t: Array, h: Array, u: Array, args: Any) -> Array:
    """The state at `t + h`, from the state `u` at `t`.

    The implicit slopes times h follow from the solutions v of `v - h a L v = r` as `(v - r) / a`. So L is never
    applied, and the pressure of a Stokes solve is part of the slope. The weights of the method are those of its last
    stage, which is therefore the new state.

    The stages are a loop, because programs of four resolvents would take four times as long to compile.
    """
    stages, dtype = len(NODES), h.dtype
    # Row i: the time of stage i, and the weights of its slopes in the stages after it; none beyond the last stage.
    explicit, implicit = np.zeros((stages, stages)), np.zeros((stages, stages))
    for after, (forward, backward) in enumerate(zip(EXPLICIT, IMPLICIT)):
        for i, weight in enumerate(forward):
            explicit[i, after - i] = weight
        for i, weight in enumerate(backward[:-1]):
            implicit[i, after - i] = weight
    times = t + h * np.asarray((0, *NODES[:-1]), dtype)
    diagonal = IMPLICIT[0][0]

    def advance(state: tuple[Array, tuple[Array, ...]], row: tuple[Array, Array, Array]) -> tuple[Any, None]:
        """The next stage; and what the slopes so far add up to in each one after it, the state included."""
        stage, ahead = state
        time, forward, backward = row
        push = scaled(h, slope(equation, time, stage, args))
        rest, *later = (known + scaled(weight, push) for known, weight in zip(ahead, forward))
        stage = solved(equation, rest, diagonal * h)
        pull = (stage - rest) / diagonal
        return (stage, (*(known + scaled(weight, pull) for known, weight in zip(later, backward[1:])), u)), None

    rows = times, jnp.asarray(explicit, dtype), jnp.asarray(implicit, dtype)
    (new, _), _ = lax.scan(advance, (u, (u,) * stages), rows)
    return new
