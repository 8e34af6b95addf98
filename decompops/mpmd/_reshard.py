"""Moves whole trees of arrays between all devices and groups of them, and between groups."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ._array import MpmdArray
from ._batches import agreed_threshold, batches
from ._mesh import Device, MpmdMesh, MpmdSharding, names_of
from ._transfer import Route, find_route, transfer


Movable = jax.Array | MpmdArray


def spmd_to_mpmd_reshard(mpmd_mesh: MpmdMesh, tree: PyTree, shardings: PyTree, threshold: int | None = None) -> PyTree:
    """Hand the arrays of one program on all devices over to groups that run different ones.

    **Arguments:**

    - `mpmd_mesh`: the groups.
    - `tree`: a PyTree of arrays on any mesh of the same devices, or of NumPy arrays and numbers. It is consumed.
    - `shardings`: an [`MpmdSharding`][decompops.mpmd.MpmdSharding] for each array, or for each part of the tree.
    - `threshold`: how many bytes a device may need beside what it already holds. Arrays are moved in batches below it,
        the largest of each group first; one that is larger by itself is moved alone. By default a third of the least
        free memory of all devices, or 1 GiB where the platform does not say.

    **Returns:** the tree, of [`MpmdArray`][decompops.mpmd.MpmdArray]s.

    Every process of the mesh must call this with the same tree of shapes.

    **Raises** `ValueError` and `TypeError` for what is no array or sharding, for one that lies elsewhere or does not
    divide the array, and where processes differ. Nothing is consumed then.
    """
    targets, treedef = _leaves("shardings", shardings, tree, MpmdSharding)
    for target in targets:
        if target.mpmd_mesh != mpmd_mesh:
            raise ValueError(f"`shardings` must be on {mpmd_mesh}; got {target.mpmd_mesh}.")
    arrays = [_on_devices(leaf, mpmd_mesh) for leaf in treedef.flatten_up_to(tree)]
    routes = [_route(array, target.sharding) for array, target in zip(arrays, targets)]
    groups = [target.mesh_ids[0] for target in targets]
    moved = _in_batches(mpmd_mesh, arrays, routes, groups, threshold)
    return treedef.unflatten([_grouped(array, target) for array, target in zip(moved, targets)])


def mpmd_to_spmd_reshard(mpmd_mesh: MpmdMesh, tree: PyTree, shardings: PyTree, threshold: int | None = None) -> PyTree:
    """Gather what groups have into arrays for one program on all devices.

    **Arguments:**

    - `mpmd_mesh`: the groups.
    - `tree`: a PyTree of [`MpmdArray`][decompops.mpmd.MpmdArray]s. It is consumed. Of an array that several groups have
        each device takes the nearest copy.
    - `shardings`: a `jax.sharding.NamedSharding` for each array, or for each part of the tree.
    - `threshold`: as for [`spmd_to_mpmd_reshard`][decompops.mpmd.spmd_to_mpmd_reshard].

    **Returns:** the tree, of `jax.Array`s.

    Every process of the mesh must call this with the same tree of shapes.

    **Raises** `ValueError` and `TypeError` as `spmd_to_mpmd_reshard` does.
    """
    targets, treedef = _leaves("shardings", shardings, tree, NamedSharding)
    arrays = treedef.flatten_up_to(tree)
    for array in arrays:
        if not isinstance(array, MpmdArray):
            raise TypeError(f"`tree` must hold MpmdArrays; got {type(array).__name__}.")
        if array.mpmd_sharding.mpmd_mesh != mpmd_mesh:
            raise ValueError(f"`tree` must hold arrays on {mpmd_mesh}; got {array.mpmd_sharding.mpmd_mesh}.")
    routes = [_route(array, target) for array, target in zip(arrays, targets)]
    groups = [array.mpmd_idxs[0] for array in arrays]
    return treedef.unflatten(_in_batches(mpmd_mesh, arrays, routes, groups, threshold))


def reshard(tree: PyTree, target: PyTree, *, donate: bool = False) -> PyTree:
    """Move arrays to other devices, divided in another way: a field from one group to another, pencils to slabs.

    **Arguments:**

    - `tree`: a PyTree of `jax.Array`s and [`MpmdArray`][decompops.mpmd.MpmdArray]s. In a run of several processes
        these know shape, dtype and place where this process has no part of them.
    - `target`: for each array, or for each part of the tree, a `jax.sharding.NamedSharding` on any mesh, such as
        `decomposition.sharding("z")`, or an [`MpmdSharding`][decompops.mpmd.MpmdSharding].
    - `donate`: whether the arrays are consumed.

    **Returns:** the tree: a `jax.Array` for a `NamedSharding`, an `MpmdArray` for an `MpmdSharding`. Where this process
    has no device of a target, an array without data.

    Cells go straight from the devices that have them to those that want them, each once, and not through the host.
    All processes with a device on either side must call it, in the same order.

    In `jax.grad`, `jax.jvp` and `jax.vmap` it is `jax.device_put`, which differentiates in both modes, but only within
    one process and to a `NamedSharding`. With Explicit axes, set the mesh on which the loss comes to be:
    `with jax.set_mesh(target.mesh)`. A jitted function runs on one set of devices: call this outside `jax.jit`.

    **Raises** `ValueError` and `TypeError` for what is no array or sharding, and for a target that does not divide the
    array.
    """
    targets, treedef = _leaves("target", target, tree, NamedSharding, MpmdSharding)
    leaves = treedef.flatten_up_to(tree)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return treedef.unflatten([_put(leaf, target) for leaf, target in zip(leaves, targets)])
    shardings = [target.sharding if isinstance(target, MpmdSharding) else target for target in targets]
    routes = [_route(array, sharding) for array, sharding in zip(leaves, shardings)]
    consumed = [donate and last for last in _last_uses(leaves)]
    moved = transfer([_blocks(array) for array in leaves], routes, donate=consumed)
    return treedef.unflatten(
        [_grouped(array, at) if isinstance(at, MpmdSharding) else array for array, at in zip(moved, targets)]
    )


def _leaves(name: str, values: PyTree, tree: PyTree, *kinds: type) -> tuple[list, Any]:
    """One of `values`, which may be given for whole parts of `tree`, for each of its leaves; and its structure."""
    treedef = jax.tree.structure(tree, is_leaf=lambda x: isinstance(x, MpmdArray))
    try:
        leaves = jax.tree.leaves(jax.tree.broadcast(values, treedef.unflatten(range(treedef.num_leaves))))
    except ValueError as error:
        raise ValueError(f"`{name}` must have the structure of `tree`, or of its beginning: {error}") from error
    for leaf in leaves:
        if not isinstance(leaf, kinds):
            wanted = " or ".join(f"{kind.__name__}s" for kind in kinds)
            raise TypeError(f"`{name}` must hold {wanted}; got {leaf!r}.")
    return leaves, treedef


def _on_devices(leaf: Any, mpmd_mesh: MpmdMesh) -> jax.Array:
    """A leaf as an array on the devices of the mesh; what has no place yet is the same on all of them."""
    if isinstance(leaf, Tracer):
        raise TypeError(f"`tree` must hold arrays with values, outside of JAX's transformations; got {leaf}.")
    if isinstance(leaf, MpmdArray) or not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
        raise TypeError(f"`tree` must hold arrays and numbers; got {type(leaf).__name__}.")
    if isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding):
        elsewhere = leaf.sharding.device_set - set(mpmd_mesh.mesh.devices.flat)
        if elsewhere:
            raise ValueError(
                f"`tree` must lie on devices of {mpmd_mesh}; got an array on {sorted(map(str, elsewhere))}."
            )
        return leaf
    if isinstance(leaf, jax.Array) and leaf.committed and jax.process_count() > 1:
        raise ValueError(f"`tree` must hold arrays with a NamedSharding, or with none; got {leaf.sharding}.")
    return jax.device_put(leaf, NamedSharding(mpmd_mesh.mesh, PartitionSpec()))


def _route(array: Movable, target: NamedSharding) -> Route:
    if not isinstance(array, Movable) or not isinstance(array.sharding, NamedSharding):
        found = array.sharding if isinstance(array, jax.Array) else type(array).__name__
        raise TypeError(f"What is moved must be an array with a NamedSharding; got {found}.")
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"Arrays of {array.dtype} cannot be moved; take their `jax.random.key_data`.")
    if array.is_deleted():
        raise RuntimeError(
            f"{array!r} has been deleted." if isinstance(array, MpmdArray) else "Array has been deleted."
        )
    parts = [math.prod(target.mesh.shape[name] for name in names) for names in map(names_of, target.spec)]
    if len(parts) > array.ndim or any(length % n for length, n in zip(array.shape, parts)):
        raise ValueError(
            f"The target must divide an array of shape {array.shape}; got {target.spec} on {dict(target.mesh.shape)}."
        )
    return find_route(array.shape, np.dtype(array.dtype), array.sharding, target)


def _in_batches(
    mpmd_mesh: MpmdMesh,
    arrays: Sequence[Movable],
    routes: Sequence[Route],
    groups: Sequence[int],
    threshold: int | None,
) -> list[jax.Array]:
    """Move and consume `arrays`, in batches that every device has room for."""
    threshold = agreed_threshold(mpmd_mesh, routes, threshold)
    last = _last_uses(arrays)
    moved: dict[int, jax.Array] = {}
    for batch in batches([route.working_bytes for route in routes], groups, threshold):
        found = transfer(
            [_blocks(arrays[i]) for i in batch], [routes[i] for i in batch], donate=[last[i] for i in batch]
        )
        # The next batch needs the room.
        moved |= zip(batch, jax.block_until_ready(found))
    return [moved[i] for i in range(len(arrays))]


def _last_uses(arrays: Sequence[Movable]) -> list[bool]:
    """Whether each array does not come again: a tree may hold one twice."""
    last = {id(array): position for position, array in enumerate(arrays)}
    return [last[id(array)] == position for position, array in enumerate(arrays)]


def _blocks(array: Movable) -> dict[Device, jax.Array]:
    if isinstance(array, MpmdArray):
        return array.addressable_blocks
    return {shard.device: shard.data for shard in array.addressable_shards}


def _grouped(array: jax.Array, sharding: MpmdSharding) -> MpmdArray:
    """An array over the devices of several groups as one that each of them has."""
    blocks = _blocks(array)
    arrays = []
    for idx in sharding.mesh_ids:
        at = sharding.group_sharding(idx)
        mine = [blocks[device] for device in at.addressable_devices]
        if mine:
            arrays.append(jax.make_array_from_single_device_arrays(array.shape, at, mine))
    return MpmdArray(arrays, sharding, array.shape, array.dtype)


def _put(leaf: Any, target: NamedSharding | MpmdSharding) -> jax.Array:
    if isinstance(target, MpmdSharding):
        raise TypeError("`target` must be a jax.sharding.NamedSharding in JAX's transformations; got an MpmdSharding.")
    if not target.is_fully_addressable:
        raise ValueError("In JAX's transformations `reshard` works within one process; got devices of several.")
    return jax.device_put(leaf, target)
