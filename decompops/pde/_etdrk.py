"""Exponential time differencing: exact for the linear part, Runge–Kutta for the rest."""

import math
import sys
from collections.abc import Callable
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Complex, Inexact

from .._operator.fft import Number
from .._pencil import check_count
from ..spectral._operator import check_number
from ..spectral._vector import times
from ._equation import AbstractEquation, Time, cast


Order = Literal[1, 2, 3, 4]


class ETDRK(eqx.Module):
    """Exponential time differencing Runge–Kutta methods of order 1 to 4 (Cox & Matthews, J. Comput. Phys. 176, 2002).

    The linear part is integrated exactly, however stiff. The coefficients are as accurate as by the contour integrals
    of Kassam & Trefethen (SIAM J. Sci. Comput. 26, 2005), but cheap enough to be evaluated anew in each step, so that
    nothing is stored. Everything can be differentiated by: the state, `dt`, and the parameters of the equation.

    !!! example

        ```python
        solver = ETDRK(NavierStokes(fft, viscosity=1e-3), dt=0.01)
        u = solver.equation.fft(velocity)
        u, energies = solver.rollout(u, 100, every=10, observe=lambda t, u: mean_square(solver.equation.fft, u))
        ```
    """

    equation: AbstractEquation
    dt: Number
    order: Order = eqx.field(static=True)

    def __init__(self, equation: AbstractEquation, dt: Number, order: Order = 4):
        """**Arguments:**

        - `equation`: such as `NavierStokes`.
        - `dt`: the time step, a number.
        - `order`: 1, 2, 3 or 4: as many evaluations of the nonlinear part in each step.
        """
        if not isinstance(equation, AbstractEquation):
            raise TypeError(f"`equation` must be an `AbstractEquation`; got {equation!r}.")
        if order not in get_args(Order):
            raise ValueError(f"`order` must be one of {get_args(Order)}; got {order!r}.")
        self.equation = equation
        self.dt = check_number("dt", dt)
        self.order = order

    def step(self, t: Time, u: Complex[Array, "..."], args: Any = None) -> Complex[Array, "..."]:
        """The state at `t + dt`, from the state `u` at `t`. `args` is handed on to the equation."""
        self.equation.check(u)
        h, t = cast(self.dt, u), cast(t, u)
        z = self.equation.linear(u)
        z = h.astype(z.dtype) * z

        def slope(fraction: float, u: Array) -> Array:
            return times(h, self.equation.nonlinear(t + fraction * h, u, args))

        start = slope(0.0, u)
        whole, (one, two, three) = jnp.exp(z), phi(z)
        match self.order:
            case 1:
                return times(whole, u) + times(one, start)
            case 2:
                a = times(whole, u) + times(one, start)
                return a + times(two, slope(1.0, a) - start)
            case 3:
                half, (half_one, *_) = jnp.exp(z / 2), phi(z / 2)
                a = times(half, u) + times(half_one / 2, start)
                middle = slope(0.5, a)
                end = slope(1.0, times(whole, u) + times(one, 2 * middle - start))
                weights = one - 3 * two + 4 * three, 4 * two - 8 * three, 4 * three - two
                return times(whole, u) + sum(map(times, weights[1:], (middle, end)), times(weights[0], start))
            case 4:
                half, (half_one, *_) = jnp.exp(z / 2), phi(z / 2)
                a = times(half, u) + times(half_one / 2, start)
                first = slope(0.5, a)
                second = slope(0.5, times(half, u) + times(half_one / 2, first))
                end = slope(1.0, times(half, a) + times(half_one / 2, 2 * second - start))
                weights = one - 3 * two + 4 * three, 2 * two - 4 * three, 4 * three - two
                return times(whole, u) + sum(map(times, weights[1:], (first + second, end)), times(weights[0], start))

    @eqx.filter_jit
    def rollout(
        self,
        u: Complex[Array, "..."],
        steps: int,
        *,
        t: Time = 0.0,
        args: Any = None,
        every: int | None = None,
        observe: Callable | None = None,
        progress: Callable | bool = False,
    ) -> tuple[Complex[Array, "..."], Any]:
        """Many steps in one program.

        To differentiate, `steps / every + every` states are kept, and the rest computed again.

        **Arguments:**

        - `u`: the state at time `t`.
        - `steps`: how many.
        - `t`, `args`: handed on to the equation.
        - `every`: after how many steps to observe, report progress, and keep a state to differentiate; must divide
            `steps`. By default about the root of `steps`, which keeps fewest states.
        - `observe`: a function `(t, u)` of a state, whose results are returned. For another function the program is
            compiled again, as it is for other `steps`.
        - `progress`: a function `(done, steps)` to be called on each host, or `True` to print them.

        **Returns:** the last state, and the results of `observe`, stacked along a new leading axis of length
        `steps / every`; `None` without it.
        """
        steps = check_count("steps", steps)
        every = _near_root(steps) if every is None else check_count("every", every)
        if steps % every:
            raise ValueError(f"`every` must divide the {steps} steps; got {every}.")
        report = _print_progress if progress is True else progress or None

        def time(done: Array) -> Array:
            return cast(t, u) + cast(self.dt, u) * done.astype(u.real.dtype)

        @jax.checkpoint
        def step(state: Array, done: Array) -> tuple[Array, None]:
            return self.step(time(done), state, args), None

        @jax.checkpoint
        def chunk(state: Array, done: Array) -> tuple[Array, Any]:
            state, _ = jax.lax.scan(step, state, done + jnp.arange(every))
            if report is not None:
                jax.debug.callback(report, done + every, steps)
            return state, None if observe is None else observe(time(done + every), state)

        return jax.lax.scan(chunk, u, jnp.arange(0, steps, every))


def phi(z: Inexact[Array, "..."]) -> tuple[Array, Array, Array]:
    """The functions φ₁, φ₂, φ₃ of exponential integrators: `φ₀ = exp(z)`, `φₙ₊₁ = (φₙ - 1/n!) / z`.

    The recursion loses all digits where |z| is small; there φ₃ is summed as a power series, and the others follow from
    it, backwards.
    """
    near = jnp.abs(z) < 1
    inside, outside = jnp.where(near, z, 0), jnp.where(near, 1, z)
    terms = 10 if jnp.finfo(z.dtype).bits == 32 else 19
    series = jnp.full_like(z, 1 / math.factorial(terms + 2))
    for n in reversed(range(3, terms + 2)):
        series = series * inside + 1 / math.factorial(n)
    two = series * inside + 0.5
    one = (jnp.exp(outside) - 1) / outside
    far = (one, (one - 1) / outside, ((one - 1) / outside - 0.5) / outside)
    return tuple(jnp.where(near, a, b) for a, b in zip((two * inside + 1, two, series), far))  # pyright: ignore


def _near_root(steps: int) -> int:
    """The divisor of `steps` that is nearest to its root, from below."""
    return max(n for n in range(1, math.isqrt(steps) + 1) if steps % n == 0)


def _print_progress(done: Any, steps: Any) -> None:
    if jax.process_index() == 0:
        print(f"\r{int(done)} of {int(steps)} steps", end="\n" if done == steps else "", file=sys.stderr, flush=True)
