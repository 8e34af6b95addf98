"""Common fixtures for the tests of layers."""

import jax
import numpy as np
import pytest

from helpers import put


@pytest.fixture
def spoilt():
    """Return a function that shards fields `(channels, *shape)`. The padding holds NaN, which no layer may read."""

    def shard(dec, x: np.ndarray) -> jax.Array:
        widths = [(0, padded - n) for n, padded in zip(x.shape, (len(x), *dec.padded_shape(-1)))]
        return put(dec.mesh, np.pad(x, widths, constant_values=np.nan), None, *dec.spec(-1))

    return shard
