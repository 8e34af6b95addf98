"""`BiCGStab`: the stabilised method of biconjugate gradients."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from .._common.sharding import while_any
from ._solver import AbstractSolver
from ._system import State, System


class BiCGStab(AbstractSolver):
    """Stabilised biconjugate gradients: for operators that are not symmetric, with little memory.

    Each step applies the operator and the preconditioner twice, and has two all-reduces. The residual may grow on the
    way. If the method breaks down or stagnates, `GMRES` is safer.

    **Arguments:** those of all solvers: see `AbstractSolver`. The preconditioner is applied from the right.

    **Source:** van der Vorst, SIAM J. Sci. Stat. Comput. 13 (1992).
    """

    needs: ClassVar[str] = "the operator may be close to antisymmetric, or the preconditioner singular. Take `GMRES`"

    def cycle(self, system: System, state: State, r: Array) -> State:
        shadow = r
        (weight,) = system.dots((shadow, r))

        def step(carry: tuple) -> tuple:
            state, r, p, weight = carry
            y = system.precondition(p)
            v = system.apply(y)
            (along,) = system.dots((shadow, v))
            alpha = weight / along
            s = r - system.times(alpha, v)
            z = system.precondition(s)
            t = system.apply(z)
            mixed, of_t, of_s, by_s, by_t = system.dots((t, s), (t, t), (s, s), (shadow, s), (shadow, t))
            is_solved = of_t == 0  # In this half step already.
            omega = jnp.where(is_solved, 0, mixed / jnp.where(is_solved, 1, of_t))
            x = state.x + system.times(alpha, y) + system.times(omega, z)
            square = of_s.real - (jnp.conj(omega) * mixed).real
            new = by_s - omega * by_t
            beta = (new / weight) * (alpha / jnp.where(is_solved, 1, omega))
            state = system.moved(state, x, jnp.isfinite(alpha) & jnp.isfinite(omega))
            state = system.observed(state, jnp.sqrt(jnp.maximum(square, 0)))
            # The next step is not defined if one of these is zero or not finite.
            good = jnp.isfinite(beta) & (beta != 0)
            state = state._replace(active=state.active & good, broken=state.broken | (state.active & ~good))
            r = s - system.times(omega, t)
            return state, r, r + system.times(beta, p - system.times(omega, v)), new

        start = (state, r, r, weight)
        return while_any(lambda carry: jnp.any(carry[0].active), step, start)[0]
