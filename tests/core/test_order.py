"""Tests of the primitive `order`: a stable sort of small integers, by XLA and by the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._core.order import order


def expected(keys: np.ndarray, kinds: int) -> tuple[np.ndarray, np.ndarray]:
    known = np.flatnonzero((keys >= 0) & (keys < kinds))
    places = np.full(len(keys), len(keys))
    places[: len(known)] = known[np.argsort(keys[known], kind="stable")]
    return places, np.bincount(keys[known], minlength=kinds)


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_against_numpy(threads):
    for n, kinds in ((0, 1), (7, 1), (50, 3), (20000, 8), (20000, 17)):
        keys = np.random.default_rng(n).integers(-2, kinds + 3, n).astype(np.int32)
        for got, right in zip(order(jnp.asarray(keys), kinds, threads), expected(keys, kinds)):
            np.testing.assert_array_equal(got, right)
    keys = np.array([[2, 1, 0, 1], [0, 3, 1, 0]], np.int32)
    places, found = jax.vmap(lambda k: order(k, 2, threads))(jnp.asarray(keys))
    for i in range(2):
        right = expected(keys[i], 2)
        np.testing.assert_array_equal(places[i], right[0])
        np.testing.assert_array_equal(found[i], right[1])
