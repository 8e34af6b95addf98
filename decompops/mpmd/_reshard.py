"""Moves whole trees of arrays between all devices and groups of them, and between groups."""

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from .._structure import Structure
from ._array import MpmdArray
from ._batches import agreed_threshold, batches
from ._mesh import Device, MpmdMesh, MpmdSharding, check_divides, check_spec
from ._transfer import Route, find_route, transfer


Movable = jax.Array | MpmdArray


def spmd_to_mpmd_reshard(mpmd_mesh: MpmdMesh, tree: PyTree, shardings: PyTree, threshold: int | None = None) -> PyTree:
    """Hand the arrays of one program on all devices over to groups that run different ones.

    **Arguments:**

    - `mpmd_mesh`: the groups.
    - `tree`: a PyTree, such as an `equinox.Module`, of arrays on any mesh of the same devices, which are consumed, and
        of NumPy arrays, the same in every process. Functions, Python's numbers and all else in it stay as they are.
    - `shardings`: an [`MpmdSharding`][decompops.mpmd.MpmdSharding] for each array, or for each part of the tree.
    - `threshold`: how many bytes a device may need beside what it already holds. Arrays are moved in batches below it,
        the largest of each group first; one that is larger by itself is moved alone. By default a third of the least
        free memory of all devices, or 1 GiB where the platform does not say.

    **Returns:** the tree, of [`MpmdArray`][decompops.mpmd.MpmdArray]s.

    Every process of the mesh must call this with the same tree of shapes.

    **Raises** `ValueError` and `TypeError` for other libraries' arrays, for what is no sharding, for one that lies
    elsewhere or does not divide the array, and where processes differ. Nothing is consumed then.
    """
    _check_mesh(mpmd_mesh)
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
    """Gather what groups have into arrays for one program on all devices.

    **Arguments:**

    - `mpmd_mesh`: the groups.
    - `tree`: a PyTree of [`MpmdArray`][decompops.mpmd.MpmdArray]s, which are consumed. Of an array that several groups
        have each device takes the nearest copy. All but arrays stays as it is.
    - `shardings`: a `jax.sharding.NamedSharding` for each array, or for each part of the tree.
    - `threshold`: as for [`spmd_to_mpmd_reshard`][decompops.mpmd.spmd_to_mpmd_reshard].

    **Returns:** the tree, of `jax.Array`s.

    Every process of the mesh must call this with the same tree of shapes.

    **Raises** `ValueError` and `TypeError` as `spmd_to_mpmd_reshard` does.
    """
    _check_mesh(mpmd_mesh)
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
    """Move arrays to other devices, divided in another way: a field from one group to another, pencils to slabs.

    **Arguments:**

    - `tree`: a PyTree, such as an `equinox.Module`, of `jax.Array`s and [`MpmdArray`][decompops.mpmd.MpmdArray]s. In a
        run of several processes these know shape, dtype and place where this process has no part of them. All but
        arrays stays as it is.
    - `target`: for each array, or for each part of the tree, a `jax.sharding.NamedSharding` on any mesh, such as
        `decomposition.sharding("z")`; an [`MpmdSharding`][decompops.mpmd.MpmdSharding]; or the `in_structure` of the
        operator, layer or equation there that takes the array, which is checked before anything is moved.
    - `donate`: whether the arrays are consumed.

    **Returns:** the tree: an `MpmdArray` for an `MpmdSharding`, else a `jax.Array`. Where this process has no device of
    a target, an array without data.

    Cells go straight from the devices that have them to those that want them, each once, and not through the host.
    All processes with a device on either side must call it, in the same order.

    Inside `jax.grad` and `jax.jvp` it calls `jax.device_put`, which differentiates in both modes, but only within one
    process and to a `NamedSharding`, and consumes nothing. A jitted function runs on one set of devices: call this
    outside `jax.jit`. With Explicit axes, call it without `jax.set_mesh`, and end a loss for `jax.grad` by moving it to
    a mesh with Auto axes, such as `Mesh(jax.devices()[:1], "device")`: JAX starts `jax.grad` from a loss on an Explicit
    mesh only where that is the ambient one, and then computes on no other.

    **Raises** `ValueError` and `TypeError` for other libraries' arrays, for arrays without a `NamedSharding`, for what
    is no sharding, for a target that does not divide the array, and for an array of another type than a structure.
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
    """The arrays of `tree`; one of `values` for each, which may be given for whole parts of `tree`; and a function that
    puts other arrays in their places."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, MpmdArray))
    # The arrays of other libraries count too: they are refused later, and not left behind in silence.
    are_arrays = [hasattr(leaf, "__array__") and not isinstance(leaf, type) for leaf in leaves]
    arrays = [leaf for leaf, is_array in zip(leaves, are_arrays) if is_array]
    if not arrays and jax.tree_util.treedef_is_leaf(treedef):
        raise TypeError(f"`tree` must hold arrays; got {tree!r}.")

    def rebuild(arrays: list) -> PyTree:
        new = iter(arrays)
        return treedef.unflatten([next(new) if is_array else leaf for leaf, is_array in zip(leaves, are_arrays)])

    # `None` is an empty tree: `values` may have anything in its place.
    places = treedef.unflatten([is_array or None for is_array in are_arrays])
    if hasattr(values, "in_structure"):
        raise TypeError(f"`{name}` must say where arrays go; got {values!r}. Pass its `in_structure`.")
    try:
        matched = jax.tree.leaves(jax.tree.broadcast(values, places))
    except ValueError as error:
        raise ValueError(f"`{name}` must have the structure of `tree`, or of its beginning: {error}") from error
    for value in matched:
        if not isinstance(value, kinds):
            wanted = " or ".join(f"{kind.__name__}s" for kind in kinds)
            raise TypeError(f"`{name}` must hold {wanted}; got {value!r}.")
    return arrays, matched, rebuild


