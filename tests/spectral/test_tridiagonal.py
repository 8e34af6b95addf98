"""Tests of tridiagonal systems against dense solvers: values, derivatives, batches and communication."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.spectral import tridiagonal_solve
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, put, random_field


def coefficients(shape: tuple[int, ...], axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coefficients of a system.

    The diagonal varies along all axes, and the off-diagonals only along the axis of the system.
    """
    line = [shape[axis] if i == axis % len(shape) else 1 for i in range(len(shape))]
    lower, upper = random_field(tuple(line), seed=1), random_field(tuple(line), seed=2)
    diagonal = 1 + np.abs(random_field(shape, seed=3)) + np.abs(lower) + np.abs(upper)
    return lower, diagonal, upper


def dense_solve(lower, diagonal, upper, b, *, axis: int, library=np):
    """Solve the system with `numpy.linalg` or `jax.numpy.linalg`."""
    n, lines = b.shape[axis], (lower, diagonal, upper)
    lines = [library.moveaxis(library.broadcast_to(values, b.shape), axis, -1)[..., None] for values in lines]
    matrix = sum(values * np.eye(n, k=k) for values, k in zip(lines, (-1, 0, 1))).astype(b.dtype)
    x = library.linalg.solve(matrix, library.moveaxis(b, axis, -1)[..., None])
    return library.moveaxis(x[..., 0], -1, axis)


def test_values():
    """Solutions of real and complex systems along each axis equal dense solutions.

    Some coefficients have fewer axes than the right-hand side, or are constant along the axis of the systems.
    """
    shape, cases = (2, 5, 3, 4), []
    for axis in (0, -3, -2, -1):
        few = (np.ones(()), 3 + np.abs(random_field((3, 4) if axis == 0 else (3, 1))), -np.ones(1))
        for own, dtype in ((coefficients(shape, axis), np.float32), (few, np.complex128)):
            cases.append((axis, own, random_field(shape, dtype)))
    cases += [(0, coefficients((n, 3), 0), random_field((n, 3))) for n in (1, 2)]
    solve = lambda: [tridiagonal_solve(*own, jnp.asarray(b), axis=axis) for axis, own, b in cases]
    for x, (axis, own, b) in zip(jax.jit(solve)(), cases):
        assert x.dtype == b.dtype
        assert_close(x, dense_solve(*own, b.astype(np.result_type(b.dtype, np.float64)), axis=axis))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 1), (1, 4), (5, 4)])
