"""Keys of `jax.random` whose numbers are the same on every mesh."""

import functools

import jax
import jax.numpy as jnp
from jax import Array


def threefry(key: Array) -> Array:
    """Return a key of the implementation "threefry2x32", which is `key` itself if it has this implementation.

    Under `vmap`, the numbers of other implementations depend on the number of keys. So they would differ on each mesh.
    """
    key = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    if jax.random.key_impl(key) == "threefry2x32":
        return key
    words = jax.random.key_data(key).ravel()
    return functools.reduce(jax.random.fold_in, words, jax.random.key(0, impl="threefry2x32"))
