"""The primitive `order`: a stable sort of small integers in linear time, by a compiled kernel or by XLA."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._backend.native.points import run_order


def order(keys: Array, kinds: int, threads: int | None = None) -> tuple[Array, Array]:
    """Return the places of the keys below `kinds`, sorted by key, and how many keys of each kind there are.

    **Arguments:**

    - `keys`: integers of shape `(n,)` and dtype int32.
    - `threads`: the number of threads of the compiled kernel; `None` if XLA sorts.

    **Returns:** integers of dtype int32 and of the shapes `(n,)` and `(kinds,)`. Equal keys stay in their order. What
    follows the last place has no meaning.
    """
    return tuple(order_p.bind(keys, kinds=kinds, threads=threads))


order_p = Primitive("order")
order_p.multiple_results = True


def _order(keys: Array, *, kinds: int, threads: int | None) -> tuple[Array, Array]:
    return _by_bits(keys, kinds) if threads is None else run_order(keys, kinds, threads)


def _by_bits(keys: Array, kinds: int) -> tuple[Array, Array]:
    """Sort by one bit after the other, the lowest first. A sort of XLA takes several times as long."""
    number = jnp.arange(keys.shape[0], dtype=np.int32)
    keys = jnp.where((keys >= 0) & (keys < kinds), keys, kinds)
    places = number
    for bit in range(kinds.bit_length()):
        is_one = (keys[places] >> bit) & 1
        before = jnp.cumsum(is_one, dtype=np.int32)  # How many ones there are up to each key, itself included.
        target = jnp.where(is_one == 1, number[-1:] - before[-1:] + before, number - before)
        places = jnp.zeros_like(places).at[target].set(places, unique_indices=True)
    found = jnp.zeros(kinds, np.int32).at[keys].add(1, mode="drop")
    return places, found


def _lower(ctx, keys, *, kinds: int, threads: int | None):
    """Lower to a kernel, or for an exported program to operations of XLA, which other installations have as well."""
    threads = None if ctx.module_context.lowering_parameters.for_export else threads
    return mlir.lower_fun(_order, multiple_results=True)(ctx, keys, kinds=kinds, threads=threads)


def _batching_rule(args, dims, *, kinds: int, threads: int | None):
    one = functools.partial(order, kinds=kinds, threads=threads)
    return jax.lax.map(one, jnp.moveaxis(args[0], dims[0], 0)), (0, 0)


def _abstract_value(keys, *, kinds: int, threads: int | None):
    return keys.update(weak_type=False), keys.update(shape=(kinds,), weak_type=False)


order_p.def_impl(jax.jit(_order, static_argnames=("kinds", "threads")))
order_p.def_abstract_eval(_abstract_value)
mlir.register_lowering(order_p, _lower)
batching.primitive_batchers[order_p] = _batching_rule
