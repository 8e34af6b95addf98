"""Arrays of few axes for products with arrays of many. `jax_numpy_rank_promotion="raise"` forbids products of both."""

from typing import TypeVar

import numpy as np
from jax import Array, lax


_N = TypeVar("_N", np.ndarray, Array)


def along(values: _N, axis: int, ndim: int) -> _N:
    """Return a list of numbers as an array of `ndim` axes, along `axis` (negative)."""
    return values.reshape(*[1] * (ndim + axis), -1, *[1] * (-axis - 1))


def aligned(constant: Array, like: Array) -> Array:
    """Return `constant`, which broadcasts against `like`, with at least as many axes as `like`."""
    return lax.broadcast_to_rank(constant, max(constant.ndim, like.ndim))
