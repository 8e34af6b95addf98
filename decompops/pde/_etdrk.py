"""Exponential time differencing: exact for the linear part, Runge–Kutta for the nonlinear part."""

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import as_number, check_choice, check_number
from .._common.remember import in_one_program
from .._common.typed import sharded_like
from ..spectral._vector import cast, times
from ._equation import AbstractEquation, AbstractSplitEquation, Time, check_equation, linear_factor
from ._integrator import AbstractIntegrator, check_state, slope


Order = Literal[1, 2, 3, 4]


class ETDRK(AbstractIntegrator):
    """Exponential time differencing Runge–Kutta methods of order 1 to 4 (Cox & Matthews, J. Comput. Phys. 176, 2002).

    The linear part is integrated exactly, however stiff it is. The coefficients of the method are as accurate as with
    the contour integrals of Kassam & Trefethen (SIAM J. Sci. Comput. 26, 2005). Each call of `step` evaluates the
    coefficients, because they are cheap; a `rollout` evaluates them once. JAX can differentiate with respect to the
    state, `dt` and the parameters of the equation.

    !!! example

        ```python
        solver = pde.ETDRK(pde.NavierStokes(fft, viscosity=1e-3), dt=0.01)
        transform = solver.equation.transform
        u = transform(velocity)
        u, energies = solver.rollout(u, 100, every=10, observe=lambda t, u: spectral.mean_square(transform, u))
        ```
    """

    equation: AbstractEquation
    dt: Number
    order: Order = eqx.field(static=True)

    def __init__(self, equation: AbstractEquation, dt: Number, order: Order = 4):
        """**Arguments:**

        - `equation`: an `AbstractEquation`, such as `NavierStokes`.
        - `dt`: the time step, a number.
        - `order`: 1, 2, 3 or 4. Each step evaluates the nonlinear part `order` times.

        **Raises:** `ValueError` if `order` is not 1, 2, 3 or 4; `TypeError` if `equation` is not an `AbstractEquation`,
        or if `dt` is not a number.
        """
        order = check_choice("order", as_number(order), get_args(Order))
        if isinstance(equation, AbstractSplitEquation) and not isinstance(equation, AbstractEquation):
            raise TypeError(
                "`equation` must be an `AbstractEquation`, whose linear part is diagonal; got "
                f"`{type(equation).__name__}`. Use `IMEXRK` or `SBDF` for it."
            )
        self.equation = check_equation(equation)
        self.dt = check_number("dt", dt)
        self.order = order

    def start(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Return `u` itself. Raises `TypeError` or `ValueError` unless `u` is a state of the equation."""
        return check_state(self.equation, u)

    def step(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """Return the state at `t + dt` for the state `u` at `t`. `args` is passed to the equation."""
        check_state(self.equation, u)
        return _step(self, t, u, args)

    def stepper(self, u: Inexact[Array, "*spectrum"], args: Any = None) -> Callable[[Time, Array], Array]:
        equation, h = check_equation(self.equation), cast(self.dt, check_state(self.equation, u))
        z = linear_factor(equation, u)
        method = _method(self.order, h.astype(z.dtype) * z)

        def step(t: Time, u: Array) -> Array:
            check_state(equation, u)

            def push(fraction: float, w: Array) -> Array:
                rate = slope(equation, cast(t, u) + fraction * h, equation.from_diagonal(w), args)
                return times(h, equation.to_diagonal(rate))

            return sharded_like(equation.from_diagonal(method(equation.to_diagonal(u), push)), u)

        return step


@in_one_program
def _step(solver: ETDRK, t: Time, u: Array, args: Any) -> Array:
    return solver.stepper(u, args)(t, u)


Slope = Callable[[float, Array], Array]


def _method(order: Order, z: Array) -> Callable[[Array, Slope], Array]:
    """Return a function `(w, slope)` that takes a step of `∂w/∂t = L w + N(t, w)`.

    `z` is `h L`, and `slope(f, w)` must return `h N(t + f h, w)`. The coefficients depend on `z` only, so they are
    computed here, once for all steps.
    """
    if order < 3:
        whole = jnp.exp(z)
        one, two, _ = phi(z, whole)

        def short(w: Array, slope: Slope) -> Array:
            start = slope(0.0, w)
            a = times(whole, w) + times(one, start)
            return a if order == 1 else a + times(two, slope(1.0, a) - start)

        return short

    half = jnp.exp(z / 2)
    half_one, *others = phi(z / 2, half)
    whole, (one, two, three) = half**2, doubled(half, half_one, *others)
    first_weight, last_weight = one - 3 * two + 4 * three, 4 * three - two

    def third(w: Array, slope: Slope) -> Array:
        start = slope(0.0, w)
        middle = slope(0.5, times(half, w) + times(half_one / 2, start))
        end = slope(1.0, times(whole, w) + times(one, 2 * middle - start))
        middle = times(4 * two - 8 * three, middle)
        return times(whole, w) + times(first_weight, start) + middle + times(last_weight, end)

    def fourth(w: Array, slope: Slope) -> Array:
        start = slope(0.0, w)
        a = times(half, w) + times(half_one / 2, start)
        first = slope(0.5, a)
        second = slope(0.5, times(half, w) + times(half_one / 2, first))
        end = slope(1.0, times(half, a) + times(half_one / 2, 2 * second - start))
        middle = times(2 * two - 4 * three, first + second)
        return times(whole, w) + times(first_weight, start) + middle + times(last_weight, end)

    return third if order == 3 else fourth


def phi(z: Inexact[Array, "*shape"], exponential: Inexact[Array, "*shape"]) -> tuple[Array, Array, Array]:
    """Return the functions φ₁, φ₂, φ₃ of exponential integrators: `φ₀ = exp(z)`, `φₙ₊₁ = (φₙ - 1/n!) / z`.

    The recursion loses all digits if |z| is small. For `|z| < 1`, φ₃ is therefore summed as a power series, and the
    reversed recursion gives φ₂ and φ₁. `exponential` is exp(z).
    """
    near = jnp.abs(z) < 1
    inside, outside = jnp.where(near, z, 0), jnp.where(near, 1, z)
    terms = 10 if jnp.finfo(z.dtype).bits == 32 else 19
    series = jnp.full_like(z, 1 / math.factorial(terms + 2))
    for n in reversed(range(3, terms + 2)):
        series = series * inside + 1 / math.factorial(n)
    two = series * inside + 0.5
    one = (exponential - 1) / outside
    far = (one, (one - 1) / outside, ((one - 1) / outside - 0.5) / outside)
    return tuple(jnp.where(near, a, b) for a, b in zip((two * inside + 1, two, series), far))  # pyright: ignore


def doubled(exponential: Array, one: Array, two: Array, three: Array) -> tuple[Array, Array, Array]:
    """Return φ₁, φ₂ and φ₃ at 2z, given exp(z) and the three functions at z.

    For real z, the results are sums of positive terms, so no digits are lost.
    """
    return (
        (exponential * one + one) / 2,
        (exponential * two + one + two) / 4,
        (exponential * three + one / 2 + two + three) / 8,
    )