def _check_mesh(mpmd_mesh: MpmdMesh) -> None:
    if not isinstance(mpmd_mesh, MpmdMesh):
        raise TypeError(f"`mpmd_mesh` must be an MpmdMesh; got {type(mpmd_mesh).__name__}.")


def _on_devices(leaf: Any, mpmd_mesh: MpmdMesh) -> jax.Array | np.ndarray:
    """A leaf as an array with a sharding, or, if it has no place yet, on the host."""
    if isinstance(leaf, Tracer):
        raise TypeError(f"`tree` must hold arrays with values, outside of JAX's transformations; got {leaf}.")
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise TypeError(f"`tree` must hold arrays of JAX and NumPy; got {type(leaf).__name__}.")
    if not isinstance(leaf, jax.Array):
        array = np.asarray(leaf)
        if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == bool):
            raise TypeError(f"`tree` must hold arrays of numbers; got {array.dtype}.")
        known = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
        if array.dtype.kind in "iu" and (known != array).any():
            raise ValueError(f"`tree` must hold integers that fit {known.dtype}; got {leaf!r}.")
        return known
    elsewhere = leaf.sharding.device_set - set(mpmd_mesh.mesh.devices.flat)
    if elsewhere and leaf.committed:
        raise ValueError(f"`tree` must lie on devices of {mpmd_mesh}; got an array on {sorted(map(str, elsewhere))}.")
    if isinstance(leaf.sharding, NamedSharding):
        return leaf
    if jax.process_count() > 1 or elsewhere:
        if leaf.committed:
            raise ValueError(f"`tree` must hold arrays with a NamedSharding, or with no place; got {leaf.sharding}.")
        return np.asarray(leaf)  # each process has a copy of its own
    (device,) = leaf.sharding.device_set
    alone = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())
    return jax.make_array_from_single_device_arrays(leaf.shape, alone, [leaf])


class Freight(NamedTuple):
    """What is to be moved in some batch: an array by a route, or from the host, which needs none; for which group."""

    array: Movable | np.ndarray
    target: NamedSharding
    route: Route | None
    group: int

    @property
    def working_bytes(self) -> int:
        """The most that a device needs for it, beside what it has."""
        if self.route is not None:
            return self.route.working_bytes
        return math.prod(self.target.shard_shape(self.array.shape)) * self.array.dtype.itemsize

    def describe(self) -> tuple:
        """What all processes must agree on."""
        source = "host" if self.route is None else self.route.source.devices_indices_map(self.array.shape)
        contents = zlib.crc32(self.array.tobytes()) if isinstance(self.array, np.ndarray) else None
        target = self.target.devices_indices_map(self.array.shape)
        return self.array.shape, str(self.array.dtype), source, target, contents


