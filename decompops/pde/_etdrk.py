"""Exponential time differencing: exact for the linear part, Runge–Kutta for the rest."""

import math
import sys
from collections.abc import Callable
from typing import Any, Literal, SupportsIndex, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._box import Number
from .._check import check_count, check_number
from .._structure import Structure
from ..spectral._vector import cast, times
from ._equation import AbstractEquation, Time, check_equation


Order = Literal[1, 2, 3, 4]


class ETDRK(eqx.Module):
    """Exponential time differencing Runge–Kutta methods of order 1 to 4 (Cox & Matthews, J. Comput. Phys. 176, 2002).

    The linear part is integrated exactly, however stiff. The coefficients are as accurate as by the contour integrals
    of Kassam & Trefethen (SIAM J. Sci. Comput. 26, 2005), but cheap enough to be evaluated anew in each step, so that
    nothing is stored. Everything can be differentiated by: the state, `dt`, and the parameters of the equation.

    !!! example

        ```python
        solver = ETDRK(NavierStokes(fft, viscosity=1e-3), dt=0.01)
        transform = solver.equation.transform
        u = transform(velocity)
        u, energies = solver.rollout(u, 100, every=10, observe=lambda t, u: mean_square(transform, u))
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
        if order not in get_args(Order):
            raise ValueError(f"`order` must be one of {get_args(Order)}; got {order!r}.")
        self.equation = check_equation(equation)
        self.dt = check_number("dt", dt)
        self.order = order

    @property
    def in_structure(self) -> Structure:
        """The type of a state, as that of the equation."""
        return self.equation.in_structure

    @property
    def out_structure(self) -> Structure:
        """The type of a later state."""
        return self.equation.out_structure

    def step(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """The state at `t + dt`, from the state `u` at `t`. `args` is handed on to the equation."""
        self.equation.check(u)
        h, t = cast(self.dt, u), cast(t, u)
        z = jnp.asarray(self.equation.linear(u))
        z = h.astype(z.dtype) * z

        def slope(fraction: float, u: Array) -> Array:
            slope = self.equation.nonlinear(t + fraction * h, u, args)
            if not isinstance(slope, Array) or (slope.shape, slope.dtype) != (u.shape, u.dtype):
                got = f"{slope.dtype} {slope.shape}" if isinstance(slope, Array) else repr(slope)
                raise ValueError(
                    f"`equation.nonlinear` must return an array like the state, {u.dtype} {u.shape}; got {got}."
                )
            return times(h, slope)

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

    def rollout(
        self,
        u: Inexact[Array, "*spectrum"],
        steps: SupportsIndex,
        *,
        t: Time = 0.0,
        args: Any = None,
        every: SupportsIndex | None = None,
        observe: Callable | None = None,
        progress: Callable | bool = False,
    ) -> tuple[Inexact[Array, "*spectrum"], Any]:
        """Many steps in one program.

        A derivative keeps about `2 * sqrt(steps)` states, and computes the others again.

        **Arguments:**

        - `u`: the state at time `t`.
        - `steps`: how many.
        - `t`, `args`: handed on to the equation.
        - `every`: after how many steps to observe and report progress; must divide `steps`. By default the divisor of
            `steps` that is nearest to its root, from below.
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
        if not (observe is None or callable(observe)):
            raise TypeError(f"`observe` must be a function of (t, u) or None; got {observe!r}.")
        report = _print_progress if progress is True else progress or None
        if observe is None and report is None:
            every = steps
        return self._rollout(u, steps, t, args, every, observe, report)

    @eqx.filter_jit
    def _rollout(
        self,
        u: Array,
        steps: int,
        t: Time,
        args: Any,
        every: int,
        observe: Callable | None,
        report: Callable | None,
    ) -> tuple[Array, Any]:
        def time(done: Array) -> Array:
            return cast(t, u) + cast(self.dt, u) * done.astype(u.real.dtype)

        def advance(state: Array, i: Array) -> Array:
            @jax.checkpoint
            def step(state: Array, j: Array) -> Array:
                return self.step(time(i * every + j), state, args)

            state, _ = scan_in_chunks(step, state, every, chunk)
            if report is not None:
                jax.debug.callback(report, (i + 1) * every, steps)
            return state

        @jax.checkpoint
        def result(state: Array, i: Array) -> Any:
            return None if observe is None else observe(time((i + 1) * every), state)

        chunk = math.isqrt(steps)
        return scan_in_chunks(advance, u, steps // every, chunk // every, result)


def phi(z: Inexact[Array, "*shape"]) -> tuple[Array, Array, Array]:
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


def scan_in_chunks(
    advance: Callable, state: Array, length: int, chunk: int, result: Callable = lambda state, i: None
) -> tuple[Array, Any]:
    """The state after `length` calls of `advance(state, i)`, and the `result(state, i)` of the state after each call.

    The derivative keeps the first state of each chunk of about `chunk` calls, and all states of one chunk at a time. A
    chunk of one call, or of all calls, is not worth computing again. Where chunks do not divide `length`, the last one
    skips calls and repeats a result; a loop of its own would contain `advance` a second time, and take twice as long to
    compile.
    """

    def call(state: Array, i: Array) -> tuple[Array, Any]:
        state = advance(state, i)
        return state, result(state, i)

    if not 1 < chunk < length:
        return jax.lax.scan(call, state, jnp.arange(length))

    @jax.checkpoint  # else `cond` would keep what `advance` computes on its way
    def advance_or_skip(state: Array, i: Array) -> Array:
        return jax.lax.cond(i < length, advance, lambda state, _: state, state, i)

    def call_or_skip(state: Array, i: Array) -> tuple[Array, Any]:
        state = advance_or_skip(state, i)
        return state, result(state, jnp.minimum(i, length - 1))

    @jax.checkpoint
    def calls(state: Array, first: Array) -> tuple[Array, Any]:
        return jax.lax.scan(call_or_skip if length % chunk else call, state, first + jnp.arange(chunk))

    near = [n for n in range(2 * chunk // 3, 3 * chunk // 2 + 1) if n > 1 and length % n == 0]
    chunk = min(near, key=lambda n: abs(n - chunk), default=chunk)
    state, results = jax.lax.scan(calls, state, jnp.arange(0, length, chunk))
    return state, jax.tree.map(lambda parts: parts.reshape(-1, *parts.shape[2:])[:length], results)


def _near_root(steps: int) -> int:
    """The divisor of `steps` that is nearest to its root, from below."""
    return max(n for n in range(1, math.isqrt(steps) + 1) if steps % n == 0)


def _print_progress(done: Any, steps: Any) -> None:
    if jax.process_index() == 0:
        print(f"\r{int(done)} of {int(steps)} steps", end="\n" if done == steps else "", file=sys.stderr, flush=True)
