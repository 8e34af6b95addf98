"""A method of solution: steepest descent."""

from typing import ClassVar

import jax.numpy as jnp
from decompops import solve
from jax import lax


class SteepestDescent(solve.AbstractSolver):
    """Steepest descent, for operators that are symmetric (complex: Hermitian) and definite."""

    needs: ClassVar[str] = "`operator` and `preconditioner` must be symmetric and definite"

    def cycle(self, system, state, r):
        def step(carry):
            state, r = carry
            z = system.precondition(r)
            w = system.apply(z)
            slope, curvature = system.dots((r, z), (z, w))
            length = slope / curvature
            x = state.x + system.times(length, z)
            r = r - system.times(length, w)
            state = system.moved(state, x, good=jnp.isfinite(length))
            return system.observed(state, system.norm(r)), r

        return lax.while_loop(lambda carry: jnp.any(carry[0].active), step, (state, r))[0]
