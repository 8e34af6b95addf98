"""Tests of the primitives `deposit` and `read`: their transposes, derivatives and batches, by XLA and by the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._core.points import Cloud, deposit, read
from decompops.particles._windows import spline
from jax.test_util import check_grads

import clouds
from helpers import assert_close


THREADS = [None, 1, 3]  # By XLA, and by the kernel.


def cloud_of(shape, width, wraps, threads, orders=None) -> Cloud:
    return Cloud(spline(width), shape, wraps, orders or (0,) * len(shape), threads)


def numbers(seed: int, *shape: int, dtype=np.float64):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape)
    return jnp.asarray((values + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else values).astype(dtype))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(
    ("shape", "wraps"), [((13,), (True,)), ((40, 6), (False, True)), ((9, 4, 5), (True, False, True))]
)
@pytest.mark.parametrize("window", clouds.WIDTHS)
def test_against_numpy(window, shape, wraps, threads):
    cloud = cloud_of(shape, clouds.WIDTHS[window], wraps, threads)
    points = jnp.asarray(np.random.default_rng(0).uniform(-3, 45, (5000, len(shape))))
    values, field = numbers(1, 5000), numbers(2, *shape)
    assert_close(
        deposit(cloud, points, values),
        clouds.deposit(window, *map(np.asarray, (points, values)), shape, shape, wraps),
        1e-12,
    )
    assert_close(
        read(cloud, points, field), clouds.read(window, *map(np.asarray, (points, field)), shape, wraps), 1e-12
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize(("orders", "in_order"), [((0, 0, 0), True), ((1, 0, 2), False)])
def test_the_kernel_and_xla_agree(orders, in_order, precision, dtype):
    """With any number of threads, the kernel returns the same bits."""
    shape, wraps, n = (32, 5, 6), (True, False, True), 6000
    points = np.random.default_rng(0).uniform(-3, 40, (n, 3)).astype(precision)
    points = jnp.asarray(np.sort(points, axis=0) if in_order else points)
    values, fields = numbers(1, 2, n, dtype=dtype), numbers(2, 2, *shape, dtype=dtype)
    found = []
    for threads in THREADS:
        cloud = cloud_of(shape, 4, wraps, threads, orders)
        for function, x in ((deposit, values), (read, fields)):
            text = jax.jit(function, static_argnums=0).lower(cloud, points, x).as_text()
            assert ("decompops_points" in text) == (threads is not None)  # The kernel is really called.
        found.append((deposit(cloud, points, values), read(cloud, points, fields)))
    for by_xla, one, several in zip(*found):
        assert by_xla.dtype == one.dtype == dtype
        assert_close(one, by_xla, 1e-4 if np.float32 in (precision, np.finfo(dtype).dtype) else 1e-12)
        np.testing.assert_array_equal(one, several)


@pytest.mark.parametrize("threads", [None, 2])
def test_derivatives_and_batches(threads):
    cloud = cloud_of((7, 6), 4, (True, False), threads)
    points = jnp.asarray(np.random.default_rng(0).uniform(0, 6, (9, 2)))
    values, field = numbers(1, 9), numbers(2, 7, 6)
    assert_close(jnp.vdot(deposit(cloud, points, values), field), jnp.vdot(values, read(cloud, points, field)), 1e-13)
    loss = lambda x, v, f: jnp.sum(deposit(cloud, x, v) ** 2) + jnp.sum(jnp.sin(read(cloud, x, f)))
    check_grads(jax.jit(loss), (points, values, field), order=2, eps=1e-6, rtol=1e-4, atol=1e-4)
    several = jnp.stack([points, points + 0.5])
    both = jax.vmap(lambda x: deposit(cloud, x, values))(several)
    assert_close(both[1], deposit(cloud, several[1], values), 1e-13)
    each = jax.vmap(lambda x, v: deposit(cloud, x, v))(several, jnp.stack([values, 2 * values]))
    assert_close(each[1], 2 * both[1], 1e-13)
    fields = jax.vmap(lambda f: read(cloud, points, f), out_axes=1)(jnp.stack([field, 3 * field]))
    assert_close(fields[:, 1], 3 * fields[:, 0], 1e-13)


def test_no_points_and_points_without_cells():
    for threads in THREADS:
        cloud = cloud_of((4, 4), 2, (False, False), threads)
        assert not np.any(deposit(cloud, jnp.zeros((0, 2)), jnp.zeros(0)))
        assert read(cloud, jnp.zeros((0, 2)), jnp.ones((4, 4))).shape == (0,)
        far = jnp.array([[1e30, 1.0], [-50.0, 2.0]])
        assert not np.any(deposit(cloud, far, jnp.ones(2)))
        assert not np.any(read(cloud, far, jnp.ones((4, 4))))
