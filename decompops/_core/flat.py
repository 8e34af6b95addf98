"""A field as a flat vector, sharded over all devices of the field, and back."""

import functools
import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from .._common.blocks import BatchEntry, Blocks, flat_names, spec_entry
from .._common.host import device_array
from .._common.placement import batch_of, place, place_field
from .._common.sharding import axes_to_map, manual_axes, map_blocks, mesh_in_context
from .reductions import cleared


def ravel(field: Array, mesh: Mesh | AbstractMesh, blocks: Blocks) -> tuple[Array, Callable[[Array], Array]]:
    """Return the blocks of `field` one after the other, with zeros as padding, and the inverse function.

    `jnp.ravel` would store the cells in the order of the grid. For pencils, that order is not the order of the blocks,
    so XLA would gather the field.
    """
    lead = field.ndim - blocks.ndim
    missing = [(0, n - m) for n, m in zip(blocks.shape, field.shape[lead:])]  # The field may be cropped.
    if any(map(any, missing)):
        field = jnp.pad(field, [(0, 0)] * lead + missing)
    field = place_field(cleared(field, blocks.true_shape), mesh_in_context(mesh), blocks, ())
    batch = batch_of(field, lead, mesh, blocks.mesh_axes, (), frozenset(mesh.axis_names) - manual_axes())
    spec = PartitionSpec(*batch, *blocks.spec)
    vector = _in_line(field, mesh, spec)
    return vector, functools.partial(_unravel, mesh=mesh, blocks=blocks, lead=field.shape[:lead], batch=batch)


def _unravel(
    vector: Shaped[Array | np.ndarray, " cells"],
    *,
    mesh: Mesh | AbstractMesh,
    blocks: Blocks,
    lead: tuple[int, ...],
    batch: tuple[BatchEntry, ...],
) -> Shaped[Array, "*field"]:
    size = math.prod((*lead, *blocks.shape))
    if jnp.shape(vector) != (size,):
        raise ValueError(f"`vector` must have shape ({size},), as `ravel` returned it; got {jnp.shape(vector)}.")
    spec = PartitionSpec(*batch, *blocks.spec)
    local = NamedSharding(mesh, spec).shard_shape((*lead, *blocks.shape))
    vector = place(device_array(vector, "vector"), NamedSharding(mesh, _flat(spec)))
    return cleared(_in_blocks(vector, mesh, spec, local), blocks.true_shape)


# Outside of `jit`, JAX compiles a `shard_map` again in each call.
@functools.partial(jax.jit, static_argnames=("mesh", "spec"), inline=True)
def _in_line(field: Array, mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> Array:
    return map_blocks(jnp.ravel, mesh, axes_to_map(mesh, spec), spec, _flat(spec))(field)


@functools.partial(jax.jit, static_argnames=("mesh", "spec", "local"), inline=True)
def _in_blocks(vector: Array, mesh: Mesh | AbstractMesh, spec: PartitionSpec, local: tuple[int, ...]) -> Array:
    flat = _flat(spec)
    return map_blocks(lambda block: block.reshape(local), mesh, axes_to_map(mesh, flat), flat, spec)(vector)


def _flat(spec: Iterable[BatchEntry]) -> PartitionSpec:
    return PartitionSpec(spec_entry(flat_names(spec)))
