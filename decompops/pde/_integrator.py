"""The interface of integrators, and helpers that steps share."""

import abc
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.core import Tracer
from jaxtyping import Inexact, Int

from .._common.box import Number
from .._common.check import check_number
from .._common.placement import known
from .._core.structure import Structure
from .._rollout.rollout import Options, check_options, roll_out
from ..spectral._vector import cast, times
from ._equation import AbstractSplitEquation, Time, like_state


class History(eqx.Module):
    """The arrays that a multi-step method carries from one step to the next. `SBDF.start` returns a history.

    A history belongs to one equation, one order and one time step: all steps must have the same length.
    """

    state: Inexact[Array, "*spectrum"]
    """The newest state."""
    ahead: tuple[Inexact[Array, "*spectrum"], ...]
    """For each of the next steps, the sum of the terms that earlier states add to the right-hand side of this step."""
    known: Int[Array, ""]
    """The number of earlier states in `ahead`. If the method needs more, the next step is a step of `IMEXRK`."""


State = TypeVar("State", bound=Inexact[Array, "*spectrum"] | History)


class AbstractIntegrator(eqx.Module):
    """An integrator with a fixed time step `dt`.

    A subclass declares the dataclass fields `equation` and `dt`, and implements `start` and `step`. In a one-step
    method, `step` takes and returns a state. In a multi-step method, it takes and returns a `History`. `start` returns
    the input of the first step. A subclass also declares its `order`, the power of `dt` to which the error is
    proportional, as a field or as a `ClassVar[int]`. `ErrorControl` estimates errors by this order.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as an argument of every constructor.
        equation: ClassVar[AbstractSplitEquation]
        dt: ClassVar[Number]
        order: ClassVar[int]
    else:
        equation: AbstractVar[AbstractSplitEquation]
        dt: AbstractVar[Number]
        order: AbstractVar[int]

    @property
    def in_structure(self) -> Structure:
        """The structure of a state of `equation`."""
        return self.equation.in_structure

    @property
    def out_structure(self) -> Structure:
        """The structure of the state after a step, which equals `in_structure`."""
        return self.equation.out_structure

    @abc.abstractmethod
    def start(self, u: Any) -> Any:
        """Return the input of the first `step`. Raises `TypeError` or `ValueError` unless `u` is a state."""

    @abc.abstractmethod
    def step(self, t: Time, u: Any, args: Any = None) -> Any:
        """Return the state or the `History` at `t + dt`, for `u` at the time `t`. `args` is passed to the equation."""

    def stepper(self, u: Any, args: Any = None) -> Callable[[Time, Any], Any]:
        """Return a function `(t, u)` that takes a step.

        Some quantities are the same in all steps. An integrator that overrides this method can compute them only
        once, before the first step.
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
        """Take many steps in one compiled program, which JAX can differentiate. For long runs, see `simulate`.

        A reverse-mode derivative stores about `2 * sqrt(steps)` states and recomputes the others. With `keep`, the
        derivative takes at most the given memory, and recomputes as few states as this memory allows.

        **Arguments:**

        - `u`: the state at time `t`, or the `History` of a multi-step method.
        - `steps`: the number of steps. The program is compiled again if this number changes.
        - `t`: the time of `u`.
        - `args`: any PyTree, passed to the equation.
        - `every`: the number of steps between two calls of `observe` and `progress`. It must divide `steps`. The
            default is the largest divisor of `steps` that is at most `sqrt(steps)`.
        - `observe`: a function `(t, u)` of the time t and the state u. `rollout` returns the results of this function.
            The program is compiled again if `observe` is a new function object.
        - `progress`: a function `(done, steps)` that is called on each host with the number of steps done and the
            number of all steps; or `True` to print both numbers. If it raises an error, the error is logged, and the
            rollout goes on.
        - `keep`: the scratch memory that a reverse-mode derivative may take on each device: a number of states, or a
            number of bytes such as "1.5 GiB". One or two small programs are compiled to measure the memory of a step.
            The derivative recomputes blocks of steps. The number of steps in a block divides `every`, or `steps` if
            neither `observe` nor `progress` is given. With `keep`, `jax.jvp` of a rollout fails, but `jax.jvp` of the
            `jax.grad` of a rollout works.
        - `keep_on_host`: the memory of the host that a reverse-mode derivative may take for each device: a number of
            states or of bytes, as for `keep`. The derivative then stores states on the host, and each GPU needs only
            the memory of one step and of two states. If you also pass `keep`, the derivative may take up to the
            memory `keep` on each GPU. The default `None` stores all states on the devices.

        **Returns:** the last state and the results of `observe`. The results are stacked along a new leading axis of
        length `steps / every`; they are `None` without `observe`. If `u` is a `History`, the last `History` is returned
        instead of the last state. If you pass this `History` to a second rollout, the result is the same as with one
        longer rollout.

        **Warns:** if the last state has infinities or NaNs. Traced code, such as inside `jax.jit`, cannot warn: there,
        check the result.

        **Raises:** `TypeError` or `ValueError` if an argument is invalid. The computation of a derivative raises
        `ValueError` if `keep` is too small for the derivative of one step, or if `keep_on_host` is too small for two
        states, or for two histories of a multi-step method.
        """
        options = check_options(
            steps, every=every, observe=observe, progress=progress, keep=keep, keep_on_host=keep_on_host
        )
        check_number("t", t)
        if isinstance(t, float | int):  # Equinox compiles again for each new Python number, but not for a new array.
            t = np.asarray(t, np.float64)  # pyright: ignore[reportAssignmentType]
        last, results, finite = self._rollout(u, t, args, options)
        if not isinstance(finite := known(finite), Tracer) and not finite:
            warnings.warn(
                f"A rollout of {options.steps} steps has ended with infinities or NaNs: `dt` may be too large. "
                "`simulate` stops at the last finite state, and says when that was.",
                RuntimeWarning,
                stacklevel=2,
            )
        return last, results

    @eqx.filter_jit
    def _rollout(self, u: Any, t: Any, args: Any, options: Options) -> tuple[Any, Any, Array]:
        first = self.start(u)
        like = state_of(first)
        advance = self.stepper(first, args)

        def time(done: Array) -> Array:
            return cast(t, like) + cast(self.dt, like) * done.astype(like.real.dtype)

        def step(carried: Any, i: Array) -> Any:
            return advance(time(i), carried)

        def seen(carried: Any, done: Array) -> Any:
            return None if options.observe is None else options.observe(time(done), state_of(carried))

        last, results = roll_out(step, seen, first, options, layout=self.in_structure.layout, state_of=state_of)
        return (last if isinstance(u, History) else state_of(last)), results, is_finite(self, last)


