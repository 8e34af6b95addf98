"""What integrators have in common: many steps in one program, and what a step asks of an equation."""

import abc
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jaxtyping import Inexact, Int

from .._box import Number
from .._check import check_count
from .._structure import Structure
from ..spectral._vector import cast, times
from ._checkpointing import Chain, checkpointed
from ._equation import AbstractSplitEquation, Time
from ._memory import Budget, best_plan, check_budget


class History(eqx.Module):
    """What a multi-step method carries from one step to the next, as a PyTree of arrays. `SBDF.start` makes one.

    A history belongs to one equation, one order and one time step. Its steps must all be equally long.
    """

    state: Inexact[Array, "*spectrum"]
    """The newest state."""
    ahead: tuple[Inexact[Array, "*spectrum"], ...]
    """For each of the next steps, the terms of its right-hand side that come from earlier states."""
    known: Int[Array, ""]
    """How many earlier states these terms come from. Too few of them call for a step of a one-step method."""


State = TypeVar("State", bound=Inexact[Array, "*spectrum"] | History)


class AbstractIntegrator(eqx.Module):
    """An integrator with a fixed time step `dt`. A subclass declares the fields, `start` and `step`.

    `step` takes and returns what the method carries along. In a one-step method this is the state, which `start`
    returns as it is. In a multi-step method it is a `History`.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as an argument of every constructor.
        equation: ClassVar[AbstractSplitEquation]
        dt: ClassVar[Number]
    else:
        equation: AbstractVar[AbstractSplitEquation]
        dt: AbstractVar[Number]

    @property
    def in_structure(self) -> Structure:
        """The type of a state, as that of the equation."""
        return self.equation.in_structure

    @property
    def out_structure(self) -> Structure:
        """The type of a later state."""
        return self.equation.out_structure

    @abc.abstractmethod
    def start(self, u: Any) -> Any:
        """What the first `step` takes, for a state `u`. Raises an error for what is no state."""

    @abc.abstractmethod
    def step(self, t: Time, u: Any, args: Any = None) -> Any:
        """What `u` is at the time t becomes at `t + dt`. `args` is handed on to the equation."""

    def stepper(self, u: Any, args: Any = None) -> Callable[[Time, Any], Any]:
        """A function `(t, u)` that takes a step.

        A method overrides it to compute only once what all steps share.
        """
        del u
        return lambda t, u: self.step(t, u, args)

    def rollout(
        self,
        u: State,
        steps: SupportsIndex,
        *,
        t: Time = 0.0,
        args: Any = None,
        every: SupportsIndex | None = None,
        observe: Callable | None = None,
        progress: Callable | bool = False,
        keep: int | str | None = None,
        keep_on_host: int | str | None = None,
    ) -> tuple[State, Any]:
        """Many steps in one program.

        A derivative keeps about `2 * sqrt(steps)` states, and computes the others again. With `keep` it takes at most
        the memory given, and computes as few states again as that allows.

        **Arguments:**

        - `u`: the state at time `t`, or the `History` of a multi-step method.
        - `steps`: how many.
        - `t`, `args`: handed on to the equation.
        - `every`: after how many steps to observe and report progress; must divide `steps`. By default the divisor of
            `steps` that is nearest to its root, from below.
        - `observe`: a function `(t, u)` of a state, whose results are returned. For another function the program is
            compiled again, as it is for other `steps`.
        - `progress`: a function `(done, steps)` to be called on each host, or `True` to print them.
        - `keep`: the scratch memory that a reverse-mode derivative may take on each device: a number of states, or
            bytes such as "1.5 GiB". To see what a step takes, two small programs are compiled. What is kept is chosen
            in blocks of steps that divide `every`, or `steps` without `observe` and `progress`. There is no forward
            mode then, except over reverse mode. Default: `None`.
        - `keep_on_host`: the memory of the host that a reverse-mode derivative may take for each device, in states or
            bytes. The derivative then stores states there, and on a GPU it takes the memory of one step and of two
            states; `keep` allows it more. Default: `None`, no states on the host.

        **Returns:** the last state, and the results of `observe`, stacked along a new leading axis of length
        `steps / every`; `None` without it. From a `History` the last `History` is returned in place of the state: a
        rollout from there continues as if it had not been interrupted.

        **Raises:** `TypeError` and `ValueError` for arguments that are not as described, and, when a derivative is
        taken, `ValueError` where `keep` is too little for a step.
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
        if isinstance(t, float | int):  # Equinox compiles anew for another Python number, but not for another array.
            t = np.asarray(t, np.float64)  # pyright: ignore[reportAssignmentType]
        return self._rollout(u, steps, t, args, every, observe, report, check_budget(keep, keep_on_host))

    @eqx.filter_jit
    def _rollout(
        self,
        u: Any,
        steps: int,
        t: Any,
        args: Any,
        every: int,
        observe: Callable | None,
        report: Callable | None,
        memory: Budget | None,
    ) -> tuple[Any, Any]:
        first = self.start(u)
        like = _state(first)
        advance = self.stepper(first, args)

        def time(done: Array) -> Array:
            return cast(t, like) + cast(self.dt, like) * done.astype(like.real.dtype)

        def step(carried: Any, i: Array) -> Any:
            return advance(time(i), carried)

        def result(carried: Any, n: Array) -> Any:
            return None if observe is None else observe(time(n * every), _state(carried))

        def tell(n: Array) -> None:
            if report is not None:
                jax.debug.callback(report, n * every, steps)

        if memory is None:
            last, results = _in_chunks(step, result, tell, first, steps, every)
        else:
            plan = partial(best_plan, memory=memory, layout=self.in_structure.layout)
            last, results = checkpointed(Chain(step, result, tell, steps, every), first, plan)
        return (last if isinstance(u, History) else _state(last)), results


