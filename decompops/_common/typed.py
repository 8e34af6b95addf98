"""The sharding in the type of an array. JAX's types name Explicit mesh axes only; functions here ignore Auto axes."""

import functools
import itertools
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from . import compat
from .blocks import BatchEntry
from .sharding import entries_of, result_sharding, varying_over


def struct_of(x: Array, sharding: NamedSharding | None, mesh: Mesh | AbstractMesh) -> jax.ShapeDtypeStruct:
    """Return `x` as a `ShapeDtypeStruct`; on Explicit axes, with the sharding in its type instead of `sharding`."""
    if AxisType.Explicit in mesh.axis_types:
        typed = jax.typeof(x).sharding
        sharding = None if typed.mesh.empty else NamedSharding(mesh, typed.spec)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def whole_along(x: Array, *axes: int) -> Array:
    """Return `x` with array axes `axes` not sharded. Only shardings in the type of `x` are removed."""
    sharding = jax.typeof(x).sharding
    entries, whole = entries_of(sharding, x.ndim), [axis % x.ndim for axis in axes]
    spec = PartitionSpec(*(None if axis in whole else entry for axis, entry in enumerate(entries)))
    return x if spec == PartitionSpec(*entries) else jax.sharding.reshard(x, NamedSharding(sharding.mesh, spec))


def sharded_like(x: Array, like: Array) -> Array:
    """Return `x` with the sharding in the type of `like`, an array of the same shape."""
    sharding = jax.typeof(like).sharding
    return x if sharding.mesh.empty or jax.typeof(x).sharding == sharding else jax.sharding.reshard(x, sharding)


def zeros_like(x: Array) -> Array:
    """Return zeros with the dtype and the sharding in the type of `x`.

    In a compiled program without `jax.set_mesh`, `jnp.zeros_like` has no mesh in its type with JAX 0.12, and one number
    on the mesh makes it replicated: XLA then gathers fields in loops that start from it.
    """
    return sharded_like(jnp.zeros_like(x), x)


def reshape_behind(x: Array, lead: int, shape: tuple[int, ...], names: tuple[BatchEntry, ...]) -> Array:
    """Reshape all but the first `lead` axes of `x` to `shape`, sharded over mesh axes `names`."""
    sharding = jax.typeof(x).sharding
    new = (*x.shape[:lead], *shape)
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return jax.lax.reshape(x, new)
    return jax.lax.reshape(x, new, out_sharding=result_sharding(sharding, lead, names))


def at_places(x: Array, places: np.ndarray) -> Array:
    """Return `x[..., *places]`, the numbers at some places of the last axes. Row i of `places` indexes one such axis.

    If an Explicit mesh axis shards one of the first axes, JAX cannot differentiate the expression itself.
    """
    sharding, lead = jax.typeof(x).sharding, x.ndim - len(places)
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return x[..., *places]
    return x.at[..., *places].get(out_sharding=result_sharding(sharding, lead, (None,)))


def as_on_auto_axes(function: Callable[[Array], Array], x: Array) -> Array:
    """Return `function(x)`, which has the shape and sharding of `x`. XLA chooses the shardings inside `function`."""
    sharding = jax.typeof(x).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return function(x)
    return cast(Callable, jax.sharding.auto_axes(function, out_sharding=sharding))(x)


def on_one_mesh(*arrays: Array) -> tuple[Array, ...]:
    """Return arrays that broadcast against each other, all with an Explicit mesh in their types if one of them has it.

    Outside of `jax.set_mesh`, the types of other arrays have no mesh, and JAX does not update one by the other.
    """
    typed = [x for x in arrays if AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types]
    if not typed:
        return arrays
    each = [entries_of(jax.typeof(x).sharding, x.ndim)[::-1] for x in typed]
    names = [next(filter(None, own), None) for own in itertools.zip_longest(*each)]  # From the last axis to the first.
    shape = np.broadcast_shapes(*(x.shape for x in arrays))

    def fitted(x: Array) -> Array:
        own = [name if n == m else None for n, m, name in zip(x.shape[::-1], shape[::-1], names)]
        return jax.sharding.reshard(x, NamedSharding(jax.typeof(typed[0]).sharding.mesh, PartitionSpec(*own[::-1])))

    return tuple(fitted(x) if jax.typeof(x).sharding.mesh.empty else x for x in arrays)


def equally_varying(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays, typed as varying over every manual mesh axis that one of them varies over."""
    every = frozenset().union(*(jax.typeof(x).manual_axis_type.varying for x in arrays))
    return tuple(varying_over(x, every) for x in arrays)


def plain(x: Array) -> Array:
    """Return `x` without the reduced mesh axes in its type. `x` is replicated over these axes anyway.

    Raises `ValueError` for unreduced arrays, which hold the terms of a sum that is not yet computed.
    """
    sharding = jax.typeof(x).sharding
    if not (sharding.spec.unreduced or sharding.spec.reduced):
        return x
    spec = PartitionSpec(*compat.partitions(sharding.spec))
    if sharding.spec.unreduced:
        raise ValueError(
            f"`x` must not be unreduced; got {sharding.spec}. Sum it over the mesh axes "
            f"{sorted(sharding.spec.unreduced)} first: `jax.sharding.reshard(x, jax.{spec})`."
        )
    retyped = functools.partial(jax.sharding.reshard, out_shardings=NamedSharding(sharding.mesh, spec))
    return compat.by_parts(retyped, x)


def batch_in_type(x: Array, ndim: int) -> PartitionSpec:
    """Return the mesh axes that shard each batch axis of a field with `ndim` grid axes, as far as its type says so."""
    return result_sharding(jax.typeof(x).sharding, x.ndim - ndim, ()).spec
