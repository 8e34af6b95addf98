"""Finds where an array is, and moves it to where it is needed.

`place_field` places the input of every operator, and `place` any other array.
"""

import functools
from collections.abc import Collection
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.errors import ConcretizationTypeError
from jax.extend.core import concrete_or_error
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from .agreement import check_same_array
from .blocks import BatchEntry, Blocks, batch_spec, entry_names, spec_entry
from .sharding import (
    array_spec,
    axes_of_kind,
    entries_of,
    explicit_spec,
    is_eager,
    manual_axes,
    mesh_in_context,
    result_sharding,
)


def place_field(x: Array, mesh: Mesh | AbstractMesh, blocks: Blocks, batch: tuple[BatchEntry, ...]) -> Array:
    """Shard the grid axes, which are the last axes of `x`, over `mesh` as `blocks` says.

    The sharding of batch axes is kept if it is known; otherwise `batch_of` chooses it, or XLA does. Batch axes never
    use the mesh axes of the grid. Raises `ValueError` for an array on other devices.
    """
    spec, inside = blocks.spec, manual_axes()
    value = x if inside else known(x)
    if is_placed(value, mesh, blocks):
        return x  # To place it again would also place its tangent, which JAX refuses on other devices.
    lead = x.ndim - blocks.ndim
    if not inside:
        wanted = PartitionSpec() if blocks.padded_axes else PartitionSpec(*[None] * lead, *spec)
        refuse_other_devices(value, mesh, wanted)
    x = _retyped(x)
    if not (isinstance(x, Tracer) or inside):
        return _put(x, mesh, (*batch_of_concrete(x, lead, mesh, blocks.mesh_axes, batch), *spec))
    own = jax.typeof(x).sharding.mesh
    if (own.empty or own == mesh.abstract_mesh) and AxisType.Explicit not in mesh.axis_types:
        if not inside and is_elsewhere(value, mesh):  # A constraint cannot move it.
            return _put(x, mesh, (*batch_of_concrete(value, lead, mesh, blocks.mesh_axes, batch), *spec))
        return _constrain(x, mesh, spec)
    if own != mesh.abstract_mesh and not inside:
        x = _put(x, mesh, ())
    sharding = jax.typeof(x).sharding
    typed = explicit_spec(mesh, (*_lead(sharding, lead, blocks.mesh_axes), *spec))
    own = mesh.abstract_mesh if sharding.mesh.empty else sharding.mesh
    return x if sharding.spec == typed else jax.sharding.reshard(x, NamedSharding(own, typed))


def on_mesh(x: Array, mesh: Mesh | AbstractMesh, blocks: Blocks, name: str) -> Array:
    """Return `x`, a field with or without padding. If it lies on one device of `mesh`, for example, it is moved.

    Nothing else changes: a field that is sharded in another way stays so. Raises `ValueError` for an array on other
    devices, and for arrays that each process has for itself and that differ.
    """
    if manual_axes():
        return x
    several = isinstance(mesh, Mesh) and mesh.is_multi_process
    is_own_copy = several and not isinstance(x, Tracer) and x.is_fully_addressable
    if not (is_elsewhere(value := known(x), mesh) or is_own_copy):
        return x
    refuse_other_devices(value, mesh, PartitionSpec(), name)
    grid = x.shape[x.ndim - blocks.ndim :]
    return place_field(x, mesh, blocks, ()) if grid == blocks.shape else _put(x, mesh, ())


def place(x: Array, sharding: NamedSharding) -> Array:
    """Return `x` with `sharding`. Works eagerly, in `jit` and under `grad`, on Auto and Explicit mesh axes."""
    mesh, x = mesh_in_context(sharding.mesh), _retyped(x)
    if not isinstance(x, Tracer):
        return _put(x, mesh, entries_of(sharding, x.ndim))
    if AxisType.Explicit in mesh.axis_types:
        return jax.sharding.reshard(x, NamedSharding(mesh, explicit_spec(mesh, sharding.spec)))
    # JAX refuses a program with a callback and with meshes of devices that differ in their axis types, as in
    # `jit(auto_axes(...))`. So the constraint then names the mesh of the context, which has no devices.
    own = mesh if mesh == sharding.mesh else jax.sharding.get_abstract_mesh()
    return jax.lax.with_sharding_constraint(x, NamedSharding(own, sharding.spec))


def typed_as_result(
    x: Array, argument: NamedSharding, lead: int, spec: PartitionSpec, mesh: Mesh | AbstractMesh
) -> Array:
    """Return `x` with the type of a result on `mesh` whose first `lead` axes are sharded like those of the `argument`.

    `argument` is the sharding in the type of this argument. Auto axes are in no type, so they stay as they are.
    """
    if AxisType.Explicit not in argument.mesh.axis_types:
        return x
    own, wanted = jax.typeof(x).sharding, result_sharding(argument, lead, spec)
    if own == wanted:
        return x
    x = jax.sharding.reshard(x, wanted)
    # A type names no devices. If the type of `x` had no mesh, no input may tell the program its devices.
    unknown = own.mesh.empty and jax.sharding.get_abstract_mesh().empty and isinstance(mesh, Mesh)
    return jax.device_put(x, NamedSharding(mesh, wanted.spec)) if unknown else x


