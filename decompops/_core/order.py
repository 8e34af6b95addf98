"""The primitive `order`: a stable sort of small integers in linear time, by a compiled kernel or by XLA."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._backend.native.points import run_order


def order(keys: Array, kinds: int, threads: int | None = None) -> Array:
    """Return the places of keys, sorted by key. Equal keys stay in their order.

    **Arguments:**

    - `keys`: integers of shape `(n,)` and dtype int32, from 0 to `kinds - 1`.
    - `threads`: the number of threads of the compiled kernel; `None` if XLA sorts.

    **Returns:** integers of shape `(n,)` and dtype int32.
    """
    return order_p.bind(keys, kinds=kinds, threads=threads)


order_p = Primitive("order")


def _order(keys: Array, *, kinds: int, threads: int | None) -> Array:
    return _by_bits(keys, kinds) if threads is None else run_order(keys, kinds, threads)


def _by_bits(keys: Array, kinds: int) -> Array:
    """Sort by one bit after the other, the lowest first. A sort of XLA takes several times as long."""
    places = jnp.arange(keys.shape[0], dtype=np.int32)
    for bit in range((kinds - 1).bit_length()):
        is_one = (keys[places] >> bit) & 1
        before = jnp.cumsum(is_one, dtype=np.int32)  # How many ones there are up to each key, itself included.
        number = jnp.arange(keys.shape[0], dtype=np.int32)
        target = jnp.where(is_one == 1, number[-1:] - before[-1:] + before, number - before)
        places = jnp.zeros_like(places).at[target].set(places, unique_indices=True)
    return places


def _lower(ctx, keys, *, kinds: int, threads: int | None):
    """Lower to a kernel, or for an exported program to operations of XLA, which other installations have as well."""
    threads = None if ctx.module_context.lowering_parameters.for_export else threads
    return mlir.lower_fun(_order, multiple_results=False)(ctx, keys, kinds=kinds, threads=threads)


def _batching_rule(args, dims, *, kinds: int, threads: int | None):
    return jax.lax.map(functools.partial(order, kinds=kinds, threads=threads), jnp.moveaxis(args[0], dims[0], 0)), 0


order_p.def_impl(jax.jit(_order, static_argnames=("kinds", "threads")))
order_p.def_abstract_eval(lambda keys, *, kinds, threads: keys.update(weak_type=False))
mlir.register_lowering(order_p, _lower)
batching.primitive_batchers[order_p] = _batching_rule
