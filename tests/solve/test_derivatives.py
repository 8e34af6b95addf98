"""Tests of the derivatives of solutions, against the derivatives of dense solutions."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, solve
from jax.sharding import PartitionSpec as P

from helpers import assert_close, finite_difference, make_mesh, put, random_field
from systems import SHAPE, WEIGHTS, Shifted, decomposition, dense, stencil


def losses(method, dec, **options):
    """Return a function of a solution of a sharded system, and the same function of a dense system."""
    operator = stencil(dec, WEIGHTS[method])
    matrix = jnp.asarray(dense(operator))
    loss = lambda x: jnp.sum(x**3) + jnp.sum(jnp.sin(x))

    def ours(a, b):
        return loss(method(Shifted(operator, a), rtol=1e-12, **options)(b))

    def theirs(a, b):
        return loss(jnp.linalg.solve(matrix + jnp.diag(a.ravel()), b.ravel()))

    return ours, theirs


def arguments(count, seed=3):
    fields = random_field((count, *SHAPE), seed=seed)
    fields[0] = np.abs(fields[0])
    return fields


@pytest.mark.parametrize("method", [solve.CG, solve.GMRES])
def test_first_and_second_derivatives(method):
    """Gradients and products with Hessians, with respect to the coefficients and to the right-hand side."""
    dec = decomposition((1, 1))
    ours, theirs = losses(method, dec)

    def results(f, a, b, da, db):
        gradient = jax.grad(f, argnums=(0, 1))
        found, change = jax.jvp(gradient, (a, b), (da, db))
        return *found, *change, jax.jvp(f, (a, b), (da, db))[1]

    given = arguments(4)
    found = jax.jit(lambda *x: results(ours, *x))(*map(dec.shard, given))
    expected = jax.jit(lambda *x: results(theirs, *x))(*map(jnp.asarray, given))
    for got, want in zip(found, expected):
        assert_close(got, want, rtol=1e-8)


@pytest.mark.xla
@pytest.mark.parametrize("kind", [pytest.param("auto", marks=pytest.mark.sweep), "explicit"])
def test_gradients_on_eight_devices_with_padding(kind):
    dec = decomposition((2, 4), kind)
    ours, theirs = losses(solve.CG, dec)
    a, b = arguments(2)
    with jax.set_mesh(dec.mesh):
        compiled = jax.jit(jax.grad(ours, argnums=(0, 1))).lower(dec.shard(a), dec.shard(b)).compile()
        found = compiled(dec.shard(a), dec.shard(b))
        assert "all-gather" not in compiled.as_text()
        assert all(x.sharding.is_equivalent_to(dec.sharding(), 3) for x in found)
        for got, want in zip(found, jax.jit(jax.grad(theirs, argnums=(0, 1)))(a, b)):
            assert_close(dec.gather(got), want, rtol=1e-9)


@pytest.mark.xla
def test_gradients_of_a_batch_on_another_mesh_axis():
    mesh = make_mesh((2, 2, 2))
    dec = dops.Decomposition(mesh, shape=(6, 8, 5), axes=("x", "y"))
    operator = stencil(dec, WEIGHTS[solve.CG])
    a, b = (dec.shard(np.abs(random_field((2, 6, 8, 5), seed=seed))) for seed in (1, 2))
    loss = lambda a, b: jnp.sum(solve.CG(Shifted(operator, a), rtol=1e-12)(b) ** 2)
    compiled = jax.jit(jax.vmap(jax.grad(loss))).lower(a, b).compile()
    assert "all-gather" not in compiled.as_text()
    matrix = dense(operator, shape=(6, 8, 5))
    for i, found in enumerate(compiled(a, b)):
        full = matrix + np.diag(np.ravel(a[i]))
        x = np.linalg.solve(full, np.ravel(b[i]))
        assert_close(np.ravel(found), -np.linalg.solve(full.T, 2 * x) * x, rtol=1e-9)


def test_the_guess_and_the_preconditioner_have_no_derivative():
    dec = decomposition((1, 1))
    operator = stencil(dec, WEIGHTS[solve.CG])
    a, b, scale = arguments(3)
    scale = 1 + scale**2

    def loss(a, b, scale, guess):
        jacobi = dops.Multiply(dec, 1 / (7 * scale))
        return jnp.sum(solve.CG(Shifted(operator, a), jacobi, rtol=1e-12).solve(b, guess).value ** 3)

    found = eqx.filter_jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*map(dec.shard, (a, b, scale, b)))
    assert not np.any(found[2])
    assert not np.any(found[3])
    full = dense(operator) + np.diag(a.ravel())
    x = np.linalg.solve(full, b.ravel())
    y = np.linalg.solve(full.T, 3 * x**2)
    assert_close(found[0].ravel(), -y * x, rtol=1e-8)
    assert_close(found[1].ravel(), y, rtol=1e-8)


def test_derivatives_that_are_not_converged_are_nan():
    dec = decomposition((1, 1))
    a, b = map(dec.shard, arguments(2))
    for choice, is_nan in (("raise", True), ("return", False)):
        ours, _ = losses(solve.CG, dec, max_steps=3, if_unconverged=choice)
        assert bool(jnp.isnan(jax.jit(jax.grad(ours))(a, b)).any()) == is_nan


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_coefficient_that_groups_of_devices_share(kind):
    """Inside a `shard_map` over the groups, the derivative by the coefficient is the sum over the groups."""
    mesh = make_mesh((2, 2, 2), kind)
    dec = dops.Decomposition(mesh, shape=(4, 6, 2), axes=("x", "y"))

    def energy(a, f):
        return jnp.sum(solve.CG(finite_volume.Diffusion(dec, a, boundary="dirichlet"), rtol=1e-11)(f) * f)

    a, f = 1 + random_field((4, 6, 2)) ** 2, random_field((2, 4, 6, 2), seed=1)
    axes = {"axis_names": {"c"}, "in_specs": (P(), P("c")), "out_specs": P()}
    gradient = jax.shard_map(lambda a, f: jax.grad(energy)(a, f[0]), mesh=mesh, **axes)
    found = np.asarray(jax.jit(gradient)(put(mesh, a, "x", "y"), put(mesh, f, "c", "x", "y")))
    both = jax.jit(lambda a: sum(energy(a, put(mesh, one, "x", "y")) for one in f))
    slope = finite_difference(lambda a: float(both(put(mesh, a, "x", "y"))), a, random_field((4, 6, 2), seed=2), 1e-5)
    assert_close(np.sum(found * random_field((4, 6, 2), seed=2)), slope, 1e-7)
