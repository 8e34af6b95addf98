"""`CG`: the method of conjugate gradients."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from .._common.sharding import while_any
from .._common.typed import zeros_like
from ._solver import AbstractSolver
from ._system import State, System


class CG(AbstractSolver):
    """Conjugate gradients: for operators that are symmetric (complex: Hermitian) and positive or negative definite.

    `solver(b)` returns the solution x of `operator(x) = b`. The solver is an operator itself: `.T` solves with the
    transpose, and `@` composes. Each step applies the operator and the preconditioner once, and has one all-reduce.

    !!! example

        ```python
        laplacian = spectral.VariableLaplacian(fft, a)
        solver = solve.CG(laplacian, laplacian.approximate_inverse)
        u = solver(f)              # ∇·(a ∇u) = f
        print(solver.solve(f))     # Solution(reason=CONVERGED, iterations=9, ...)
        ```

    **Arguments:** those of all solvers: see `AbstractSolver`. The preconditioner must be symmetric and definite, too.

    **Source:** Chronopoulos and Gear, J. Comput. Appl. Math. 25 (1989), for one all-reduce in each step.
    """

    needs: ClassVar[str] = (
        "`operator` and `preconditioner` must be symmetric and definite. Take `MINRES` for an indefinite operator, "
        "`BiCGStab` or `GMRES` for one that is not symmetric"
    )

    def cycle(self, system: System, state: State, r: Array) -> State:
        def step(carry: tuple) -> tuple:
            state, r, p, s, last, last_step = carry
            u = system.precondition(r)
            w = system.apply(u)
            dots = system.dots((r, u), (u, w), (r, r))
            weight, curvature, square = (dot.real for dot in dots)
            state = system.observed(state, jnp.sqrt(square))
            beta = weight / last  # Zero in the first step, because `last` is infinite.
            step = weight / (curvature - beta * weight / last_step)
            same_sign = jnp.isinf(last) | ((jnp.sign(step) == jnp.sign(last_step)) & (beta > 0))
            good = jnp.isfinite(step) & (step != 0) & same_sign
            p = u + system.times(beta, p)
            s = w + system.times(beta, s)  # s is the operator applied to p.
            state = system.moved(state, state.x + system.times(step, p), good)
            return state, r - system.times(step, s), p, s, weight, step

        zero, one = zeros_like(r), jnp.ones_like(state.norm)
        start = (state, r, zero, zero, one * jnp.inf, one)
        return while_any(lambda carry: jnp.any(carry[0].active), step, start)[0]
