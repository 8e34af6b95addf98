"""Moves PyTrees of arrays between groups of devices, and between a group and all devices."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from .._common.agreement import contents, raised_by_all_of
from .._common.check import check_untraced
from .._common.host import check_no_keys, fitting, host_array
from .._core.structure import Structure
from ._array import MpmdArray
from ._batches import agreed_threshold, batches, check_threshold
from ._mesh import Device, MpmdMesh, MpmdSharding, check_divides, check_spec
from ._transfer import Route, find_route, transfer


Movable = jax.Array | MpmdArray


def spmd_to_mpmd_reshard(mpmd_mesh: MpmdMesh, tree: PyTree, shardings: PyTree, threshold: int | None = None) -> PyTree:
    """Move arrays from one program on all devices to groups of devices that run different programs.

    Every process of the mesh must call this function with a tree of the same structure, shapes and dtypes.

    **Arguments:**

    - `mpmd_mesh`: the groups.
    - `tree`: a PyTree, such as an `equinox.Module`. The tree may hold `jax.Array`s on any mesh of the same devices.
        These `jax.Array`s are consumed: they are deleted after the move. The tree may also hold NumPy arrays, which
        must be the same in every process. All other leaves stay as they are.
    - `shardings`: an [`MpmdSharding`][decompops.mpmd.MpmdSharding] for each array, or for each part of the tree.
    - `threshold`: the largest number of bytes that a device may need in addition to the memory in use. Arrays are moved
        in batches within this limit. In each group, the largest arrays are moved first. An array that needs more than
        the limit is moved alone. The default is a third of the free memory of the device with the least free memory, or
        1 GiB if the platform does not report free memory.

    **Returns:** the tree, with an [`MpmdArray`][decompops.mpmd.MpmdArray] for each array.

    **Raises:** `ValueError` and `TypeError` for arrays of other libraries, for `shardings` that are not shardings, are
    on other devices or do not divide the array, and if the arguments of the processes differ. Every process then raises
    an error of the same type, and no array is consumed.
    """
    _check_mesh(mpmd_mesh)
    with raised_by_all_of(mpmd_mesh.mesh):
        check_threshold(threshold)
        arrays, targets, rebuild = _matched(tree, "shardings", shardings, MpmdSharding)
        for target in targets:
            if target.mpmd_mesh != mpmd_mesh:
                raise ValueError(f"`shardings` must be on {mpmd_mesh}; got {target.mpmd_mesh}.")
        placed = {id(array): _on_devices(array, mpmd_mesh) for array in arrays}
        freights = [
            _freight("tree", placed[id(array)], "shardings", target.sharding, target.mesh_ids[0])
            for array, target in zip(arrays, targets)
        ]
    moved = _in_batches(mpmd_mesh, freights, threshold)
    for array in arrays:
        if isinstance(array, jax.Array):
            array.delete()
    return rebuild([_grouped(array, target) for array, target in zip(moved, targets)])


def mpmd_to_spmd_reshard(mpmd_mesh: MpmdMesh, tree: PyTree, shardings: PyTree, threshold: int | None = None) -> PyTree:
    """Move arrays from groups of devices to one program on all devices.

    Every process of the mesh must call this function with a tree of the same structure, shapes and dtypes.

    **Arguments:**

    - `mpmd_mesh`: the groups.
    - `tree`: a PyTree of [`MpmdArray`][decompops.mpmd.MpmdArray]s, which are consumed: they are deleted after the move.
        If several groups have a copy of an array, each device takes the nearest copy. All other leaves stay as they
        are.
    - `shardings`: a `jax.sharding.NamedSharding` for each array, or for each part of the tree.
    - `threshold`: the same limit as in [`spmd_to_mpmd_reshard`][decompops.mpmd.spmd_to_mpmd_reshard].

    **Returns:** the tree, with a `jax.Array` for each array.

    **Raises:** the same errors as `spmd_to_mpmd_reshard`.
    """
    _check_mesh(mpmd_mesh)
    with raised_by_all_of(mpmd_mesh.mesh):
        check_threshold(threshold)
        arrays, targets, rebuild = _matched(tree, "shardings", shardings, NamedSharding)
        for array in arrays:
            if not isinstance(array, MpmdArray):
                raise TypeError(f"`tree` must hold MpmdArrays; got {type(array).__name__}.")
            if array.mpmd_sharding.mpmd_mesh != mpmd_mesh:
                raise ValueError(f"`tree` must hold arrays on {mpmd_mesh}; got {array.mpmd_sharding.mpmd_mesh}.")
        freights = [
            _freight("tree", array, "shardings", target, array.mpmd_idxs[0]) for array, target in zip(arrays, targets)
        ]
    moved = _in_batches(mpmd_mesh, freights, threshold)
    for array in arrays:
        array.delete()
    return rebuild(moved)


def reshard(tree: PyTree, target: PyTree, *, donate: bool = False) -> PyTree:
    """Move arrays to other devices or to another sharding, for example between groups, or from pencils to slabs.

    **Arguments:**

    - `tree`: a PyTree, such as an `equinox.Module`, of `jax.Array`s and [`MpmdArray`][decompops.mpmd.MpmdArray]s. In a
        run of several processes, all data of an array may be in other processes; this process then has only the shape,
        dtype and sharding of the array. All other leaves stay as they are.
    - `target`: for each array, or for each part of the tree, one of three: a `jax.sharding.NamedSharding` on any mesh,
        such as `decomposition.sharding("z")`; an [`MpmdSharding`][decompops.mpmd.MpmdSharding]; or the `in_structure`
        of the operator, layer or equation that takes the array. All arrays are checked against their structures before
        any array is moved.
    - `donate`: whether the arrays of `tree` are consumed: their memory is reused, and they are deleted.

    **Returns:** the tree, with an `MpmdArray` for each `MpmdSharding` and a `jax.Array` for each other target. In a
    process without a device of the target, the array has no data.

    Elements move directly from device to device, not through the host, and no device receives an element twice. All
    processes with a device in the source or the target must make the same calls of `reshard`, in the same order.

    Call `reshard` outside `jax.jit`, because a jitted function runs on one set of devices. Inside `jax.grad` and
    `jax.jvp`, `reshard` moves traced arrays by `jax.device_put`, which has derivatives in forward and in reverse mode.
    For traced arrays, `reshard` works only within one process, accepts no `MpmdSharding`, and ignores `donate`.

    For meshes with Explicit axes, call `reshard` without `jax.set_mesh`. JAX differentiates a loss on an Explicit mesh
    only if that mesh is the ambient mesh, and JAX then computes on no other mesh. To differentiate a loss that uses
    several meshes, therefore move the final value of the loss to a mesh with Auto axes, such as
    `Mesh(jax.devices()[:1], "device")`.

    **Raises:** `ValueError` and `TypeError` for arrays of other libraries, for arrays without a `NamedSharding`, for a
    `target` that is neither a sharding nor a structure or does not divide the array, and for an array that does not
    match its structure.
    """
    arrays, targets, rebuild = _matched(tree, "target", target, NamedSharding, MpmdSharding, Structure)
    targets = [_sharding(array, target) for array, target in zip(arrays, targets)]
    if any(isinstance(array, Tracer) for array in arrays):
        return rebuild([_put(array, target) for array, target in zip(arrays, targets)])
    routes = [
        _route("tree", array, "target", target.sharding if isinstance(target, MpmdSharding) else target)
        for array, target in zip(arrays, targets)
    ]
    moved = transfer([_blocks(array) for array in arrays], routes, donate=[donate and last for last in _last(arrays)])
    for array in arrays if donate else ():
        array.delete()
    return rebuild(
        [_grouped(array, at) if isinstance(at, MpmdSharding) else array for array, at in zip(moved, targets)]
    )


def _matched(tree: PyTree, name: str, values: PyTree, *kinds: type) -> tuple[list, list, Callable[[list], PyTree]]:
    """Return the arrays of `tree`, the value for each array, and a function that replaces the arrays in the tree.

    `values` may hold one value for a whole part of `tree`. Each value must be an instance of one of `kinds`.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, MpmdArray))
    # Arrays of other libraries count as arrays, so that they raise an error later. Otherwise `reshard` would silently
    # leave these arrays where they are.
    are_arrays = [hasattr(leaf, "__array__") and not isinstance(leaf, type) for leaf in leaves]
    arrays = [leaf for leaf, is_array in zip(leaves, are_arrays) if is_array]
    if not arrays and jax.tree_util.treedef_is_leaf(treedef):
        raise TypeError(f"`tree` must hold arrays; got {tree!r}.")

    def rebuild(arrays: list) -> PyTree:
        new = iter(arrays)
        return treedef.unflatten([next(new) if is_array else leaf for leaf, is_array in zip(leaves, are_arrays)])

    # A leaf that is not an array becomes `None`. JAX treats `None` as an empty tree, which accepts any value.
    places = treedef.unflatten([is_array or None for is_array in are_arrays])
    if hasattr(values, "in_structure"):
        raise TypeError(f"`{name}` must be a sharding or a structure; got {values!r}. Pass its `in_structure`.")
    try:
        matched = jax.tree.leaves(jax.tree.broadcast(values, places))
    except ValueError as error:
        raise ValueError(f"`{name}` must have the tree structure of `tree`, or be a prefix of it: {error}") from error
    for value in matched:
        if not isinstance(value, kinds):
            wanted = " or ".join(f"{kind.__name__}s" for kind in kinds)
            raise TypeError(f"`{name}` must hold {wanted}; got {value!r}.")
    return arrays, matched, rebuild