def _freight(name: str, array: Movable | np.ndarray, target_name: str, target: NamedSharding, group: int) -> Freight:
    if isinstance(array, np.ndarray):
        check_divides(target_name, target, array.shape)
        return Freight(array, target, None, group)
    return Freight(array, target, _route(name, array, target_name, target), group)


def _route(name: str, array: Movable, target_name: str, target: NamedSharding) -> Route:
    """The way of an array, after everything is checked that may go wrong: later, it would be lost."""
    if not isinstance(array, Movable):
        raise TypeError(f"`{name}` must hold arrays with a NamedSharding; got {type(array).__name__}.")
    if array.is_deleted():
        raise RuntimeError(f"`{name}` holds an array that has been deleted; got one of shape {array.shape}.")
    if not isinstance(array.sharding, NamedSharding):
        raise TypeError(f"`{name}` must hold arrays with a NamedSharding; got {array.sharding}.")
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"`{name}` must not hold {array.dtype}, which cannot be moved; take `jax.random.key_data`.")
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise TypeError(f"`{name}` holds an array of {array.dtype}, for which `jax_enable_x64` must be set.")
    if not isinstance(target.mesh, Mesh):
        raise TypeError(f"`{target_name}` must be on a mesh of devices; got {target.mesh}.")
    check_divides(target_name, target, array.shape)
    check_spec(name, array.sharding.spec)
    usual = jax.local_devices()[0].default_memory().kind
    for what, sharding in ((name, array.sharding), (target_name, target)):
        if sharding.memory_kind not in (None, usual):
            raise ValueError(f"`{what}` must be in the devices' own memory, {usual!r}; got {sharding.memory_kind!r}.")
    return find_route(array.shape, np.dtype(array.dtype), array.sharding, target)


def _in_batches(mpmd_mesh: MpmdMesh, freights: Sequence[Freight], threshold: int | None) -> list[jax.Array]:
    """Move everything, in batches that every device has room for. The arrays are of no use afterwards."""
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
        # The next batch needs the room.
        jax.block_until_ready([moved[i] for i in batch])
    return [moved[i] for i in range(len(freights))]


def _from_host(freight: Freight) -> jax.Array:
    array: Any = freight.array
    return jax.make_array_from_callback(array.shape, freight.target, lambda index: array[index], dtype=array.dtype)


def _last(arrays: Sequence[Movable | np.ndarray]) -> list[bool]:
    """Whether no later array shares its buffers: a tree may hold an array twice, in whatever wrapping."""

    def parts(array: Movable | np.ndarray) -> list[int]:
        return list(map(id, array.local_arrays.values())) if isinstance(array, MpmdArray) else [id(array)]

    last = {part: position for position, array in enumerate(arrays) for part in parts(array)}
    return [all(last[part] == position for part in parts(array)) for position, array in enumerate(arrays)]


def _blocks(array: Any) -> dict[Device, jax.Array]:
    arrays = array.local_arrays.values() if isinstance(array, MpmdArray) else [array]
    return {shard.device: shard.data for local in arrays for shard in local.addressable_shards}


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


def _sharding(array: Any, target: NamedSharding | MpmdSharding | Structure) -> NamedSharding | MpmdSharding:
    """Where an array goes."""
    if not isinstance(target, Structure):
        return target
    target.check(array, "tree", may_move=True)
    return target.layout.sharding_of(jnp.shape(array))


def _put(leaf: Any, target: NamedSharding | MpmdSharding) -> jax.Array:
    if isinstance(target, MpmdSharding):
        raise TypeError("`target` must be a jax.sharding.NamedSharding in JAX's transformations; got an MpmdSharding.")
    if not target.is_fully_addressable:
        raise ValueError("In JAX's transformations `reshard` works within one process; got devices of several.")
    check_divides("target", target, jnp.shape(leaf))
    return jax.device_put(leaf, target)