def check_state(equation: AbstractSplitEquation, u: Any) -> Any:
    """Return `u`. Raises `TypeError` or `ValueError` if `u` is a `History`, or is not a state of the equation."""
    if isinstance(u, History):
        raise TypeError("`u` must be a state for a one-step method; got a `History`. Pass `history.state`.")
    equation.check(u)
    return u


def slope(equation: AbstractSplitEquation, t: Array, u: Array, args: Any) -> Array:
    """Return N(t, u), sharded like u. Raises `ValueError` unless it has the shape and dtype of the state."""
    return like_state("nonlinear", equation.nonlinear(t, u, args), u)


def solved(equation: AbstractSplitEquation, t: Array, u: Array, h: Array) -> Array:
    """Return the solution v of `v - h L v = u` with the boundary values of the time `t`, sharded like u.

    Raises `ValueError` unless v has the shape and dtype of the state.
    """
    return like_state("resolvent", equation.at(t).resolvent(u, h), u)


def scaled(factor: Array, u: Array) -> Array:
    """Return `factor * u` for a real factor in the precision of `u`."""
    return times(factor, u) if jnp.iscomplexobj(u) else factor * u


def state_of(carried: Any) -> Any:
    """Return the state in `carried`, which is a state or a `History`."""
    return carried.state if isinstance(carried, History) else carried


@eqx.filter_jit
def is_finite(solver: AbstractIntegrator, carried: Any) -> Array:
    """Return whether the state in `carried` has neither infinities nor NaNs, on any device."""
    return solver.in_structure.layout.min(jnp.isfinite(state_of(carried))).all()
