"""`GMRES`: the method of generalised minimal residuals."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._common.check import Integer, as_number, check_count, taking
from .._common.sharding import while_any
from .._common.typed import zeros_like
from ._solver import AbstractSolver
from ._system import State, System


class GMRES(AbstractSolver):
    """Generalised minimal residuals, restarted: for any operator, with memory for `restart + 1` fields.

    Each step applies the operator and the preconditioner once, and has two all-reduces. The residual never grows. With
    a small `restart`, it may stop to shrink.

    **Arguments:** those of all solvers: see `AbstractSolver`. The preconditioner is applied from the right, so the
    residuals are those of the system itself.

    - `restart`: the number of steps after which the method starts anew from its last solution.

    **Source:** Saad and Schultz, SIAM J. Sci. Stat. Comput. 7 (1986); classical Gram-Schmidt, twice, by Giraud, Langou,
    Rozložník and van den Eshof, Numer. Math. 101 (2005).
    """

    restart: int = eqx.field(static=True, kw_only=True, default=30, converter=taking(Integer, as_number))
    needs: ClassVar[str] = "the operator or the preconditioner may be singular"

    def __check_init__(self):
        check_count("restart", self.restart)

    def cycle(self, system: System, state: State, r: Array) -> State:
        size = min(self.restart, system.max_steps)
        norm = state.norm
        index = lambda n: jnp.expand_dims(jnp.arange(n, dtype=np.int32), tuple(range(1, norm.ndim + 1)))
        rows, columns = index(size + 1), index(size)
        (dtype,) = {dot.dtype for dot in system.dots((r, r))}

        def step(carry: tuple) -> tuple:
            state, j, v, basis, rotation, triangle = carry
            basis = jnp.where(_beside(rows == j, basis), v[None], basis)
            w = system.apply(system.precondition(v))
            # The vectors after v are zero, so their products are, too.
            (first,) = system.dots_of_stacks((basis, w[None]))
            w = w - _combined(system, basis, first)
            second, square = system.dots_of_stacks((basis, w[None]), (w[None], w[None]))
            w = w - _combined(system, basis, second)
            square = square[0].real - jnp.sum(jnp.abs(second) ** 2, 0)
            length = jnp.sqrt(jnp.maximum(square, 0)).astype(norm.dtype)
            # `rotation` is the product of all rotations that make the Hessenberg matrix triangular.
            column = jnp.sum(rotation * (first + second)[None], 1)
            at = lambda row: jnp.sum(jnp.where(rows == row, column, 0), 0)
            line = lambda row: jnp.sum(jnp.where((rows == row)[:, None], rotation, 0), 0)
            here, pivot = at(j), jnp.sqrt(jnp.abs(at(j)) ** 2 + length**2)
            cosine, sine = here / pivot.astype(dtype), (length / pivot).astype(dtype)
            upper = jnp.conj(cosine)[None] * line(j) + sine[None] * line(j + 1)
            lower = cosine[None] * line(j + 1) - sine[None] * line(j)
            good = jnp.isfinite(pivot) & (pivot > 0)
            use = (state.active & good)[None, None]
            new = jnp.where(
                (rows == j)[:, None], upper[None], jnp.where((rows == j + 1)[:, None], lower[None], rotation)
            )
            rotation = jnp.where(use, new, rotation)
            column = jnp.where(rows == j, pivot.astype(dtype)[None], jnp.where(rows < j, column, 0))[:-1]
            triangle = jnp.where((columns == j)[None] & use, column[:, None], triangle)
            state = system.moved(state, state.x, good)
            residual = norm * jnp.sum(jnp.where(rows == j + 1, jnp.abs(rotation[:, 0]), 0), 0)
            state = system.observed(state, residual)
            v = system.select(state.active, system.times(1 / length, w), 0.0)
            return state, j + 1, v, basis, rotation, triangle

        one = jnp.ones_like(norm).astype(dtype)
        start = (
            state,
            # If `jax.vmap` maps this loop over an Explicit axis, the type of each carried array must name the mesh.
            lax.full_like(jnp.max(state.iterations), 0),
            system.select(state.active, system.times(1 / norm, r), 0.0),
            zeros_like(r)[None] * jnp.zeros((size + 1, *[1] * r.ndim), r.dtype),
            (rows[:, None] == rows[None]).astype(dtype) * one[None, None],
            (columns[:, None] == columns[None]).astype(dtype) * one[None, None],
        )
        more = lambda carry: jnp.any(carry[0].active) & (carry[1] < size)
        state, _, _, basis, rotation, triangle = while_any(more, step, start)
        # Only the steps that a field of the batch has made count.
        made = columns < (state.iterations - start[0].iterations)[None]
        weights = _solved(triangle, jnp.where(made, norm.astype(dtype)[None] * rotation[:-1, 0], 0))
        correction = system.precondition(_combined(system, basis[:-1], weights))
        return state._replace(x=state.x + correction)


def _beside(numbers: Array, stack: Array) -> Array:
    return jnp.expand_dims(numbers, tuple(range(numbers.ndim, stack.ndim)))


def _combined(system: System, stack: Array, weights: Array) -> Array:
    """Return the sum of the fields of `stack` times `weights`."""
    return jnp.sum(system.spread(weights).astype(stack.dtype) * stack, 0)


def _solved(triangle: Array, b: Array) -> Array:
    """Solve upper triangular systems, whose rows and columns are the first axes of `triangle`."""
    numbers = jnp.expand_dims(jnp.arange(len(b), dtype=np.int32), tuple(range(1, b.ndim)))

    def substitute(step: Array | int, x: Array) -> Array:
        row = numbers == len(b) - 1 - step
        entries = jnp.sum(jnp.where(row[:, None], triangle, 0), 0)
        others, own = jnp.sum(jnp.where(row, 0, entries * x), 0), jnp.sum(jnp.where(row, entries, 0), 0)
        return jnp.where(row, ((jnp.sum(jnp.where(row, b, 0), 0) - others) / own)[None], x)

    return lax.fori_loop(0, len(b), substitute, jnp.zeros_like(b))