def check_state(equation: AbstractSplitEquation, u: Any) -> Any:
    """`u`, after a check that it is a state of the equation, which a `History` is not."""
    if isinstance(u, History):
        raise TypeError("`u` must be a state, as the method carries no history; got a `History`: pass its `state`.")
    equation.check(u)
    return u


def slope(equation: AbstractSplitEquation, t: Array, u: Array, args: Any) -> Array:
    """N(t, u), after a check that it is like the state."""
    return _like_state("nonlinear", equation.nonlinear(t, u, args), u)


def solved(equation: AbstractSplitEquation, u: Array, h: Array) -> Array:
    """The solution v of `v - h L v = u`, after a check that it is like the state."""
    return _like_state("resolvent", equation.resolvent(u, h), u)


def scaled(factor: Array, u: Array) -> Array:
    """`factor * u` for a real factor in the precision of `u`."""
    return times(factor, u) if jnp.iscomplexobj(u) else factor * u


def scan_in_chunks(
    advance: Callable, state: Any, length: int, chunk: int, result: Callable = lambda state, i: None
) -> tuple[Any, Any]:
    """The state after `length` calls of `advance(state, i)`, and the `result(state, i)` of the state after each call.

    The derivative keeps the first state of each chunk of about `chunk` calls, and all states of one chunk at a time. A
    chunk of one call, or of all calls, is not worth computing again. Where chunks do not divide `length`, the last one
    skips calls and repeats a result; a loop of its own would contain `advance` a second time, and take twice as long to
    compile.
    """

    def call(state: Any, i: Array) -> tuple[Any, Any]:
        state = advance(state, i)
        return state, result(state, i)

    if not 1 < chunk < length:
        return jax.lax.scan(call, state, jnp.arange(length))

    @jax.checkpoint  # else `cond` would keep what `advance` computes on its way
    def advance_or_skip(state: Any, i: Array) -> Any:
        return jax.lax.cond(i < length, advance, lambda state, _: state, state, i)

    def call_or_skip(state: Any, i: Array) -> tuple[Any, Any]:
        state = advance_or_skip(state, i)
        return state, result(state, jnp.minimum(i, length - 1))

    @jax.checkpoint
    def calls(state: Any, first: Array) -> tuple[Any, Any]:
        return jax.lax.scan(call_or_skip if length % chunk else call, state, first + jnp.arange(chunk))

    near = [n for n in range(2 * chunk // 3, 3 * chunk // 2 + 1) if n > 1 and length % n == 0]
    chunk = min(near, key=lambda n: abs(n - chunk), default=chunk)
    state, results = jax.lax.scan(calls, state, jnp.arange(0, length, chunk))
    return state, jax.tree.map(lambda parts: parts.reshape(-1, *parts.shape[2:])[:length], results)


def _in_chunks(
    step: Callable, result: Callable, report: Callable, first: Any, steps: int, every: int
) -> tuple[Any, Any]:
    """The last state, and the results after each `every` steps. Differentiable in all modes."""

    def advance(carried: Any, i: Array) -> Any:
        @jax.checkpoint
        def one(carried: Any, j: Array) -> Any:
            return step(carried, i * every + j)

        carried, _ = scan_in_chunks(one, carried, every, chunk)
        report(i + 1)
        return carried

    @jax.checkpoint
    def seen(carried: Any, i: Array) -> Any:
        return result(carried, i + 1)

    chunk = math.isqrt(steps)
    return scan_in_chunks(advance, first, steps // every, chunk // every, seen)


def _state(carried: Any) -> Any:
    return carried.state if isinstance(carried, History) else carried


def _like_state(name: str, result: Any, u: Array) -> Array:
    if not isinstance(result, Array) or (result.shape, result.dtype) != (u.shape, u.dtype):
        got = f"{result.dtype} {result.shape}" if isinstance(result, Array) else repr(result)
        raise ValueError(f"`equation.{name}` must return an array like the state, {u.dtype} {u.shape}; got {got}.")
    return result


def _near_root(steps: int) -> int:
    """The divisor of `steps` that is nearest to its root, from below."""
    return max(n for n in range(1, math.isqrt(steps) + 1) if steps % n == 0)


def _print_progress(done: Any, steps: Any) -> None:
    if jax.process_index() == 0:
        print(f"\r{int(done)} of {int(steps)} steps", end="\n" if done == steps else "", file=sys.stderr, flush=True)
