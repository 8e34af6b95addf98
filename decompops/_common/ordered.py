"""Largest and smallest numbers without losing NaN. XLA for CPUs may ignore NaN there (JAX 0.10 and 0.12)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def extreme_or_nan(x: Array, axes: tuple[int, ...], *, largest: bool, keepdims: bool = False) -> Array:
    """Return the largest or the smallest number along `axes`; NaN if one of the numbers is NaN."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return (jnp.max if largest else jnp.min)(x, axes, keepdims=keepdims)
    # One pass over the numbers finds both, in the time of a maximum alone.
    compare = jax.lax.max if largest else jax.lax.min
    initial = (np.asarray(-np.inf if largest else np.inf, x.dtype), np.asarray(False))
    axes = tuple(axis % x.ndim for axis in axes)
    found, is_nan = jax.lax.reduce(
        (x, jnp.isnan(x)), initial, lambda one, other: (compare(one[0], other[0]), one[1] | other[1]), axes
    )
    found = jnp.where(is_nan, jnp.full((), np.nan, x.dtype), found)
    return jnp.expand_dims(found, axes) if keepdims else found


def ordered(x: Array, *, largest: bool) -> Array:
    """Return integers in the order of the numbers `x`, of which NaN is the largest, or the smallest."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    keys = jax.lax.bitcast_convert_type(x, f"int{x.dtype.itemsize * 8}")
    bounds = jnp.iinfo(keys.dtype)
    keys = jnp.where(keys < 0, keys ^ bounds.max, keys)
    return jnp.where(jnp.isnan(x), jnp.full((), bounds.max if largest else bounds.min, keys.dtype), keys)


def from_ordered(keys: Array, dtype: np.dtype) -> Array:
    """Return the numbers of these integers."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return keys
    keys = jnp.where(keys < 0, keys ^ jnp.iinfo(keys.dtype).max, keys)
    return jax.lax.bitcast_convert_type(keys, dtype)
