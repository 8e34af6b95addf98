"""Keys of `jax.random`: the same on every process, with numbers that are the same on every mesh."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh

from .agreement import check_same_array
from .check import check_key
from .sharding import is_eager


_SEED = (
    "each process draws its own blocks from it",
    "Write the same seed on every process, such as `jax.random.key(0)`, also if you want other numbers in each block.",
)


def agreed_key(mesh: Mesh | AbstractMesh | None, key: Any) -> Any:
    """Check the `key` of a function that draws random arrays on a mesh, and return it.

    Raises `TypeError` if it is no key of JAX, and `ValueError` on every process of the mesh if their keys differ.
    """
    check_key("key", key)
    if jax.process_count() == 1 or not is_eager() or isinstance(key, Tracer):
        return key
    # Under `jax.set_mesh`, a new key lies on all devices. JAX does not compare what the processes put there.
    if isinstance(key, np.ndarray) or key.is_fully_addressable or key.is_fully_replicated:
        check_same_words(mesh, np.asarray(jax.random.key_data(key)))
    return key


def check_same_words(mesh: Mesh | AbstractMesh | None, words: Any) -> None:
    """Raise `ValueError` on every process of the mesh if the integers that make up a key differ between processes.

    Otherwise, random arrays would be mixtures of several draws. Traced integers are not compared.
    """
    if isinstance(mesh, Mesh) and jax.process_count() > 1 and not any(isinstance(word, Tracer) for word in words):
        check_same_array(mesh, np.asarray(words), "key", _SEED)


def threefry(key: Array) -> Array:
    """Return a key of the implementation "threefry2x32", which is `key` itself if it has this implementation.

    Under `vmap`, the numbers of other implementations depend on the number of keys. So they would differ on each mesh.
    """
    key = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    if jax.random.key_impl(key) == "threefry2x32":
        return key
    words = jax.random.key_data(key).ravel()
    return functools.reduce(jax.random.fold_in, words, jax.random.key(0, impl="threefry2x32"))