def _check_mesh(mpmd_mesh: MpmdMesh) -> None:
    if not isinstance(mpmd_mesh, MpmdMesh):
        raise TypeError(f"`mpmd_mesh` must be an MpmdMesh; got {type(mpmd_mesh).__name__}.")


def _on_devices(leaf: Any, mpmd_mesh: MpmdMesh) -> jax.Array | np.ndarray:
    """Return a leaf as an array with a `NamedSharding`, or as a NumPy array if each process has its own copy."""
    check_untraced("tree", leaf, "spmd_to_mpmd_reshard")
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise TypeError(f"`tree` must hold arrays of JAX and NumPy; got {type(leaf).__name__}.")
    if not isinstance(leaf, jax.Array):
        array = fitting(host_array(leaf, "tree"), "tree")
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    check_no_keys(leaf.dtype, "tree")
    elsewhere = leaf.sharding.device_set - set(mpmd_mesh.mesh.devices.flat)
    if elsewhere and leaf.committed:
        raise ValueError(f"`tree` must be on devices of {mpmd_mesh}; got an array on {sorted(map(str, elsewhere))}.")
    if isinstance(leaf.sharding, NamedSharding):
        return leaf
    if jax.process_count() > 1 or elsewhere:
        if leaf.committed:
            raise ValueError(
                f"`tree` must hold arrays that have a NamedSharding or are not committed to a device; got "
                f"{leaf.sharding}. Move the array by `jax.device_put` to a NamedSharding."
            )
        return host_array(leaf)  # Each process has its own copy of an uncommitted array.
    (device,) = leaf.sharding.device_set
    alone = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())
    return jax.make_array_from_single_device_arrays(leaf.shape, alone, [leaf])


