"""`MINRES`: the method of minimal residuals."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from .._common.sharding import while_any
from .._common.typed import zeros_like
from ._solver import AbstractSolver
from ._system import State, System


class MINRES(AbstractSolver):
    """Minimal residuals: for operators that are symmetric (complex: Hermitian) and may be indefinite.

    For example, the Helmholtz equation `∇²u + κ² u = f` has an indefinite operator. Each step applies the operator and
    the preconditioner once, and has two all-reduces.

    **Arguments:** those of all solvers: see `AbstractSolver`. The preconditioner must be symmetric and definite.

    **Source:** Paige and Saunders, SIAM J. Numer. Anal. 12 (1975); Elman, Silvester and Wathen, Finite Elements and
    Fast Iterative Solvers (2014), algorithm 4.1.
    """

    needs: ClassVar[str] = (
        "`operator` must be symmetric, and `preconditioner` symmetric and definite. Take `BiCGStab` or `GMRES` for "
        "another operator"
    )

    def cycle(self, system: System, state: State, r: Array) -> State:
        z = system.precondition(r)
        (square,) = (dot.real for dot in system.dots((r, z)))
        sign = jnp.where(square < 0, -1, 1).astype(square.dtype)  # of the preconditioner
        norm = jnp.sqrt(jnp.abs(square))  # In this file, norms of z are those that the preconditioner defines.

        def step(carry: tuple) -> tuple:
            state, r, (v, last_v), (z, norm, last_norm), (w, last_w), (c, last_c, s, last_s), eta = carry
            z = system.times(1 / norm, z)
            image = system.apply(z)
            (diagonal,) = (dot.real for dot in system.dots((z, image)))
            new_v = image - system.times(diagonal / norm, v) - system.times(norm / last_norm, last_v)
            new_z = system.times(sign, system.precondition(new_v))
            dots = system.dots((new_v, new_z), (r, r), (r, new_v), (new_v, new_v))
            square, of_r, mixed, of_v = (dot.real for dot in dots)
            new_norm = jnp.sqrt(square)
            # The rotations that make the tridiagonal matrix of the Lanczos process triangular.
            first = c * diagonal - last_c * s * norm
            pivot = jnp.sqrt(first**2 + square)
            second, third = s * diagonal + last_c * c * norm, last_s * norm
            new_c, new_s = first / pivot, new_norm / pivot
            new_w = system.times(1 / pivot, z - system.times(third, last_w) - system.times(second, w))
            x = state.x + system.times(new_c * eta, new_w)
            eta = -new_s * eta
            # The residual, which these rotations combine of the last one and of the new vector.
            shrunk, added = new_s**2, jnp.where(new_norm == 0, 0, eta * new_c / jnp.where(new_norm == 0, 1, new_norm))
            r = system.times(shrunk, r) + system.times(added, new_v)
            of_r = shrunk**2 * of_r + 2 * shrunk * added * mixed + added**2 * of_v
            state = system.moved(state, x, jnp.isfinite(eta) & (pivot > 0))
            state = system.observed(state, jnp.sqrt(jnp.maximum(of_r, 0)))
            return state, r, (new_v, v), (new_z, new_norm, norm), (new_w, w), (new_c, c, new_s, s), eta

        zero, one = zeros_like(r), jnp.ones_like(norm)
        rotations = (one, one, 0 * one, 0 * one)
        start = (state, r, (r, zero), (system.times(sign, z), norm, one), (zero, zero), rotations, norm)
        return while_any(lambda carry: jnp.any(carry[0].active), step, start)[0]