def known(x: Array) -> Array:
    """Return the value of `x` if it is known, else `x`. In eager `jax.grad`, for example, tracers have values."""
    if not isinstance(x, Tracer):
        return x
    try:
        value = concrete_or_error(None, x)
    except ConcretizationTypeError:
        return x
    return value if isinstance(value, Array) else x  # The value may be a NumPy array, which lies on no device.


def is_elsewhere(x: Array, mesh: Mesh | AbstractMesh) -> bool:
    """Return True if `x` surely lies on other devices than those of `mesh`, or on them in another order."""
    if isinstance(x, Tracer) or not isinstance(mesh, Mesh) or not x.committed:
        return False
    if not isinstance(x.sharding, NamedSharding):
        return x.sharding.device_set != set(mesh.devices.flat)
    own: Any = x.sharding.mesh
    return own is not mesh and list(own.devices.flat) != list(mesh.devices.flat)


def is_placed(x: Any, mesh: Mesh | AbstractMesh, blocks: Blocks) -> bool:
    """Return True if `x` surely is where `place_field` would place it. This check takes little time."""
    if isinstance(x, Tracer):  # Only types with all mesh axes say where a traced array is.
        typed, abstract = jax.typeof(x).sharding, mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
        entries = (*_lead(typed, x.ndim - blocks.ndim, blocks.mesh_axes), *blocks.spec)
        every_axis = typed.mesh == abstract and set(typed.mesh.axis_types) == {AxisType.Explicit}
        return every_axis and typed.spec == explicit_spec(abstract, entries)
    sharding = getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh is not mesh:
        return False
    return _stays(sharding, jax.typeof(x).sharding.spec, x.ndim, blocks.mesh_axes, blocks.spec)


@functools.lru_cache(maxsize=1024)
def _stays(
    sharding: NamedSharding, typed: PartitionSpec, ndim: int, grid_axes: tuple[str, ...], grid_spec: PartitionSpec
) -> bool:
    mesh, entries = sharding.mesh, (*_lead(sharding, ndim - len(grid_spec), grid_axes), *grid_spec)
    return typed == explicit_spec(mesh, entries) and sharding.is_equivalent_to(
        NamedSharding(mesh, array_spec(mesh, entries)), ndim
    )


def refuse_other_devices(x: Array, mesh: Mesh | AbstractMesh, spec: PartitionSpec, name: str = "x") -> None:
    """Raise `ValueError` for an array on other devices than those of `mesh`.

    To move such an array would cost a transfer in each call. The sharding and the order of the devices may differ. An
    array on one device of the mesh is accepted, because operators shard it. The error recommends the sharding `spec`.
    """
    if not isinstance(mesh, Mesh):
        return
    own = set(mesh.devices.flat)
    if isinstance(x, Tracer):
        other = jax.typeof(x).sharding.mesh
        found = None if other.empty or other.size == len(own) else f"{other.size} devices"
    else:
        devices = x.sharding.device_set
        to_be_sharded = isinstance(x.sharding, SingleDeviceSharding) and devices <= own
        found = None if not x.committed or devices == own or to_be_sharded else _ids(devices)
    if found is None:
        return
    raise ValueError(
        f"`{name}` must lie on the operator's mesh, {_ids(own)}; got an array on {found}. To move it, call "
        f"`jax.device_put({name}, sharding)`, or between processes `mpmd.reshard({name}, sharding)`, with "
        f"`sharding = NamedSharding(operator.decomposition.mesh, {spec})`."
    )


def _ids(devices: set) -> str:
    return f"devices {np.array2string(np.sort([device.id for device in devices]), separator=', ', threshold=16)}"


def _constrain(x: Array, mesh: Mesh | AbstractMesh, grid_spec: PartitionSpec) -> Array:
    # A surrounding `jit` does not look for devices inside our primitive. Without an ambient mesh, and with inputs that
    # are not sharded, the `jit` would compile the program for one device. The constraint tells the `jit` the devices.
    if not (isinstance(mesh, Mesh) and jax.sharding.get_abstract_mesh().empty):
        return x
    batch = [PartitionSpec.UNCONSTRAINED] * (x.ndim - len(grid_spec))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*batch, *grid_spec)))


def _retyped(x: Array) -> Array:
    """Return `x` with the axis types of the context if `x` is an array that a program in `auto_axes` closes over."""
    own, context = jax.typeof(x).sharding, jax.sharding.get_abstract_mesh()
    if isinstance(x, Tracer) or context.empty or own.mesh.empty or own.mesh == context:
        return x
    if is_eager():  # So `_put` may name the devices.
        return x
    return jax.sharding.reshard(x, NamedSharding(context, explicit_spec(context, own.spec)))


