"""What the tests of the layers share."""

import jax
import numpy as np
import pytest

from helpers import put


@pytest.fixture
def spoilt():
    """Distributes fields `(channels, nx, ny, nz)` with padding that must not be read."""

    def shard(dec, x: np.ndarray) -> jax.Array:
        widths = [(0, padded - n) for n, padded in zip(x.shape, (len(x), *dec.padded_shape("z")))]
        return put(dec.mesh, np.pad(x, widths, constant_values=np.nan), None, *dec.spec("z"))

    return shard
