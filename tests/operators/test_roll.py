"""Tests of `Roll` against `numpy.roll`."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops.testing import assert_adjoint, assert_transposed
from jax.sharding import PartitionSpec as P

from helpers import make_mesh, random_field, thinned


CASES = [  # The sizes of the mesh, the shape of the grid, and its pencil.
    ((2, 4), (7, 9, 5), "z"),
    ((4, 2), (5, 3, 9), "x"),
    ((8,), (3, 5, 2), "y"),
    ((1, 1), (3, 5, 4), "z"),
]


@pytest.mark.parametrize(
    ("sizes", "shape", "pencil", "kind"),
    thinned(
        [(*case, kind) for case in CASES for kind in ("auto", "explicit")],
        lambda *case: CASES.index(case[:-1]) % 2 == (case[-1] == "explicit"),
    ),
)
def test_a_roll_is_that_of_numpy(sizes, shape, pencil, kind):
    """Fields roll by less than a block, by more, by more than the grid, and not at all. The padding stays zero."""
    ndim = len(shape)
    axes = None if len(sizes) == ndim - 1 else "x"
    dec = dops.Decomposition(make_mesh(sizes, kind), shape=shape, axes=axes, pad=True)
    u, grid = random_field((2, *shape)), tuple(range(-ndim, 0))
    shifts = [(1,) * ndim, (0, -3, 1)[:ndim], (5, 0, -2)[:ndim], (-shape[0] - 1, 4, 0)[:ndim], (0,) * ndim]
    for i, shift in enumerate(shifts):
        roll = dops.Roll(dec, shift, pencil=pencil)
        field = dec.shard(u, pencil)
        got = (jax.jit(roll) if i % 2 else roll)(field)
        assert got.sharding.is_equivalent_to(field.sharding, got.ndim)
        expected = np.roll(u, shift, grid)
        np.testing.assert_array_equal(dec.gather(got, pencil), expected)
        assert np.count_nonzero(got) == np.count_nonzero(expected)
    np.testing.assert_array_equal(dec.gather(dops.Roll(dec, shifts[1], pencil=pencil).T(field), pencil), np.roll(
        u, [-shift for shift in shifts[1]], grid
    ))  # fmt: skip


@pytest.mark.parametrize("dtype", ["complex128", "float32", "int8", "bool"])
def test_dtypes(dtype):
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(7, 6, 5), pad=True)
    u = (10 * random_field((7, 6, 5))).astype(dtype)
    got = dec.gather(dops.Roll(dec, (2, -1, 3))(u))
    assert got.dtype == u.dtype
    np.testing.assert_array_equal(got, np.roll(u, (2, -1, 3), (0, 1, 2)))


def test_derivatives_and_blocks():
    """The transpose rolls back, gradients use it, and `local` rolls inside a `shard_map`."""
    mesh, shape = make_mesh((2, 4)), (6, 8, 4)
    roll, grid = dops.Roll(mesh, (2, -3, 1), shape=shape), (0, 1, 2)
    x, y = random_field(shape, complex, 1), random_field(shape, complex, 2)
    assert_transposed(roll, roll.T, x, y)
    assert_adjoint(roll, roll.H, x, y)
    gradient = jax.jit(jax.grad(lambda u: (roll(u) * y.real).sum()))(x.real)
    np.testing.assert_array_equal(gradient, np.roll(y.real, (-2, 3, -1), grid))
    local = jax.shard_map(roll.local, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))
    np.testing.assert_array_equal(jax.jit(local)(x), np.roll(x, (2, -3, 1), grid))
    without_shape = dops.Roll(mesh, (2, -3, 1))
    np.testing.assert_array_equal(without_shape(x), np.roll(x, (2, -3, 1), grid))


def test_compiled_kernels_roll():
    """The kernels exchange the halo, and XLA cuts the blocks."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(7, 6, 5), pad=True, backend=dops.Native())
    u = random_field((7, 6, 5))
    np.testing.assert_array_equal(dec.gather(jax.jit(dops.Roll(dec, (2, -1, 3)))(u)), np.roll(u, (2, -1, 3), (0, 1, 2)))


@pytest.mark.parametrize("shift", [1, (), (1, 2), (1.5, 0, 0), None])
def test_bad_shifts_are_refused(plain, shift):
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    with pytest.raises(ValueError, match=r"`shift` must be one integer for each axis of the grid, x, y, z; got"):
        plain.Roll(dec, shift)
