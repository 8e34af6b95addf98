"""Small linear systems, for the tests of solvers. Stencils compile faster than transforms."""

import decompops as dops
import equinox as eqx
import jax
import numpy as np
from decompops import solve

from helpers import assert_close, make_mesh, random_field


SHAPE = (6, 7, 5)


def decomposition(sizes, kind="auto"):
    return dops.Decomposition(make_mesh(sizes, kind), shape=SHAPE, pad=True)


class Shifted(dops.AbstractOperator):
    """The sum of an operator and of a coefficient, with its own coefficient for each field of a batch."""

    operator: dops.AbstractOperator
    coefficient: jax.Array

    def __call__(self, x, *, key=None):
        return (
            self.operator(x)
            + self.coefficient.reshape(*[1] * (x.ndim - self.coefficient.ndim), *self.coefficient.shape) * x
        )

    decomposition = property(lambda self: self.operator.decomposition)
    in_structure = property(lambda self: self.operator.in_structure)
    T = property(lambda self: Shifted(self.operator.T, self.coefficient))
    H = property(lambda self: Shifted(self.operator.H, self.coefficient))

    def result_structure(self, given):
        return self.operator.result_structure(given)

    def local(self, block):
        return self.operator.local(block) + self.coefficient * block


def sum_of_neighbours(weights, e):
    """Return the weighted sum of a cell and of its neighbours, for an extended block."""
    centre, x0, x1, y0, y1, z0, z1 = weights
    return (
        centre * e[..., 1:-1, 1:-1, 1:-1]
        + x0 * e[..., :-2, 1:-1, 1:-1]
        + x1 * e[..., 2:, 1:-1, 1:-1]
        + y0 * e[..., 1:-1, :-2, 1:-1]
        + y1 * e[..., 1:-1, 2:, 1:-1]
        + z0 * e[..., 1:-1, 1:-1, :-2]
        + z1 * e[..., 1:-1, 1:-1, 2:]
    )


# The weights of a cell and of its neighbours, for each solver: positive definite, indefinite, not symmetric.
WEIGHTS = {
    solve.CG: (7.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0),
    solve.MINRES: (0.7, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0),
    solve.BiCGStab: (7.0, -1.9, -0.1, -1.5, -0.5, -1.3, -0.7),
    solve.GMRES: (7.0, -1.9, -0.1, -1.5, -0.5, -1.3, -0.7),
}


def stencil(dec, weights, periodic=True):
    return dops.Stencil(dec, lambda e: sum_of_neighbours(weights, e), halo=1, periodic=periodic)


def dense(operator, dtype=np.float64, shape=SHAPE):
    """Return the matrix of an operator."""
    dec, n = operator.decomposition, int(np.prod(shape))
    columns = eqx.filter_jit(operator)(dec.shard(np.eye(n, dtype=dtype).reshape(n, *shape)))
    return dec.gather(columns).reshape(n, n).T


def check_eager_solver(mesh):
    """Check an eager solver with a class and a function of the user that hold arrays of all processes."""
    dec = dops.Decomposition(mesh, shape=SHAPE, pad=True)
    shift, b = 1 + random_field(SHAPE, seed=3) ** 2, random_field(SHAPE, seed=4)
    scale = dec.shard(1 / (7 + shift))
    solver = solve.CG(Shifted(stencil(dec, WEIGHTS[solve.CG]), dec.shard(shift)), lambda r: scale * r, rtol=1e-11)
    alone = dops.Decomposition(jax.make_mesh((1, 1), ("x", "y"), devices=jax.local_devices()[:1]), shape=SHAPE)
    with jax.set_mesh(alone.mesh):
        matrix = dense(stencil(alone, WEIGHTS[solve.CG])) + np.diag(shift.ravel())
    assert_close(dec.gather(solver(dec.shard(b))), np.linalg.solve(matrix, b.ravel()).reshape(SHAPE), rtol=1e-8)
