"""Implicit–explicit Runge–Kutta: implicit for the linear part, explicit for the rest."""

from typing import Any

from jax import Array
from jaxtyping import Inexact

from .._box import Number
from .._check import check_number
from ..spectral._vector import cast
from ._equation import AbstractSplitEquation, Time, check_split_equation
from ._integrator import AbstractIntegrator, check_state, combination, scaled, slope, solved


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

    def __check_init__(self):
        check_split_equation(self.equation)
        check_number("dt", self.dt, least=0)

    def start(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """`u` itself."""
        return check_state(self.equation, u)

    def step(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """The state at `t + dt`, from the state `u` at `t`. `args` is handed on to the equation."""
        check_state(self.equation, u)
        h, t = cast(self.dt, u), cast(t, u)
        return runge_kutta_step(self.equation, t, h, u, slope(self.equation, t, u, args), args)


def runge_kutta_step(equation: AbstractSplitEquation, t: Array, h: Array, u: Array, first: Array, args: Any) -> Array:
    """The state at `t + h`, from the state `u` at `t` with the slope `first`, N(t, u).

    The implicit slopes times h follow from the solutions v of `v - h a L v = r` as `(v - r) / a`. So L is never
    applied, and the pressure of a Stokes solve is part of the slope. The weights of the method are those of its last
    stage, which is therefore the new state.
    """
    explicit, implicit, stage = [scaled(h, first)], [], u
    for i, (forward, (*backward, diagonal)) in enumerate(zip(EXPLICIT, IMPLICIT)):
        if i:
            explicit.append(scaled(h, slope(equation, t + NODES[i - 1] * h, stage, args)))
        rest = u + combination((*forward, *backward), (*explicit, *implicit))
        stage = solved(equation, rest, diagonal * h)
        implicit.append((stage - rest) / diagonal)
    return stage