class Freight(NamedTuple):
    """An array to move to `target`: along `route`, or from the host if `route` is `None`.

    `batches` counts the array for the group with the index `group`.
    """

    array: Movable | np.ndarray
    target: NamedSharding
    route: Route | None
    group: int

    @property
    def working_bytes(self) -> int:
        """The largest number of additional bytes that a device needs for the move."""
        if self.route is not None:
            return self.route.working_bytes
        return math.prod(self.target.shard_shape(self.array.shape)) * self.array.dtype.itemsize

    def describe(self) -> tuple:
        """Return the properties that must be the same in all processes."""
        source = "host" if self.route is None else self.route.source.devices_indices_map(self.array.shape)
        target = self.target.devices_indices_map(self.array.shape)
        numbers = contents(self.array) if isinstance(self.array, np.ndarray) else None
        return self.array.shape, str(self.array.dtype), source, target, numbers


def _freight(name: str, array: Movable | np.ndarray, target_name: str, target: NamedSharding, group: int) -> Freight:
    if isinstance(array, np.ndarray):
        check_divides(target_name, target, array.shape)
        return Freight(array, target, None, group)
    return Freight(array, target, _route(name, array, target_name, target), group)


def _route(name: str, array: Movable, target_name: str, target: NamedSharding) -> Route:
    """Return the route of an array. All checks come first, because a later error could lose a consumed array."""
    at = array.sharding if isinstance(array, Movable) else type(array).__name__
    if not isinstance(at, NamedSharding):
        raise TypeError(
            f"`{name}` must hold arrays with a NamedSharding; got {at}. Move the array by `jax.device_put` to a "
            "NamedSharding."
        )
    if array.is_deleted():
        raise RuntimeError(
            f"`{name}` holds an array of shape {array.shape} that has been deleted, perhaps because it was donated. "
            "Pass an array that still has values."
        )
    check_no_keys(array.dtype, name)
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise TypeError(f"`{name}` holds an array of {array.dtype}; set `jax_enable_x64` to move it.")
    if not isinstance(target.mesh, Mesh):
        raise TypeError(f"`{target_name}` must be on a mesh of devices; got {target.mesh}.")
    check_divides(target_name, target, array.shape)
    check_spec(name, at.spec)
    usual = jax.local_devices()[0].default_memory().kind
    for what, sharding in ((name, at), (target_name, target)):
        if sharding.memory_kind not in (None, usual):
            raise ValueError(f"`{what}` must be in the devices' own memory, {usual!r}; got {sharding.memory_kind!r}.")
    return find_route(array.shape, np.dtype(array.dtype), at, target)


