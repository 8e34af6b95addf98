"""Tests of `HaloExchange` against its definition, cell by cell, and of its adjoint by dot products."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._core.decomposition import storage_order
from decompops.testing import assert_adjoint, assert_transposed
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import extended, finite_difference, make_mesh, put, random_field, spec_of, thinned


WIDTHS = [
    ((1, 1), (3, 3), (2, 2)),  # These are cuDecomp's widths.
    ((2, 0), (0, 3), (1, 2)),  # The widths differ on each side.
    ((0, 0), (1, 1), (0, 0)),
    ((5, 4), (9, 6), (0, 7)),  # Some of these halos are wider than a block, or wider than the grid.
]
PERIODIC = [(True, True, True), (False, False, False), (True, False, True)]


ORDERS = [None, (2, 0, 1), (1, 2, 0)]
EVEN, UNEVEN, SHORT = (8, 8, 8), (9, 10, 11), (7, 3, 5)
# Every mesh, width, periodicity, pencil, storage order and kind of mesh stays in CI. The others combine them again.
FEW = {
    *(((2, 4), EVEN), ((2, 4), UNEVEN), ((4, 2), SHORT), ((8, 1), UNEVEN), ((1, 8), EVEN), ((3, 2), UNEVEN)),
    *(((3, 2), SHORT), ((4,), EVEN), ((4,), SHORT), ((1, 1), SHORT)),
}
CASES = itertools.product([(2, 4), (4, 2), (8, 1), (1, 8), (3, 2), (4,), (1, 1)], [EVEN, UNEVEN, SHORT])


@pytest.mark.parametrize(("sizes", "shape"), thinned(CASES, lambda sizes, shape: (sizes, shape) in FEW))
def test_every_cell_and_the_adjoint(sizes, shape):
    # This number selects the widths, periodicities, pencils, storage orders and kinds of mesh of a test.
    turn = sum(sizes) + sum(shape)
    halo, periodic = WIDTHS[turn % 4], PERIODIC[turn % 3]
    exchange = dops.HaloExchange(
        make_mesh(sizes, ("auto", "explicit")[turn % 2]),
        halo,
        periodic=periodic,
        pencil="zxy"[turn // 4 % 3],
        order=ORDERS[turn // 2 % 3],
        shape=shape,
        pad=True,
    )
    layout, plan = exchange.in_layout, exchange.plan()
    u = random_field(shape)
    x = np.asarray(layout.shard(u))
    y = random_field(plan.target.shape, seed=1)
    operators = (exchange, exchange.crop, exchange.update)

    @jax.jit  # One program runs all operators, because compiling takes most of the time.
    def programs(x, y):
        h, inputs, outputs = exchange(x), (x, y, y), (y, x, y[::-1])
        forth = [operator(a) for operator, a in zip(operators, inputs)]
        return h, exchange.crop(h), exchange.update(h), forth, [op.T(b) for op, b in zip(operators, outputs)]

    h, cropped, updated, forth, back = programs(x, y)
    np.testing.assert_array_equal(h, extended(u, plan.source.parts, halo, periodic).transpose(plan.target.order))
    assert spec_of(exchange(x)) == exchange.out_spec
    np.testing.assert_array_equal(layout.gather(cropped), u)
    np.testing.assert_array_equal(updated, h)
    for a, b, there, returned in zip((x, y, y), (y, x, y[::-1]), forth, back):
        assert_transposed(lambda _, v=there: v, lambda _, v=returned: v, a, b)


def test_cudecomps_matrix():
    """Test cuDecomp's widths on cuDecomp's grid, in all pencils and both storage orders, periodic or not."""
    dec = dops.Decomposition(make_mesh((2, 2)), shape=(9, 10, 11), pad=True)
    u, widths = random_field(dec.shape), WIDTHS[0]
    cases = list(itertools.product("xyz", (True, False), (True, False)))
    exchanges = [
        dops.HaloExchange(
            dec, widths, periodic=periodic, pencil=pencil, order=storage_order(3, pencil, axis_contiguous=flag)
        )
        for pencil, periodic, flag in cases
    ]
    fields = [exchange.in_layout.shard(u) for exchange in exchanges]
    results = jax.jit(lambda fields: [exchange(x) for exchange, x in zip(exchanges, fields)])(fields)
    for exchange, (_, periodic, _), h in zip(exchanges, cases, results):
        blocks = exchange.in_layout.blocks
        np.testing.assert_array_equal(h, extended(u, blocks.parts, widths, (periodic,) * 3).transpose(blocks.order))


def test_update_refreshes_stale_halos():
    exchange = dops.HaloExchange(make_mesh((2, 4)), (2, 1, 0), periodic=(True, False, True))
    h = np.array(exchange(random_field((8, 8, 8))))
    cells = np.asarray(exchange.crop(h))
    stale = np.asarray(exchange.crop.T(cells))  # These blocks hold the same cells, and their halos are zero.
    assert not np.array_equal(stale, h)
    np.testing.assert_array_equal(exchange.update(stale), h)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_gradient_adds_cotangents_back_to_their_owners(kind):
    """The gradient of a cell is the sum of the gradients of all its copies.

    (In jaxDecomp, the exchange is wrongly its own adjoint.)
    """
    mesh = make_mesh((2, 4), kind)
    with jax.set_mesh(mesh):
        exchange = dops.HaloExchange(mesh, 1)
        x = put(mesh, random_field((8, 8, 8)), "x", "y", None)
        counts = jax.grad(lambda v: jnp.sum(exchange(v)))(x)
        ones = np.ones((8, 8, 8))
        expected = np.zeros_like(ones)
        # The expected gradient of a cell is the number of its copies in the extended field.
        numbers = np.arange(8**3).reshape(8, 8, 8)
        copies = extended(numbers, (2, 4, 1), ((1, 1),) * 3, (True,) * 3)
        expected = np.bincount(copies.ravel(), minlength=8**3).reshape(8, 8, 8)
        np.testing.assert_array_equal(counts, expected)
        assert counts.sharding.is_equivalent_to(x.sharding, 3)
        loss = lambda v: jnp.sum(jnp.sin(exchange(v)) * jnp.cos(jnp.roll(exchange(v), 1, -1)))
        both = jax.jit(jax.value_and_grad(loss))
        direction = random_field((8, 8, 8), seed=3)
        value = lambda v: both(put(mesh, v, "x", "y", None))[0]
        slope = np.vdot(both(x)[1], direction)
        assert slope == pytest.approx(finite_difference(value, np.asarray(x), direction, 1e-5), rel=1e-7)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_batch_axes_and_vmap(kind):
    mesh = make_mesh((2, 2, 2), kind)
    with jax.set_mesh(mesh):
        exchange = dops.HaloExchange(mesh, (1, 2, 1))
        u = random_field((4, 3, 4, 8, 6))
        expected = extended(u, (2, 2, 1), ((1, 1), (2, 2), (1, 1)), (True,) * 3)
        x = put(mesh, u, "c", None, "x", "y", None)
        np.testing.assert_array_equal(exchange(x), expected)
        np.testing.assert_array_equal(jax.vmap(jax.vmap(exchange))(x), expected)
        np.testing.assert_array_equal(jax.jit(jax.vmap(exchange))(x), expected)
        assert spec_of(jax.jit(jax.vmap(exchange))(x)) == P("c", None, "x", "y", None)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128", "int32", "bfloat16", "bool"])
def test_dtypes_are_kept(dtype):
    u = jnp.asarray(np.arange(512).reshape(8, 8, 8) % 7, dtype)
    h = dops.HaloExchange(make_mesh((2, 4)), 1)(u)
    assert h.dtype == u.dtype
    np.testing.assert_array_equal(h, extended(np.asarray(u), (2, 4, 1), ((1, 1),) * 3, (True,) * 3))


def test_complex_adjoints():
    exchange = dops.HaloExchange(make_mesh((2, 4)), 1)
    x, y = random_field((8, 8, 8), np.complex128), random_field((12, 16, 10), np.complex128, 1)
    assert_transposed(exchange, exchange.T, x, y)
    assert_adjoint(exchange, exchange.H, x, y)


def test_an_int_three_ints_and_pairs_are_the_same():
    mesh = make_mesh((2, 4))
    first = dops.HaloExchange(mesh, 1)
    assert first == dops.HaloExchange(mesh, (1, 1, 1)) == dops.HaloExchange(mesh, [(1, 1), 1, (1, 1)])
    assert first == dops.HaloExchange(mesh, np.int32(1), periodic=np.True_)
    assert hash(first) == hash(dops.HaloExchange(mesh, (np.int64(1),) * 3))


BAD = [
    (lambda d, m: d.HaloExchange(m, (2, -1, 0)), r"`halo` must be non-negative; got \(2, -1, 0\)"),
    (
        lambda d, m: d.HaloExchange(m, (1, 1)),
        r"`halo` must be one int for all axes, or a tuple with one entry for each of x, y, z, where an entry is an int "
        r"or a pair \(before, after\); got \(1, 1\)",
    ),
    (lambda d, m: d.HaloExchange(m, ((1, 2, 3), 1, 1)), r"`halo` must be .* a pair .before, after.; got"),
    (lambda d, m: d.HaloExchange(m, 1.5), "`halo` must be made of integers; got 1.5"),
    (lambda d, m: d.HaloExchange(m, True), "`halo` must be made of integers; got True"),
    (
        lambda d, m: d.HaloExchange(m, 1, periodic="yes"),
        "`periodic` must be one bool, or one for each of x, y, z; got 'yes'",
    ),
    (lambda d, m: d.HaloExchange(m, 1, periodic=(True, False)), "`periodic` must be"),
    (
        lambda d, m: d.HaloExchange(m, 1)(np.ones((9, 8, 8))),
        "`shape` must be divisible by the mesh, unless `pad=True`; got .* 2 devices",
    ),
    (lambda d, m: d.HaloExchange(m, 1, shape=(8, 8, 8)).crop(np.ones((8, 8, 8))), r"`x` must have shape"),
    (lambda d, m: d.HaloExchange(m, 1).inverse, "has no inverse"),
    (
        lambda d, m: d.HaloExchange(m, 1).crop(np.ones((8, 8, 8))),
        r"`x` must contain the halo .*; got shape \(8, 8, 8\)",
    ),
    (
        lambda d, m: d.HaloExchange(m, 1).update(np.ones((4, 4, 4))),
        r"`x` must contain the halo .*; got shape \(4, 4, 4\)",
    ),
    (lambda d, m: d.HaloExchange(m, 3).T(np.ones((8, 8, 8))), r"`x` must contain the halo .*; got shape \(8, 8, 8\)"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((ValueError, TypeError, AttributeError), match=text):
        call(plain, make_mesh((2, 4)))


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("sizes", [(2, 4), (2, 2), (2, 1), (1, 8), (8, 1), (4, 2)])
def test_only_neighbours_layers_travel(sizes, periodic):
    """On each sharded axis, one collective permute for each side sends the halo layers, and nothing else.

    On a periodic axis of two devices, both neighbours are the same device, so one collective permute sends both sides.
    """
    shape = nx, ny, nz = 16, 32, 8
    hx, hy = 1, 2
    exchange = dops.HaloExchange(make_mesh(sizes), (hx, hy, 3), shape=shape, periodic=periodic)
    x = jax.ShapeDtypeStruct(shape, np.float32, sharding=exchange.decomposition.sharding())
    found = collectives(jax.jit(exchange).lower(x).compile().as_text())
    expected = []
    for parts, layer in zip(sizes, (4 * hx * (ny // sizes[1]) * nz, 4 * hy * (nx // sizes[0] + 2 * hx) * nz)):
        if parts > 1:
            expected += [2 * layer] if parts == 2 and periodic else [layer, layer]
    assert {c.kind for c in found} == {"collective-permute"}
    assert sorted(c.bytes for c in found) == sorted(expected)