def _put(x: Array, mesh: Mesh | AbstractMesh, entries: tuple[BatchEntry, ...]) -> Array:
    sharding = NamedSharding(mesh, array_spec(mesh, entries))
    if not isinstance(mesh, Mesh):  # An abstract mesh has no devices.
        return jax.sharding.reshard(x, sharding) if isinstance(x, Tracer) else x
    # Equivalent shardings have different JAX types if their meshes differ, or if one spec names an Explicit mesh axis
    # of size one and the other does not.
    same_type = (
        not isinstance(x, Tracer)
        and isinstance(x.sharding, NamedSharding)
        and x.sharding.mesh == mesh
        and jax.typeof(x).sharding.spec == explicit_spec(mesh, (*entries, *[None] * x.ndim)[: x.ndim])
    )
    if same_type and x.sharding.is_equivalent_to(sharding, x.ndim):
        return x
    return put(_cut_without_a_program(x, sharding), sharding)


def put(x: Any, sharding: NamedSharding) -> Any:
    """Return `jax.device_put(x, sharding)`. Raises `ValueError` if processes pass other arrays of their own.

    The weights of a gradient may be `None`.
    """
    is_here = isinstance(x, Array) and not isinstance(x, Tracer) and x.is_fully_addressable
    # NumPy knows neither weak types nor keys of random numbers.
    is_plain = is_here and not (x.weak_type or jnp.issubdtype(x.dtype, jax.dtypes.extended))
    if sharding.is_fully_addressable or not (is_plain or isinstance(x, np.ndarray)) or not is_eager():
        return jax.device_put(x, sharding)
    whole = np.asarray(x)
    check_same_array(sharding.mesh, whole, "x")
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index], dtype=whole.dtype)


def _cut_without_a_program(x: Array, sharding: NamedSharding) -> Array | np.ndarray:
    """Return `x` as a NumPy array, which shares its memory, if all of `x` lies on one CPU device; otherwise `x` itself.

    JAX compiles a program to cut an array on a device into blocks, one program for each shape. To cut a NumPy array, it
    needs no program, and contiguous blocks are not even copied.
    """
    if (
        isinstance(x, Tracer)
        or not isinstance(x.sharding, SingleDeviceSharding)
        or {device.platform for device in x.devices()} != {"cpu"}
        or not sharding.is_fully_addressable
        or x.weak_type  # NumPy knows neither weak types nor keys of random numbers.
        or jnp.issubdtype(x.dtype, jax.dtypes.extended)
    ):
        return x
    return jax.device_get(x)


def batch_of(
    x: Array,
    lead: int,
    mesh: Mesh | AbstractMesh,
    grid_axes: Collection[str | None],
    batch: tuple[BatchEntry, ...],
    names: Collection[str],
) -> tuple[BatchEntry, ...]:
    """Return the mesh axes that shard each of the first `lead` axes of a field, its batch axes.

    Explicit mesh axes are read from the type of `x`, other mesh axes from `batch`, which comes from `jax.vmap`. Any
    other mesh axis in `names`, except those of the grid, shards a batch axis whose length it divides.
    """
    sharding = jax.typeof(x).sharding
    explicit = axes_of_kind(sharding.mesh, AxisType.Explicit)
    entries = []
    for typed, given in zip_longest(_lead(sharding, lead, grid_axes), batch, fillvalue=PartitionSpec.UNCONSTRAINED):
        if given is not PartitionSpec.UNCONSTRAINED:
            given = spec_entry(name for name in entry_names(given) if name not in explicit)
        entries.append(typed or given)
    free = set(names).difference(grid_axes, explicit)
    return batch_spec(x.shape[:lead], {n: size for n, size in mesh.shape.items() if n in free}, tuple(entries))


def batch_of_concrete(
    x: Array, lead: int, mesh: Mesh | AbstractMesh, grid_axes: Collection[str | None], batch: tuple[BatchEntry, ...]
) -> tuple[BatchEntry, ...]:
    """Return the mesh axes that shard each batch axis of an array with values; for one not on `mesh`, by `batch_of`."""
    sharding = getattr(x, "sharding", None)
    if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
        return _lead(sharding, lead, grid_axes)
    return batch_of(x, lead, mesh, grid_axes, batch, mesh.axis_names)


@functools.lru_cache(maxsize=1024)
def _lead(sharding: NamedSharding, lead: int, grid_axes: Collection[str | None]) -> tuple[BatchEntry, ...]:
    """Return the mesh axes that shard each of the first `lead` axes, without the mesh axes of the grid."""
    entries = entries_of(sharding, lead)[:lead]
    return tuple(spec_entry(name for name in entry_names(entry) if name not in grid_axes) for entry in entries)