@pytest.mark.parametrize("sharded", ["b", "diagonal", "both"])
def test_explicit_axes_outside_of_set_mesh(sharded, n, m):
    """Arrays without a mesh in their types, also planes of one number, whose sharding JAX forgets."""
    mesh = make_mesh((1 if m == 1 else 2,), "explicit")
    (lower, diagonal, upper), b = coefficients((n, m), 0), random_field((n, m), np.complex64)
    on_mesh = lambda name, x: put(mesh, x, None, "x") if sharded in (name, "both") else x
    given = lower, on_mesh("diagonal", diagonal), upper, on_mesh("b", b)
    solve = functools.partial(tridiagonal_solve, axis=0)
    loss = lambda solve: lambda diagonal, b: jnp.sum(jnp.abs(solve(lower, diagonal, upper, b)) ** 2)
    dense = functools.partial(dense_solve, axis=0, library=jnp)
    for function in (solve, jax.jit(solve)):
        x = function(*given)
        assert_close(x, dense_solve(lower, diagonal, upper, b, axis=0), rtol=1e-5)
        assert jax.typeof(x).sharding.spec[1] == "x"
    slopes = jax.jit(jax.grad(loss(solve), (0, 1)))(*given[1::2])
    with jax.numpy_rank_promotion("allow"):
        expected = jax.grad(loss(dense), (0, 1))(diagonal, b)
    for found, of_dense in zip(slopes, expected):
        assert_close(found, of_dense, rtol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_row_sums(axis):
    """A system may be given by the sums of its rows instead of its diagonal, with the argument `row_sums`.

    Then errors in single precision do not grow with the condition number.
    """
    widths = np.diff((1 + np.tanh(3 * np.linspace(-1, 1, 257)) / np.tanh(3)) / 2)
    own = -1 / (widths * np.roll(widths, 1)), np.zeros(256), -1 / (widths * np.roll(widths, -1))
    own[1][[0, 100]] = 1e5, 1e-3
    lower, sums, upper = (np.expand_dims(values, 1 - axis) for values in own)
    matrix = np.diag(own[0][1:], -1) + np.diag(own[2][:-1], 1)
    matrix += np.diag(own[1] - matrix.sum(1))
    b = np.moveaxis(np.stack([np.ones(256), random_field((256,))]), 1, axis)
    x = tridiagonal_solve(lower, sums, upper, b.astype(np.float32), axis=axis, row_sums=True)
    assert np.linalg.cond(matrix) > 1e7
    assert_close(x, np.moveaxis(np.linalg.solve(matrix, np.moveaxis(b, axis, 0)), 0, axis), rtol=1e-5)


@pytest.mark.promotes_ranks
def test_derivatives():
    """Check first and second derivatives with respect to the coefficients and the right-hand side.

    Second derivatives use forward and reverse mode. The test also checks batches and transposes.
    """
    shape = (4, 3)
    arguments = (*coefficients(shape, 0), random_field(shape, np.complex128))
    directions = tuple(random_field(x.shape, x.dtype, seed=i) for i, x in enumerate(arguments, start=5))
    many = tuple(np.stack([x, 2 * x, 3 * x]) for x in arguments)
    v = random_field(shape, np.complex128, seed=4)

    def everything(solve):
        loss = lambda *x: jnp.sum(jnp.abs(solve(*x) - v) ** 2)
        slope = jax.grad(loss, (0, 1, 2, 3))
        twice = jax.jvp(slope, arguments, directions)
        again = jax.grad(lambda *x: sum(jnp.sum(jnp.abs(s) ** 2) for s in slope(*x)), (1, 3))(*arguments)
        lower, diagonal, upper, b = arguments
        batches = (
            jax.vmap(solve)(*many),
            jax.vmap(solve, (0, None, None, None))(many[0], diagonal, upper, b),
            jax.vmap(solve, (None, None, None, 0), out_axes=1)(lower, diagonal, upper, many[3]),
        )
        transposed = jax.linear_transpose(functools.partial(solve, lower, diagonal, upper), b)(v)
        return twice, again, batches, transposed

    found, expected = (
        jax.jit(functools.partial(everything, functools.partial(solve, axis=0)))()
        for solve in (tridiagonal_solve, functools.partial(dense_solve, library=jnp))
    )
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(ours, theirs, rtol=1e-9)


@pytest.mark.xla
@pytest.mark.parametrize("kind", [pytest.param("auto", marks=pytest.mark.sweep), "explicit"])
def test_nothing_is_communicated(kind):
    """Solves and derivatives communicate nothing if the axis of the systems is not sharded, also in a `shard_map`."""
    mesh, shape = make_mesh((2, 4), kind), (2, 5, 4, 8)
    own, u = coefficients(shape[1:], 0), random_field(shape, np.complex128)
    solve = functools.partial(tridiagonal_solve, axis=-3)
    specs = (P(), P(None, "x", "y"), P(), P(None, None, "x", "y"))
    on_blocks = jax.shard_map(solve, mesh=mesh, in_specs=specs, out_specs=specs[-1])
    expected = dense_solve(*own, u, axis=-3)

    def everything(*x):
        results = []
        for function in (solve, on_blocks):
            loss = lambda *x, function=function: jnp.sum(jnp.abs(function(*x)) ** 2)
            results.append((function(*x), jax.grad(loss, (1, 3))(*x)))
        return results

    with jax.set_mesh(mesh):
        x = tuple(put(mesh, a, *spec) for a, spec in zip((*own, u), specs))
        program = jax.jit(everything).lower(*x).compile()
        (global_, slopes), (blocks, others) = program(*x)
    assert collectives(program.as_text()) == []
    for result in (global_, blocks):
        assert_close(result, expected)
        assert result.sharding.is_equivalent_to(x[-1].sharding, 4)
    for one, other in zip(slopes, others):
        assert_close(one, other)


@pytest.mark.parametrize(
    ("own", "axis", "message"),
    [
        ((np.ones(4), np.ones(4), np.ones(4)), 2, "`axis` must be an axis of `b`, from -2 to 1; got 2"),
        ((np.ones(3), np.ones(4), np.ones(4)), 1, r"`lower` must broadcast against `b` of shape \(3, 4\); got shape"),
        ((np.ones(1), np.ones((1, 1, 4)), np.ones(4)), 1, r"`diagonal` must broadcast against `b` .*; got"),
    ],
)
def test_bad_input(own, axis, message, plain):
    with pytest.raises(ValueError, match=message):
        plain.spectral.tridiagonal_solve(*map(jnp.asarray, own), jnp.ones((3, 4)), axis=axis)


def test_coefficients_of_other_types(plain):
    """Lists and numbers are coefficients, too. An empty axis has no systems."""
    solve = plain.spectral.tridiagonal_solve
    got = solve([0.0, -1.0, -1.0], 3.0, [-1.0, -1.0, 0.0], np.array([1.0, 2.0, 3.0]), axis=0)
    matrix = 3 * np.eye(3) - np.eye(3, k=1) - np.eye(3, k=-1)
    assert_close(got, np.linalg.solve(matrix, [1.0, 2.0, 3.0]))
    assert solve(-1.0, 3.0, -1.0, np.zeros((2, 0)), axis=1).shape == (2, 0)


def test_bad_types(plain):
    ones = np.ones(3)
    for bad, message in (
        ((ones, ones + 1j, ones, ones), "`diagonal` must be real; got dtype complex128"),
        ((ones, ones, ones * 1j, ones + 0j), "`upper` must be real; got dtype complex128"),
        (
            (ones, ones, ones, np.ones(3, int)),
            "`b` must be real or complex floating-point numbers; got int",
        ),
    ):
        with pytest.raises(TypeError, match=message):
            plain.spectral.tridiagonal_solve(*bad, axis=0)
