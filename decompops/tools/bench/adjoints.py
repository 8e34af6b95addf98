"""The memory, time and error of `rollout(keep=...)` and of other ways to compute the gradient of many steps.

`python -m decompops.tools.bench.adjoints --steps 1000`
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from ..._rollout.memory import scratch_bytes
from ...pde import ETDRK
from .gradients import problem, seconds


def ways(solver: ETDRK, steps: int) -> dict[str, Callable[[jax.Array], jax.Array]]:
    """Return, by name, functions that compute the last state from the first one. Only their derivatives differ.

    The derivative of the first function is the reference.
    """
    make: dict[str, Callable] = {f"`keep={n}`": partial(by_rollout, keep=n) for n in (500, 60)}
    for n in (27, 60, 467):
        make[f"Equinox's checkpointed loop, {n} checkpoints"] = partial(by_equinox, checkpoints=n)
    for n in (2, 5, 10, 25):
        make[f"interpolated adjoint, stride {n}"] = partial(by_interpolation, stride=n)
    make["reversible adjoint"] = by_reversal
    return {name: partial(way, solver, steps) for name, way in make.items()}


def by_rollout(solver: ETDRK, steps: int, u: jax.Array, *, keep: int | None = None) -> jax.Array:
    """Return the last state. Its derivative takes the memory of at most `keep` states."""
    return solver.rollout(u, steps, keep=keep)[0]


def by_equinox(solver: ETDRK, steps: int, u: jax.Array, *, checkpoints: int) -> jax.Array:
    """Return the last state, computed by Equinox's checkpointed loop. Its derivative stores `checkpoints` states."""
    step = _step(solver, u)
    return eqxi.while_loop(
        lambda carry: carry[0] < steps,
        lambda carry: (carry[0] + 1, step(carry[1])),
        (jnp.zeros((), jnp.int32), u),
        max_steps=steps,
        kind="checkpointed",
        checkpoints=checkpoints,
    )[1]


def by_interpolation(solver: ETDRK, steps: int, u: jax.Array, *, stride: int) -> jax.Array:
    """Return the last state. Its derivative stores every `stride`-th state, and interpolates the others by cubics.

    `stride` must divide `steps`, and be at most a third of `steps`.
    """

    def forward(u: jax.Array) -> tuple[jax.Array, jax.Array]:
        step = _step(solver, u)

        def store(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            u = lax.fori_loop(0, stride, lambda _, u: step(u), carry[0])
            return u, carry[1].at[i + 1].set(u)

        stored = jnp.zeros((steps // stride + 1, *u.shape), u.dtype).at[0].set(u)
        return lax.fori_loop(0, steps // stride, store, (u, stored))

    def backward(stored: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
        step = _step(solver, stored[0])

        def reverse(i: jax.Array, cotangent: jax.Array) -> jax.Array:
            u = _interpolated(stored, steps - 1 - i, stride)
            return jax.vjp(step, u)[1](cotangent)[0]

        return (lax.fori_loop(0, steps, reverse, cotangent),)

    return _with_derivative(forward, backward)(u)


def by_reversal(solver: ETDRK, steps: int, u: jax.Array) -> jax.Array:
    """Return the last state. Its derivative runs the solver backwards, with `-dt`, to compute the other states."""
    backwards = eqx.tree_at(lambda solver: solver.dt, solver, -solver.dt)

    def forward(u: jax.Array) -> tuple[jax.Array, jax.Array]:
        step = _step(solver, u)
        last = lax.fori_loop(0, steps, lambda _, u: step(u), u)
        return last, last

    def backward(last: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
        step, undo = _step(solver, last), _step(backwards, last)

        def reverse(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            u = undo(carry[0])
            return u, jax.vjp(step, u)[1](carry[1])[0]

        return (lax.fori_loop(0, steps, reverse, (last, cotangent))[1],)

    return _with_derivative(forward, backward)(u)


def _step(solver: ETDRK, u: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Return a function that takes a step from states like `u`. The time is zero, because no equation here uses it."""
    return partial(solver.stepper(u), jnp.zeros((), u.real.dtype))


def _interpolated(stored: jax.Array, i: jax.Array, stride: int) -> jax.Array:
    """Return the state before step `i`, on the cubic polynomial through the four nearest stored states."""
    first = jnp.clip(i // stride - 1, 0, len(stored) - 4)
    x = (i - stride * first).astype(stored.real.dtype) / stride
    weights = [math.prod((x - m) / (n - m) for m in range(4) if m != n) for n in range(4)]
    return jnp.tensordot(jnp.stack(weights).astype(stored.dtype), lax.dynamic_slice_in_dim(stored, first, 4), 1)


def _with_derivative(forward: Callable, backward: Callable) -> Callable[[jax.Array], jax.Array]:
    function = jax.custom_vjp(lambda u: forward(u)[0])
    function.defvjp(forward, backward)
    return function


def gradient_of(way: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return the gradient of the sum of squares of the last state."""
    return jax.grad(lambda u: jnp.sum(jnp.abs(way(u)) ** 2))


def difference(found: jax.Array, expected: jax.Array) -> float:
    """Return the relative difference of two gradients in the 2-norm."""
    return float(jnp.linalg.norm((found - expected).ravel()) / jnp.linalg.norm(expected.ravel()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32, help="cells along each axis (32)")
    parser.add_argument("--steps", type=int, default=1000, help="a multiple of 50 (1000)")
    parser.add_argument("--only", default="", help="text in the names of the rows to measure (all)")
    args = parser.parse_args()
    # The mesh has Auto axes, because Equinox's loop raises a `ShardingTypeError` on a mesh with Explicit axes.
    solver, u = problem(args.size, Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y")))
    forward = jax.jit(partial(by_rollout, solver, args.steps)).lower(u).compile()
    expected = None
    print("| | states | time | all cores | relative difference |\n|---|---|---|---|---|")
    for name, way in ways(solver, args.steps).items():
        if expected is not None and args.only not in name:
            continue
        gradient: Any = jax.jit(gradient_of(way)).lower(u).compile()
        found, states = jax.block_until_ready(gradient(u)), scratch_bytes(gradient) / u.nbytes
        expected = found if expected is None else expected
        time, work = seconds(gradient, u) / seconds(forward, u)
        print(f"| {name} | {states:.0f} | {time:.1f} | {work:.1f} | {difference(found, expected):.1e} |", flush=True)


if __name__ == "__main__":
    main()
