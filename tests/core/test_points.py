"""Tests of the primitives `deposit` and `read`: their transposes, derivatives and batches, by XLA and by the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._core.points import Cloud, Frame, _touched, deposit, read
from decompops.particles._windows import spline
from jax.test_util import check_grads

import clouds
from helpers import assert_close, thinned


THREADS = [None, 1, 3]  # By XLA, and by the kernel.


def cloud_of(shape, width, wraps, threads, orders=None) -> Cloud:
    return Cloud(spline(width), shape, wraps, orders or (0,) * len(shape), threads)


# A coordinate is the position, any coordinate is at home.
SAME = (0, 0, 0, -np.inf, np.inf, 0, 0)


def frame_of(positions, lines=SAME, scale=1.0, live=None) -> Frame:
    """Return points whose axes have the same line and scale, unless there are several."""
    positions = jnp.asarray(positions)
    count, ndim = positions.shape
    lines = np.broadcast_to(np.array(lines, positions.dtype), (ndim, len(SAME)))
    scale = jnp.broadcast_to(jnp.asarray(scale, positions.dtype), (ndim,))
    return Frame(positions, scale, jnp.asarray(lines), jnp.int32(count if live is None else live))


def numbers(seed: int, *shape: int, dtype=np.float64):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape)
    return jnp.asarray((values + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else values).astype(dtype))


def test_slots_without_a_point_touch_no_cell():
    """Their zeros would all be added to one cell, which takes most of the time of a deposit on a GPU."""
    cloud = cloud_of((6, 5), 3, (True, False), None)
    live = jnp.arange(8) < 5
    cells, _ = _touched(cloud, jnp.zeros((8, 2)), live, np.dtype(np.float64))
    for touched, length, outside in zip(cells, cloud.shape, (0, 1)):  # The first cell of a cloud is before the wall.
        assert (touched[:, 5:] == length).all()
        assert (touched[outside:, :5] < length).all()


# Without the sweep, XLA and one thread run only these windows and shapes. Other tests compare them with three threads.
FEW = {("ngp", 2), ("cic", 1), ("tsc", 3), ("pcs", 2)}


@pytest.mark.parametrize(
    ("window", "shape", "wraps", "threads"),
    thinned(
        [
            (window, *grid, threads)
            for window in clouds.WIDTHS
            for grid in (((13,), (True,)), ((40, 6), (False, True)), ((9, 4, 5), (True, False, True)))
            for threads in THREADS
        ],
        lambda window, shape, wraps, threads: threads == 3 or (window, len(shape)) in FEW,
    ),
)
def test_against_numpy(window, shape, wraps, threads):
    cloud = cloud_of(shape, clouds.WIDTHS[window], wraps, threads)
    points = jnp.asarray(np.random.default_rng(0).uniform(-3, 45, (5000, len(shape))))
    values, field = numbers(1, 5000), numbers(2, *shape)
    assert_close(
        deposit(cloud, frame_of(points), values),
        clouds.deposit(window, *map(np.asarray, (points, values)), shape, shape, wraps),
        1e-12,
    )
    assert_close(
        read(cloud, frame_of(points), field),
        clouds.read(window, *map(np.asarray, (points, field)), shape, wraps),
        1e-12,
    )


@pytest.mark.parametrize(
    ("orders", "in_order", "precision", "dtype"),
    thinned(
        [
            (*case, precision, dtype)
            for case in (((0, 0, 0), True), ((1, 0, 2), False))
            for precision in (np.float32, np.float64)
            for dtype in (np.float32, np.float64, np.complex64, np.complex128)
        ],
        lambda orders, in_order, precision, dtype: (
            (np.finfo(dtype).dtype == precision) == in_order == (np.dtype(dtype).kind == "c")
        ),
    ),
)
def test_the_kernel_and_xla_agree(orders, in_order, precision, dtype):
    """With any number of threads, the kernel returns the same bits."""
    shape, wraps, n = (32, 5, 6), (True, False, True), 6000
    points = np.random.default_rng(0).uniform(-3, 40, (n, 3)).astype(precision)
    points = jnp.asarray(np.sort(points, axis=0) if in_order else points)
    values, fields = numbers(1, 2, n, dtype=dtype), numbers(2, 2, *shape, dtype=dtype)
    both = lambda cloud, frame, v, f: (deposit(cloud, frame, v), read(cloud, frame, f))
    found = []
    for threads in THREADS:
        cloud = cloud_of(shape, 4, wraps, threads, orders)
        program = jax.jit(both, static_argnums=0).lower(cloud, frame_of(points), values, fields)
        kernels = program.as_text().count("@decompops_points(")
        assert kernels == (0 if threads is None else 2)  # The kernel is really called.
        found.append(program.compile()(frame_of(points), values, fields))
    for by_xla, one, several in zip(*found):
        assert by_xla.dtype == one.dtype == dtype
        assert_close(one, by_xla, 1e-4 if np.float32 in (precision, np.finfo(dtype).dtype) else 1e-12)
        np.testing.assert_array_equal(one, several)


BLOCKS = [((7, 6), (True, False)), ((5, 6, 4), (True, True, False))]


# The rules of derivatives do not depend on who computes. Below, the derivatives by XLA are compared with the kernel's.
@pytest.mark.parametrize(
    ("shape", "wraps", "threads"),
    thinned(
        [(*block, threads) for block in BLOCKS for threads in (None, 2)],
        lambda shape, wraps, threads: len(shape) == 3 and threads == 2,
    ),
)
def test_derivatives(shape, wraps, threads):
    cloud = cloud_of(shape, 4, wraps, threads)
    points = jnp.asarray(np.random.default_rng(0).uniform(0, 6, (9, len(shape))))
    values, field = numbers(1, 9), numbers(2, *shape)

    def loss(x, scale, v, f):
        frame = frame_of(x, scale=scale)
        return jnp.sum(deposit(cloud, frame, v) ** 2) + jnp.sum(jnp.sin(read(cloud, frame, f)))

    scale = jnp.linspace(0.9, 1.1, len(shape))
    check_grads(jax.jit(loss), (points, scale, values, field), order=2, eps=1e-6, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "wraps", "threads"),
    thinned(
        [(*block, threads) for block in BLOCKS for threads in (None, 2)],
        lambda shape, wraps, threads: (len(shape) == 2) == (threads is None),
    ),
)
def test_transpose_and_batches(shape, wraps, threads):
    cloud = cloud_of(shape, 4, wraps, threads)
    points = np.random.default_rng(0).uniform(0, 6, (9, len(shape)))
    values, field = np.asarray(numbers(1, 9)), np.asarray(numbers(2, *shape))

    @jax.jit
    def one(x, v, f):
        frame = frame_of(x)
        slopes = jax.grad(lambda x: jnp.sum(read(cloud, frame_of(x), f)))(x)
        return deposit(cloud, frame, v), read(cloud, frame, f), slopes

    @jax.jit
    def batches(several, v, fields):
        frame = frame_of(several[0])
        both = jax.vmap(lambda x: deposit(cloud, frame_of(x), v))(several)
        each = jax.vmap(lambda x, v: deposit(cloud, frame_of(x), v))(several, jnp.stack([v, 2 * v]))
        along_1 = jax.vmap(lambda f: read(cloud, frame, f), out_axes=1)(fields)
        slopes = lambda x, f: jax.grad(lambda x: jnp.sum(read(cloud, frame_of(x), f)))(x)
        return both, each, along_1, jax.vmap(slopes, (None, 0))(several[0], fields)

    deposited, at_points, slopes = map(np.asarray, one(points, values, field))
    assert_close(np.vdot(deposited, field), np.vdot(values, at_points), 1e-13)
    several, fields = np.stack([points, points + 0.5]), np.stack([field, 3 * field])
    both, each, along_1, each_slope = map(np.asarray, batches(several, values, fields))
    assert_close(both[0], deposited, 1e-13)
    assert_close(both[1], one(several[1], values, field)[0], 1e-13)
    assert_close(each, both * np.array([1, 2]).reshape(2, *[1] * len(shape)), 1e-13)
    assert_close(along_1, at_points[:, None] * np.array([[1, 3]]), 1e-13)
    assert_close(each_slope, np.stack([slopes, 3 * slopes]), 1e-13)


SHAPE = (21, 18, 9)


@pytest.mark.parametrize(
    ("shape", "width", "dtype", "order"),
    thinned(
        [
            *((SHAPE, 2, np.float32, 1), (SHAPE, 2, np.float32, 2), (SHAPE, 4, np.float64, 2)),
            *((SHAPE, 3, np.complex128, 2), (SHAPE[1:], 4, np.float64, 2)),
        ],
        lambda shape, width, dtype, order: order == 1 or len(shape) == 2,
    ),
)
def test_all_derivatives_of_the_kernel_are_those_of_xla(shape, width, dtype, order):
    """First derivatives have kernels of their own; second derivatives and those of complex numbers use them, too."""
    n, ndim = 5000, len(shape)
    x = np.random.default_rng(0).uniform(-3, 20, (n, ndim))
    x[-5:] = np.nan  # Slots without a point.
    v, f = numbers(1, 2, n, dtype=dtype), numbers(2, 2, *shape, dtype=dtype)
    found = []
    for threads in THREADS:
        cloud = cloud_of(shape, width, (True, False, True)[:ndim], threads)

        def loss(x, scale, v, f, cloud=cloud):
            frame = frame_of(x, scale=scale, live=n - 5)
            return jnp.sum(jnp.abs(deposit(cloud, frame, v)) ** 2) + jnp.sum(jnp.abs(read(cloud, frame, f)) ** 2)

        gradient = jax.grad(loss, (0, 1, 2, 3))

        def squares(*a, gradient=gradient):
            first = gradient(*a)
            return sum(jnp.sum(jnp.real(g).astype(float) ** 2) for g in first), first

        arguments = (x, np.linspace(0.9, 1.1, ndim), v, f)
        if order == 1:
            found.append(jax.jit(gradient)(*arguments))
        else:
            second, first = jax.jit(jax.grad(squares, (0, 1, 2, 3), has_aux=True))(*arguments)
            found.append([*first, *second])
    for one, several in zip(found[1], found[2], strict=True):
        np.testing.assert_array_equal(one, several)
    for by_xla, several in zip(found[0], found[2]):
        assert np.isfinite(several).all()
        assert_close(several, by_xla, 1e-4 if dtype == np.float32 else 1e-11)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_frames(dtype, threads):
    """Points are wrapped, moved onto the edge if they are a rounding error outside, and NaN if they are farther out."""
    cloud, eps = cloud_of((12,), 2, (False,), threads), float(np.finfo(dtype).eps)
    # The cells 5 to 12 of a periodic box of 20 cells, of length 10; one cell before and three behind are its halo.
    lines, scale = (5, 20, -6, 0, 8, 16 * eps * 20, 1), 2.0
    field, v = jnp.arange(12, dtype=dtype) ** 2, jnp.ones(3, dtype)
    square = lambda s: np.interp(s + 1, np.arange(12), np.arange(12) ** 2)
    x = np.array([3.1, 3.1 - 30, 3.1 + 50], dtype)[:, None]  # All of them at the coordinate 1.2.
    frame = frame_of(x, lines, scale)
    np.testing.assert_allclose(read(cloud, frame, field), square(1.2), rtol=1e3 * eps)
    np.testing.assert_allclose(deposit(cloud, frame, v), [0, 0, 2.4, 0.6, *[0] * 8], atol=1e3 * eps)
    edges = np.array([2.5 * (1 - 2 * eps), 6.5, 6.5 * (1 + 2 * eps)], dtype)[:, None]
    got = np.asarray(read(cloud, frame_of(edges, lines, scale), field))
    np.testing.assert_allclose(got, square(np.array([0, 8, 8])), rtol=1e2 * eps)
    assert deposit(cloud, frame_of(edges, lines, scale), v)[0] == 0  # A point is never left of its block.
    slope = jax.grad(lambda x: jnp.sum(read(cloud, frame_of(x, lines, scale), field)))(jnp.asarray(edges))
    np.testing.assert_allclose(slope[:, 0], np.array([3, 17, 17]) * scale, rtol=1e2 * eps)  # Of cells 1 to 2, 8 to 9.
    for outside in (2.4, 6.6, np.nan, np.inf, -np.inf):
        astray = frame_of(jnp.asarray(x).at[1].set(outside), lines, scale)
        assert np.isnan(read(cloud, astray, field)).all()
        assert np.isnan(deposit(cloud, astray, v)).all()
        total = lambda x, astray=astray: jnp.sum(read(cloud, astray._replace(positions=x), field))
        assert np.isnan(jax.grad(total)(astray.positions)).all()
        few = astray._replace(positions=astray.positions[::-1], live=jnp.int32(1))
        assert np.isfinite(read(cloud, few, field)).all()  # Other slots may hold anything.
        few = frame_of(jnp.asarray(x).at[2].set(outside), lines, scale, live=2)
        np.testing.assert_allclose(deposit(cloud, few, v), [0, 0, 1.6, 0.4, *[0] * 8], atol=1e3 * eps)


def test_no_points_and_points_without_cells():
    for threads in THREADS:
        cloud = cloud_of((4, 4), 2, (False, False), threads)
        assert not np.any(deposit(cloud, frame_of(jnp.zeros((0, 2))), jnp.zeros(0)))
        assert read(cloud, frame_of(jnp.zeros((0, 2))), jnp.ones((4, 4))).shape == (0,)
        far = frame_of(jnp.array([[1e30, 1.0], [-50.0, 2.0]]))
        assert not np.any(deposit(cloud, far, jnp.ones(2)))
        assert not np.any(read(cloud, far, jnp.ones((4, 4))))
