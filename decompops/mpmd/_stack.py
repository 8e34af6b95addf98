"""Combines arrays of several groups into one array."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._common.agreement import differing, raised_by_all_of
from .._common.check import as_number
from .._common.host import check_no_keys
from ._array import MpmdArray
from ._mesh import names_in, without_axis, without_context


@without_context()
def logically_stacked(
    array: jax.Array | MpmdArray | Sequence[jax.Array],
    mesh: Mesh,
    axis_name: str,
    array_axis: int = 0,
    strict: bool = False,
) -> jax.Array:
    """Stack the arrays of all groups along a new axis, without moving data. All processes of `mesh` must call this.

    **Arguments:**

    - `array`: the array of this process, on its group's mesh. In a run of one process, pass a list of the arrays of all
        groups, or an [`MpmdArray`][decompops.mpmd.MpmdArray].
    - `mesh`: the mesh of the devices of all groups: `MpmdMesh.mesh`, or a result of `MpmdMesh.submesh`.
    - `axis_name`: the group axis of `mesh`.
    - `array_axis`: the position of the new axis in the result, as in `jax.numpy.stack`.
    - `strict`: whether to refuse arrays whose spec contains `axis_name`. With `strict=False`, the mesh of such an array
        must have a group axis of size 1.

    **Returns:** an array of shape `(*shape[:array_axis], mesh.shape[axis_name], *shape[array_axis:])`, sharded over
    `axis_name` along the new axis.

    **Raises:** `ValueError` for an unknown axis, missing devices, and arrays that do not have the same sharding on all
    groups of `mesh`. `TypeError` for an argument of the wrong type, and for random keys. Every process of `mesh` then
    raises an error of the same type.
    """
    with raised_by_all_of(mesh):
        shape, sharding, blocks = _parts(array, mesh, axis_name, array_axis, strict)
    dtype = _local_arrays(array)[0].dtype
    if others := differing(mesh, (shape, str(dtype), str(sharding.spec))):
        raise ValueError(
            f"`array` must have the same shape, dtype and sharding on every process, and `array_axis` must be the "
            f"same; got a result {dtype}{shape} with {sharding.spec} on process {jax.process_index()}, another one on "
            f"{others}."
        )
    return jax.make_array_from_single_device_arrays(shape, sharding, blocks)


def _parts(
    array: Any, mesh: Mesh, axis_name: str, array_axis: int, strict: bool
) -> tuple[tuple[int, ...], NamedSharding, list[jax.Array]]:
    """Return the shape and the sharding of the stacked array, and its blocks in this process."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` must be a jax.sharding.Mesh; got {type(mesh).__name__}.")
    if axis_name not in mesh.axis_names:
        raise ValueError(f"`axis_name` must be one of the mesh axes {mesh.axis_names}; got {axis_name!r}.")
    arrays = _local_arrays(array)
    first = arrays[0]
    array_axis = as_number(array_axis)
    if not isinstance(array_axis, int):
        raise TypeError(f"`array_axis` must be a whole number; got {array_axis!r}.")
    at = array_axis + (first.ndim + 1 if array_axis < 0 else 0)
    if not 0 <= at <= first.ndim:
        raise ValueError(
            f"`array_axis` must be from {-first.ndim - 1} to {first.ndim} for an array of {first.ndim} axes; "
            f"got {array_axis}."
        )
    specs = []
    for other in arrays:
        check_no_keys(other.dtype, "array")
        if not isinstance(other.sharding, NamedSharding):
            raise TypeError(f"`array` must have a NamedSharding; got {other.sharding}.")
        specs.append(other.sharding.spec)
        unknown = sorted(names_in(specs[-1]) - set(mesh.axis_names))
        if unknown:
            raise ValueError(f"`array` must be sharded over axes of `mesh`, {mesh.axis_names}; got also {unknown}.")
        if strict and axis_name in names_in(specs[-1]):
            raise ValueError(f"`array` must not be sharded over {axis_name!r} with `strict=True`; got {specs[-1]}.")
        if (other.shape, other.dtype) != (first.shape, first.dtype):
            raise ValueError(
                f"`array` must hold arrays of the same shape and dtype; got {first.shape} {first.dtype} "
                f"and {other.shape} {other.dtype}."
            )
    entries = [*without_axis(specs[0], axis_name)]
    entries += [None] * (first.ndim - len(entries))
    sharding = NamedSharding(mesh, PartitionSpec(*entries[:at], axis_name, *entries[at:]))
    shape = (*first.shape[:at], mesh.shape[axis_name], *first.shape[at:])
    wanted = sharding.addressable_devices_indices_map(shape)
    blocks = {}
    for shard in (shard for other in arrays for shard in other.addressable_shards):
        index = wanted.get(shard.device)
        if index is None or (*index[:at], *index[at + 1 :]) != shard.index:
            raise ValueError(
                f"`array` must be on groups of `mesh`, with the same sharding in each; got {first.sharding} for {mesh}."
            )
        if shard.device in blocks:
            raise ValueError(f"`array` must hold one array for each group; got two arrays on device {shard.device.id}.")
        blocks[shard.device] = jnp.expand_dims(shard.data, at)
    if set(blocks) != set(wanted):
        missing = sorted(device.id for device in set(wanted) - set(blocks))
        raise ValueError(f"`array` must cover all devices of `mesh` in this process; got no data on devices {missing}.")
    return shape, sharding, [blocks[device] for device in wanted]


def _local_arrays(array: jax.Array | MpmdArray | Sequence[jax.Array]) -> list[jax.Array]:
    if isinstance(array, MpmdArray):
        arrays = list(array.local_arrays.values())
    else:
        arrays = [array] if isinstance(array, jax.Array) else list(array) if isinstance(array, list | tuple) else None
    if arrays is None or any(isinstance(a, Tracer) or not isinstance(a, jax.Array) for a in arrays):
        raise TypeError(f"`array` must be a jax.Array with values, a list of them, or an MpmdArray; got {array!r}.")
    if not arrays:
        raise ValueError("`array` must have a part in this process; got none.")
    return arrays