def _in_batches(mpmd_mesh: MpmdMesh, freights: Sequence[Freight], threshold: int | None) -> list[jax.Array]:
    """Move all arrays, in batches that fit into the memory of every device. The arrays are consumed."""
    described = [freight.describe() for freight in freights] if mpmd_mesh.mesh.is_multi_process else []
    threshold = agreed_threshold(mpmd_mesh, described, threshold)
    last = _last([freight.array for freight in freights])
    moved: dict[int, jax.Array] = {}
    sizes, groups = [freight.working_bytes for freight in freights], [freight.group for freight in freights]
    for batch in batches(sizes, groups, threshold):
        away = [i for i in batch if freights[i].route is not None]
        sources: Any = [_blocks(freights[i].array) for i in away]
        routes: Any = [freights[i].route for i in away]
        moved |= zip(away, transfer(sources, routes, donate=[last[i] for i in away]))
        for i, blocks in zip(away, sources):
            for block in blocks.values() if last[i] else ():
                block.delete()
        moved |= {i: _from_host(freights[i]) for i in batch if freights[i].route is None}
        # The next batch needs the memory that this batch frees, so the loop waits.
        jax.block_until_ready([moved[i] for i in batch])
    return [moved[i] for i in range(len(freights))]


def _from_host(freight: Freight) -> jax.Array:
    array: Any = freight.array
    return jax.make_array_from_callback(array.shape, freight.target, lambda index: array[index], dtype=array.dtype)


def _last(arrays: Sequence[Movable | np.ndarray]) -> list[bool]:
    """Return, for each array, whether no later array has the same buffers. A tree may hold the same array twice."""

    def parts(array: Movable | np.ndarray) -> list[int]:
        return list(map(id, array.local_arrays.values())) if isinstance(array, MpmdArray) else [id(array)]

    last = {part: position for position, array in enumerate(arrays) for part in parts(array)}
    return [all(last[part] == position for part in parts(array)) for position, array in enumerate(arrays)]


def _blocks(array: Any) -> dict[Device, jax.Array]:
    arrays = array.local_arrays.values() if isinstance(array, MpmdArray) else [array]
    return {shard.device: shard.data for local in arrays for shard in local.addressable_shards}


def _grouped(array: jax.Array, sharding: MpmdSharding) -> MpmdArray:
    """Turn an array with a copy in each group of `sharding` into an `MpmdArray`."""
    blocks = _blocks(array)
    arrays = []
    for idx in sharding.mesh_ids:
        at = sharding.group_sharding(idx)
        mine = [blocks[device] for device in at.addressable_devices]
        if mine:
            arrays.append(jax.make_array_from_single_device_arrays(array.shape, at, mine))
    return MpmdArray(arrays, sharding, array.shape, array.dtype)


def _sharding(array: Any, target: NamedSharding | MpmdSharding | Structure) -> NamedSharding | MpmdSharding:
    """Return the sharding that an array is moved to. Check the array if `target` is a structure."""
    if not isinstance(target, Structure):
        return target
    target.check(array, "tree", may_move=True)
    return target.layout.sharding_of(jnp.shape(array))


def _put(leaf: Any, target: NamedSharding | MpmdSharding) -> jax.Array:
    if isinstance(target, MpmdSharding):
        raise TypeError(
            "`target` must be a jax.sharding.NamedSharding in `jax.grad` and `jax.jvp`; got an MpmdSharding. Move the "
            "arrays to an MpmdSharding outside."
        )
    if not target.is_fully_addressable:
        raise ValueError(
            "`target` must be on devices of one process in `jax.grad` and `jax.jvp`; got several processes."
        )
    check_divides("target", target, jnp.shape(leaf))
    return jax.device_put(leaf, target)
