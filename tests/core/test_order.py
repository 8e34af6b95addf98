"""Tests of the primitive `order`: a stable sort of small integers, by XLA and by the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._core.order import order


def expected(keys: np.ndarray, kinds: int) -> tuple[np.ndarray, np.ndarray]:
    known = np.flatnonzero((keys >= 0) & (keys < kinds))
    return known[np.argsort(keys[known], kind="stable")], np.bincount(keys[known], minlength=kinds)


def check(places: jax.Array, found: jax.Array, keys: np.ndarray, kinds: int) -> None:
    right, counts = expected(keys, kinds)
    np.testing.assert_array_equal(places[: len(right)], right)
    np.testing.assert_array_equal(found, counts)


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_against_numpy(threads):
    for n, kinds in ((0, 1), (7, 1), (50, 3), (20000, 8), (20000, 17)):
        keys = np.random.default_rng(n).integers(-2, kinds + 3, n).astype(np.int32)
        check(*order(jnp.asarray(keys), kinds, threads), keys, kinds)
    keys = np.array([[2, 1, 0, 1], [0, 3, 1, 0]], np.int32)
    places, found = jax.vmap(lambda k: order(k, 2, threads))(jnp.asarray(keys))
    for i in range(2):
        check(places[i], found[i], keys[i], 2)
