"""The sum of values over all particles."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._backend.base import Caller
from .._core.reductions import result_dtype, wide
from .._core.rows import everywhere
from ._home import Home
from ._particles import Particles


@eqx.filter_jit
def in_use(home: Home, p: Particles, values: Array) -> Array:
    """Return `values` with zeros in slots without a particle. There, NaN would make derivatives of factors NaN."""

    def on_block(counts: Array, values: Array) -> Array:
        live = jnp.arange(values.shape[0], dtype=np.int32) < counts[home.me()]
        return jnp.where(jnp.expand_dims(live, tuple(range(1, values.ndim))), values, jnp.zeros_like(values))

    return home.mapped(on_block, (PartitionSpec(), home.spec), home.spec)(p.counts, *home.placed(values))


@eqx.filter_jit
def summed(home: Home, p: Particles, values: Array, caller: Caller) -> Array:
    """Return the sum of `values` over all particles. See `ParticleMesh.sum`."""
    group, dtype = home.group("ParticleMesh.sum", caller), result_dtype(jnp.sum, values.dtype)

    def on_block(values: Array) -> Array:
        own = jnp.sum(values.astype(wide(values.dtype)), axis=0)
        return jnp.sum(everywhere(group, own), axis=0).astype(dtype)

    return home.mapped(on_block, (home.spec,), PartitionSpec())(in_use(home, p, values))


def mean(home: Home, p: Particles, values: Array, caller: Caller) -> Array:
    """Return the mean of `values` over all particles. See `ParticleMesh.mean`."""
    dtype = values.dtype if jnp.issubdtype(values.dtype, jnp.inexact) else jnp.zeros(()).dtype
    total = summed(home, p, values.astype(wide(dtype)), caller)
    # The number of particles may be too large for an integer of 32 bits, and for half precision.
    return (total / jnp.sum(p.counts.astype(total.dtype))).astype(dtype)
