"""Tests of the solvers, against dense matrices, on grids of odd and even lengths and with padding."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from decompops import solve

from helpers import assert_adjoint, assert_close, assert_transposed, make_mesh, random_field


SOLVERS = [solve.CG, solve.MINRES, solve.BiCGStab, solve.GMRES]
# Stencils compile fast. Each has 3^3 cells at most, so that 6 x 7 x 5 cells have a dense matrix of 210 rows.
SHAPE = (6, 7, 5)


def mesh_and_decomposition(sizes=(2, 4), kind="auto", shape=SHAPE):
    mesh = make_mesh(sizes, kind)
    return mesh, dops.Decomposition(mesh, shape=shape, pad=True)


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


def system(dec, method, dtype):
    """Return an operator for a method: Hermitian for the first two methods, with coefficients that vary in space."""
    rng = np.random.default_rng(5)
    phases = np.exp(2j * rng.uniform(size=SHAPE))
    side = dops.Multiply(dec, rng.uniform(0.7, 1.3, SHAPE) * (phases if dtype == np.complex128 else 1))
    return side.H @ stencil(dec, WEIGHTS[method]) @ side


@pytest.mark.parametrize(
    ("method", "sizes", "dtype"),
    [
        (solve.CG, (2, 4), np.complex128),
        (solve.CG, (8,), np.float64),
        (solve.MINRES, (1, 1), np.complex128),
        (solve.MINRES, (2, 4), np.float64),
        (solve.BiCGStab, (2, 4), np.complex128),
        (solve.GMRES, (1, 1), np.float64),
        (solve.GMRES, (2, 4), np.complex128),
    ],
)
def test_solutions_transposes_and_adjoints(method, sizes, dtype):
    _, dec = mesh_and_decomposition(sizes)
    operator = system(dec, method, dtype)
    matrix = dense(operator, dtype)
    if method in (solve.CG, solve.MINRES):
        np.testing.assert_allclose(matrix, matrix.conj().T, atol=1e-12)
        assert (np.linalg.eigvalsh(matrix)[0] > 0) == (method is solve.CG)
    solver = method(operator, rtol=1e-11, null_space=None)
    b, y = random_field(SHAPE, dtype, 1), random_field(SHAPE, dtype, 2)
    expected = np.linalg.solve(matrix, b.ravel()).reshape(SHAPE)
    field = dec.shard(b) + (dec.shard(np.ones(SHAPE)) == 0).astype(dtype) * 7  # The padding is ignored.
    solution = solver.solve(field)
    steps = int(solution.iterations)
    assert_close(dec.gather(solution.value), expected, rtol=1e-9)
    assert not np.any(np.asarray(solution.value)[dec.gather(jnp.ones_like(field)).shape[0] :])
    assert bool(solution.converged)
    assert np.isnan(solution.residuals[steps + 1 :]).all()
    found = np.linalg.norm(matrix @ dec.gather(solution.value).ravel() - b.ravel()) / np.linalg.norm(b)
    assert solution.residuals[steps] < 1e-11
    np.testing.assert_allclose(solution.residuals[steps], found, atol=1e-14)
    run = lambda solver: lambda x: dec.gather(solver(dec.shard(x)))
    assert_transposed(run(solver), run(solver.T), b, y)
    assert_adjoint(run(solver), run(solver.H), b, y)


@pytest.mark.parametrize("method", SOLVERS)
def test_numbers_of_steps_are_those_of_scipy(method):
    _, dec = mesh_and_decomposition((1, 1))
    operator, b = system(dec, method, np.float64), random_field(SHAPE)
    matrix, steps = dense(operator), 0

    def count(_):
        nonlocal steps
        steps += 1

    theirs = {
        solve.CG: lambda: scipy.sparse.linalg.cg(matrix, b.ravel(), rtol=1e-8, callback=count),
        solve.MINRES: lambda: scipy.sparse.linalg.minres(matrix, b.ravel(), rtol=1e-10, callback=count),
        solve.BiCGStab: lambda: scipy.sparse.linalg.bicgstab(matrix, b.ravel(), rtol=1e-8, callback=count),
        solve.GMRES: lambda: scipy.sparse.linalg.gmres(
            matrix, b.ravel(), rtol=1e-8, restart=30, callback=count, callback_type="pr_norm"
        ),
    }
    theirs[method]()
    found = method(operator, rtol=1e-8, null_space=None).solve(dec.shard(b))
    assert bool(found.converged)
    assert abs(int(found.iterations) - steps) <= 0.15 * steps + 2
