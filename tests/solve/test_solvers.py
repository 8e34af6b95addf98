"""Tests of the solvers, against dense matrices, on grids of odd and even lengths and with padding."""

import gc
import re
import sys

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from decompops import finite_volume, solve
from decompops.testing import assert_adjoint, assert_transposed

from helpers import assert_close, make_mesh, mapped, random_field
from systems import SHAPE, WEIGHTS, Shifted, decomposition, dense, stencil


SOLVERS = list(WEIGHTS)


def reductions_of_steps(compiled):
    """Return the number of all-reduces in each body of a loop of a compiled program."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", compiled))
    parts = re.split(r"\n(?=%?[\w.\-]+ \([^\n]*\{\n|ENTRY )", compiled)
    steps = [part for part in parts if part.split(" ")[0].lstrip("%") in bodies]
    return [len(re.findall(r"= \S+ all-reduce(?:-start)?\(", step)) for step in steps]


def system(dec, method, dtype):
    """Return an operator for a method: Hermitian for the first two methods, with coefficients that vary in space."""
    rng = np.random.default_rng(5)
    phases = np.exp(2j * rng.uniform(size=SHAPE))
    side = dops.Multiply(dec, rng.uniform(0.7, 1.3, SHAPE) * (phases if dtype == np.complex128 else 1))
    return side.H @ stencil(dec, WEIGHTS[method]) @ side


@pytest.mark.parametrize(
    ("method", "sizes", "dtype"),
    [
        (solve.CG, (2, 4), np.float64),
        (solve.MINRES, (1, 1), np.complex128),
        (solve.BiCGStab, (8,), np.float64),
        (solve.GMRES, (1, 1), np.complex128),
    ],
)
def test_solutions_transposes_and_adjoints(method, sizes, dtype):
    """The solutions are those of dense matrices, also if the padding of the right-hand side is not zero."""
    dec = decomposition(sizes)
    operator = system(dec, method, dtype)
    matrix = dense(operator, dtype)
    if method in (solve.CG, solve.MINRES):
        np.testing.assert_allclose(matrix, matrix.conj().T, atol=1e-12)
        assert (np.linalg.eigvalsh(matrix)[0] > 0) == (method is solve.CG)
    solver = method(operator, rtol=1e-11)
    b, y = random_field(SHAPE, dtype, 1), random_field(SHAPE, dtype, 2)
    field = dec.shard(b) + (dec.shard(np.ones(SHAPE)) == 0).astype(dtype) * 7
    solution, transposed, adjoint = eqx.filter_jit(
        lambda: (solver.solve(field), solver.T(dec.shard(y)), solver.H(dec.shard(y)))
    )()
    steps, found = int(solution.iterations), dec.gather(solution.value)
    assert_close(found, np.linalg.solve(matrix, b.ravel()).reshape(SHAPE), rtol=1e-9)
    assert_close(np.linalg.norm(solution.value), np.linalg.norm(found))  # The padding is zero.
    assert bool(solution.converged)
    assert np.isnan(solution.residuals[steps + 1 :]).all()
    residual = np.linalg.norm(matrix @ found.ravel() - b.ravel()) / np.linalg.norm(b)
    np.testing.assert_allclose(solution.residuals[steps], residual, atol=1e-14)
    assert residual <= 1e-11 < solution.residuals[steps - 1]
    assert_transposed(lambda _: found, lambda _: dec.gather(transposed), b, y)
    assert_adjoint(lambda _: found, lambda _: dec.gather(adjoint), b, y)


@pytest.mark.parametrize("method", SOLVERS)
def test_numbers_of_steps_are_those_of_scipy(method):
    dec = decomposition((1, 1))
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
    found = method(operator, rtol=1e-8).solve(dec.shard(b))
    assert bool(found.converged)
    assert abs(int(found.iterations) - steps) <= 0.15 * steps + 2


def with_shift(method, dec):
    """Return an operator of a class of the user, and its matrix."""
    shift = 1 + random_field(SHAPE, seed=3) ** 2
    matrix = dense(stencil(decomposition((1, 1)), WEIGHTS[method])) + np.diag(shift.ravel())
    return Shifted(stencil(dec, WEIGHTS[method]), dec.shard(shift)), matrix


@pytest.mark.parametrize(
    "method",
    [solve.CG, solve.GMRES, *(pytest.param(m, marks=pytest.mark.sweep) for m in (solve.MINRES, solve.BiCGStab))],
)
def test_eager_calls_on_explicit_axes(method):
    """JAX runs the operations of an eager solver one by one, but the constants among them have no devices."""
    dec, b = decomposition((2, 4), "explicit"), random_field(SHAPE, seed=4)
    operator, matrix = with_shift(method, dec)
    expected = np.linalg.solve(matrix, b.ravel()).reshape(SHAPE)
    assert_close(dec.gather(method(operator, rtol=1e-11)(dec.shard(b))), expected, rtol=1e-8)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what a process has mapped")
def test_eager_calls_leave_no_programs_behind():
    """After some ten thousand programs, Linux maps no more memory, and XLA ends Python."""
    dec = decomposition((2, 4))
    solver, b = solve.CG(with_shift(solve.CG, dec)[0]), dec.shard(random_field(SHAPE))
    solver(b)
    before = mapped()
    for _ in range(3):
        solver(b)
    gc.collect()
    assert mapped() - before < 30, (before, mapped())


def test_each_field_of_a_batch_is_a_system_of_its_own():
    """With another coefficient and guess for each field, the solutions are those of single systems."""
    dec = decomposition((1, 1))
    b = random_field((3, *SHAPE))
    b[1] = 0
    a = np.array([1.0, 2.0, 9.0])[:, None, None, None] + random_field(SHAPE) ** 2
    solver = solve.CG(stencil(dec, WEIGHTS[solve.CG]) @ dops.Multiply(dec, np.ones(SHAPE)), rtol=1e-10)
    of = lambda a: eqx.tree_at(lambda solver: solver.operator, solver, Shifted(solver.operator, a))
    together = eqx.filter_jit(lambda a, b: of(a).solve(b))(dec.shard(a), dec.shard(b))
    mapped = eqx.filter_jit(jax.vmap(lambda a, b: of(a).solve(b)))(dec.shard(a), dec.shard(b))
    single = eqx.filter_jit(lambda a, b: of(a).solve(b))
    for i in range(3):
        alone = single(dec.shard(a[i]), dec.shard(b[i]))
        steps = int(alone.iterations)
        for found, residuals in ((together, together.residuals[:, i]), (mapped, mapped.residuals[i])):
            assert_close(found.value[i], alone.value)
            assert int(found.iterations[i]) == steps
            np.testing.assert_allclose(residuals[:steps], alone.residuals[:steps], rtol=1e-6)
    assert len(set(together.iterations.tolist())) == 3
    assert not np.any(together.value[1])
    again = eqx.filter_jit(lambda a, b, x: of(a).solve(b, x))(dec.shard(a), dec.shard(b), 1.0001 * together.value)
    assert (again.iterations < together.iterations).tolist() == [True, False, True]
    assert bool(again.converged.all())
    assert_close(again.value, together.value, rtol=1e-8)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10 cannot map `select` over an Explicit axis")
@pytest.mark.parametrize(
    "method",
    [solve.GMRES, *(pytest.param(m, marks=pytest.mark.sweep) for m in (solve.CG, solve.MINRES, solve.BiCGStab))],
)
def test_a_mapped_batch_on_another_explicit_axis(method):
    """The fields end at different steps, so `jax.vmap` maps all that the loops carry, also the number of a step."""
    dec = dops.Decomposition(make_mesh((2, 4), "explicit"), shape=SHAPE, axes=("y",), pad=True)
    operator, b = stencil(dec, WEIGHTS[method]), random_field((2, *SHAPE), seed=4)
    fields = jax.device_put(dec.shard(b), jax.NamedSharding(dec.mesh, jax.P("x", "y")))
    expected = np.linalg.solve(dense(stencil(decomposition((1, 1)), WEIGHTS[method])), b.reshape(2, -1).T).T
    found = jax.jit(jax.vmap(lambda b: method(operator, rtol=1e-11)(b)))(fields)
    assert_close(dec.gather(found).reshape(2, -1), expected, rtol=1e-8)


@pytest.mark.xla
@pytest.mark.parametrize("method", SOLVERS)
def test_communication(method):
    """A step has at most two all-reduces, and one with CG; nothing is gathered, forward or backward."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    operator = stencil(dec, WEIGHTS[method])
    loss = lambda a, b: jnp.sum(method(Shifted(operator, a), rtol=1e-10)(b) ** 2)
    a, b = dec.shard(np.ones((8, 8, 8))), dec.shard(random_field((8, 8, 8)))
    compiled = jax.jit(lambda a, b: method(Shifted(operator, a))(b)).lower(a, b).compile().as_text()
    assert "all-gather" not in compiled
    assert max(reductions_of_steps(compiled)) == (1 if method is solve.CG else 2)
    if method is solve.CG:
        assert "all-gather" not in jax.jit(jax.grad(loss, argnums=(0, 1))).lower(a, b).compile().as_text()


@pytest.mark.xla
@pytest.mark.parametrize("body", [None, finite_volume.Body(lambda x, y, z: x + y + z - 5)])
def test_communication_with_a_null_space(body):
    """The projection of each preconditioned residual has one all-reduce, also around bodies."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8), box=dops.Box(8.0))
    operator, b = finite_volume.Diffusion(dec, 1.0, boundary="neumann", body=body), dec.shard(random_field((8, 8, 8)))
    for preconditioner, expected in ((None, 1), (lambda r: r / 2, 2)):
        solver = solve.CG(operator, preconditioner, null_space="constants")
        compiled = jax.jit(lambda b, solver=solver: solver(b)).lower(b).compile().as_text()
        assert "all-gather" not in compiled
        assert max(reductions_of_steps(compiled)) == expected
