"""Solutions for right-hand sides of any size: the squares of their numbers may overflow, or be zero."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume as fv, solve

from helpers import assert_close, make_mesh, random_field


SHAPE = (6, 4, 4)
DEC = dops.Decomposition(make_mesh((2, 2)), shape=SHAPE, box=dops.Box(1.0))
METHODS = [solve.CG, solve.MINRES, solve.BiCGStab, solve.GMRES]
SIZES = [(np.float32, 1e20), (np.float32, 1e-22), (np.float64, 1e160), (np.float64, 1e-170)]


def solver(method, dtype, **options):
    one = np.ones(SHAPE, dtype)
    tolerance = 1e-4 if dtype == np.float32 else 1e-9
    return method(fv.Diffusion(DEC, one, one), rtol=tolerance, **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_a_solution_is_proportional(method, dtype, size):
    of, b = solver(method, dtype), random_field(SHAPE, dtype)
    pair = np.stack([b, b * np.asarray(size, dtype)])  # Each field of a batch has its own size.
    found = of.solve(DEC.shard(pair))
    assert np.all(np.asarray(found.reason) == solve.Reason.CONVERGED.value)
    first, second = np.asarray(found.value)
    assert_close(second / np.asarray(size, dtype), first, 1e-4 if dtype == np.float32 else 1e-9)


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_a_derivative_is_proportional(dtype, size):
    of, b = solver(solve.CG, dtype), DEC.shard(random_field(SHAPE, dtype))
    gradient = jax.jit(jax.grad(lambda b: jnp.sum(of(b)) * jnp.asarray(size, dtype)))(b)
    assert_close(np.asarray(gradient) / np.asarray(size, dtype), np.ones(SHAPE), 1e-3 if dtype == np.float32 else 1e-8)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinities_are_not_converged(method, bad):
    b = random_field(SHAPE)
    b[1, 2, 3] = bad
    found = solver(method, np.float64, if_unconverged="return").solve(DEC.shard(b))
    assert found.reason == solve.Reason.NOT_FINITE.value
    assert np.isnan(np.asarray(found.value)).all()


def test_zero_is_solved_by_zero():
    found = solver(solve.CG, np.float64).solve(DEC.shard(np.zeros(SHAPE)))
    assert found.reason == solve.Reason.CONVERGED.value
    np.testing.assert_array_equal(found.value, np.zeros(SHAPE))


@pytest.mark.parametrize(("method", "dtype"), [*((method, np.float16) for method in METHODS), (solve.CG, jnp.bfloat16)])
def test_half_precision(method, dtype):
    """Sums over 8000 cells, and squares of numbers, are beyond float16."""
    shape, sizes = (20, 20, 20), np.array([1e-4, 3e4]).reshape(2, 1, 1, 1)
    dec = dops.Decomposition(DEC.mesh, shape=shape)
    a = 1 + np.arange(20).reshape(20, 1, 1) / np.full(shape, 20.0)
    b = random_field(shape).clip(-2, 2)
    of, given = method(dops.Multiply(dec, a.astype(dtype))), dec.shard((sizes * b).astype(dtype))
    found = of(given)
    assert found.dtype == dtype
    eps = 2 * float(jnp.finfo(dtype).eps)
    assert_close(np.asarray(found, float) / sizes, np.stack([b / a] * 2), eps)
    gradient = jax.jit(jax.grad(lambda b: jnp.sum(of(b).astype(np.float32))))(given)
    assert_close(np.asarray(gradient, float), np.stack([1 / a] * 2), eps)
