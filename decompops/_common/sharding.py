"""JAX's meshes and shardings: the mesh that applies to a call, and the sharding in the type of an array.

JAX checks the type of every operation against the mesh of its *context*, `jax.sharding.get_abstract_mesh()`.
`jax.set_mesh` sets this mesh, `jax.sharding.auto_axes` changes its axis types, and `jax.shard_map` makes axes Manual.
The mesh that applies to an operator therefore has the axis types of the context and the operator's own devices.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from . import compat
from .blocks import BatchEntry, batch_spec, entry_names, spec_entry


# The type of each mesh axis; `None` means that all are Auto.
AxisTypes: TypeAlias = tuple[AxisType, ...] | None


def mesh_in_context(mesh: Mesh | AbstractMesh) -> Mesh | AbstractMesh:
    """Return `mesh` with the axis types of the context. A mesh without devices gets the devices of `jax.set_mesh`."""
    context = jax.sharding.get_abstract_mesh()
    if context.empty:
        return mesh
    if dict(context.shape) != dict(mesh.shape):
        raise ValueError(
            f"`mesh` of the operator must be the ambient mesh, {dict(context.shape)}; got {dict(mesh.shape)}. Call the "
            "operator inside `jax.set_mesh(mesh)` with its own mesh."
        )
    # The operator's own devices are kept if they are known, because their order says which device holds which block.
    devices = mesh if isinstance(mesh, Mesh) else _ambient_devices()
    if devices is None or dict(devices.shape) != dict(context.shape):
        return context
    return mesh_like(context, devices.devices, devices.axis_names)


def ambient_mesh() -> Mesh | AbstractMesh:
    """Return the mesh of the context, with its devices if they are known; an empty mesh if there is none."""
    return mesh_in_context(jax.sharding.get_abstract_mesh())


def mesh_of(x: Any) -> Mesh | AbstractMesh | None:
    """Return the ambient mesh, else the mesh of the array's own sharding; `None` if neither is known."""
    if not (mesh := ambient_mesh()).empty:
        return mesh
    own = getattr(x, "sharding", None) if not isinstance(x, Tracer) else jax.typeof(x).sharding
    return own.mesh if isinstance(own, NamedSharding) and not own.mesh.empty else None


@contextmanager
def no_ambient_mesh() -> Iterator[None]:
    """Compute without the ambient mesh that the caller may have set by `jax.set_mesh`.

    Raises `ValueError` for an ambient mesh inside JAX's transformations, where JAX does not allow changing it.
    """
    context = jax.sharding.get_abstract_mesh()
    if context.empty:
        yield
        return
    try:
        nothing = jax.set_mesh(Mesh(np.empty((), object), ()))
    except ValueError as error:
        raise ValueError(
            "Inside JAX's transformations, arrays that are not traced can be moved only without "
            f"`jax.set_mesh`; got the ambient mesh {context}. Move them before the transformation."
        ) from error
    with nothing:
        yield


def mesh_with_devices(mesh: Mesh | AbstractMesh, x: Array) -> Mesh:
    """Return `mesh`; if it is abstract, with the devices that hold the array `x`."""
    if isinstance(mesh, Mesh):
        return mesh
    own = x.sharding.mesh if isinstance(x.sharding, NamedSharding) else None
    if not isinstance(own, Mesh) or dict(own.shape) != dict(mesh.shape):
        raise no_devices(mesh)
    return mesh_like(mesh, own.devices, own.axis_names)


def mesh_like(typed: Mesh | AbstractMesh, devices: np.ndarray, names: Iterable[str]) -> Mesh:
    """Return a mesh of `devices` with axes `names`. Each axis has the type that it has in the mesh `typed`."""
    kinds, names = dict(zip(typed.axis_names, typed.axis_types)), tuple(names)
    return Mesh(devices, names, axis_types=tuple(kinds[name] for name in names))


def no_devices(mesh: Mesh | AbstractMesh) -> ValueError:
    """Return the error for an operator on `mesh` if the devices to run on are not known."""
    hint = "" if isinstance(mesh, Mesh) else ", or build it on a `Mesh`, which has devices"
    return ValueError(
        f"`x` must be on a mesh with the axes {dict(mesh.shape)}, as the operator is; got an array on another mesh or "
        f"on none. Call the operator inside `jax.set_mesh(mesh)`{hint}."
    )


def map_blocks(
    function: Callable,
    mesh: Mesh | AbstractMesh,
    names: Collection[str],
    in_specs: Any,
    out_specs: Any,
    *,
    check_types: bool = True,
) -> Callable:
    """Return a function of global arrays that applies `function` to each block, with the mesh axes `names` manual.

    With `check_types=False`, JAX does not check over which mesh axes results are replicated.
    """
    own, context = mesh_in_context(mesh), jax.sharding.get_abstract_mesh()
    options = {"in_specs": in_specs, "out_specs": out_specs, "axis_names": frozenset(names), "check_vma": check_types}

    def mapped(*arguments: Any) -> Any:
        # The mesh itself is passed if possible, because a surrounding `jit` may learn the devices only from this mesh.
        # JAX requires that it equals the mesh of the context, including the kind of device, which an `AbstractMesh` set
        # by a user does not have. `None` selects the mesh of the context. `place` tells why `auto_axes` needs it.
        passed = own if context.empty or (own == mesh and own.abstract_mesh == context) else None
        return jax.shard_map(function, mesh=passed, **options)(*arguments)

    return mapped


def on_devices_of(mesh: Mesh | AbstractMesh, x: Array) -> Array:
    """Return `x`, replicated over the devices of `mesh` in an eager call inside `auto_axes` or `explicit_axes`.

    There, `map_blocks` names a mesh without devices. So JAX learns the devices of a program from its sharded inputs.
    """
    own = mesh_in_context(mesh)
    if own == mesh or isinstance(x, Tracer) or isinstance(jnp.zeros(()), Tracer):
        return x
    return jax.device_put(x, NamedSharding(mesh_with_devices(own, x), PartitionSpec()))


def manual_axes() -> set[str]:
    """Return the mesh axes that a surrounding `jax.shard_map` maps over."""
    return _axes_of_kind(jax.sharding.get_abstract_mesh(), AxisType.Manual)


def _axes_of_kind(mesh: Mesh | AbstractMesh, kind: AxisType) -> set[str]:
    return {name for name, own in zip(mesh.axis_names, mesh.axis_types) if own == kind}


def _ambient_devices() -> Mesh | None:
    try:
        return jax.sharding.get_mesh()
    except ValueError:  # During tracing, JAX knows only the abstract mesh.
        return None


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


def place_field(
    x: Array,
    mesh: Mesh | AbstractMesh,
    grid_axes: Collection[str | None],
    grid_spec: PartitionSpec,
    batch: tuple[BatchEntry, ...],
) -> Array:
    """Shard the grid axes, which are the last axes of `x`, over `mesh` as `grid_spec` says.

    Only grid axes may use the mesh axes `grid_axes`. The sharding of batch axes is kept if it is known; otherwise
    `batch_of` chooses it.
    """
    lead, x = x.ndim - len(grid_spec), _retyped(x)
    if not (isinstance(x, Tracer) or manual_axes()):
        return _put(x, mesh, (*batch_of_concrete(x, lead, mesh, grid_axes, batch), *grid_spec))
    own = jax.typeof(x).sharding.mesh
    if (own.empty or own == mesh.abstract_mesh) and AxisType.Explicit not in mesh.axis_types:
        return _constrain(x, mesh, grid_spec)
    if own != mesh.abstract_mesh and not manual_axes():
        x = _put(x, mesh, ())
    sharding = jax.typeof(x).sharding
    spec = explicit_spec(mesh, (*_lead(sharding, lead, grid_axes), *grid_spec))
    own = mesh.abstract_mesh if sharding.mesh.empty else sharding.mesh
    return x if sharding.spec == spec else jax.sharding.reshard(x, NamedSharding(own, spec))


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
    if not isinstance(jnp.zeros(()), Tracer):  # The call is eager, so `_put` may name the devices.
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
    return x if same_type and x.sharding.is_equivalent_to(sharding, x.ndim) else jax.device_put(x, sharding)


def is_placed(x: Array, mesh: Mesh | AbstractMesh, grid_axes: tuple[str, ...], grid_spec: PartitionSpec) -> bool:
    """Return True if `place_field` surely returns `x` unchanged. This check takes little time."""
    if isinstance(x, Tracer) or not isinstance(x.sharding, NamedSharding) or x.sharding.mesh is not mesh:
        return False
    return _stays(x.sharding, jax.typeof(x).sharding.spec, x.ndim, grid_axes, grid_spec)


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


def entries_of(sharding: NamedSharding, ndim: int) -> tuple[BatchEntry, ...]:
    """Return the mesh axes that shard each of `ndim` array axes."""
    entries = compat.partitions(sharding.spec)
    return (*entries, *[None] * (ndim - len(entries)))


def result_sharding(sharding: NamedSharding, lead: int, spec: Iterable[BatchEntry]) -> NamedSharding:
    """Return the sharding in the type of a result: the first `lead` axes as in `sharding`, the others as in `spec`."""
    entries = (*entries_of(sharding, lead)[:lead], *spec)
    return NamedSharding(sharding.mesh, explicit_spec(sharding.mesh, entries))


def explicit_spec(mesh: Mesh | AbstractMesh, entries: Iterable[BatchEntry]) -> PartitionSpec:
    """Return the spec of `entries` with only Explicit mesh axes, as the type of an array contains it."""
    return _restricted(array_spec(mesh, entries), _axes_of_kind(mesh, AxisType.Explicit))


def array_spec(mesh: Mesh | AbstractMesh, entries: Iterable[BatchEntry]) -> PartitionSpec:
    """Return the spec of an eager array sharded over `entries`.

    On a mesh with both Auto and Explicit axes, the spec omits Explicit axes of one device. JAX derives the types of
    eager results on such a mesh from XLA's shardings, which do not name these axes. JAX refuses to combine arrays whose
    types name these axes with arrays whose types do not.
    """
    kinds = dict(zip(mesh.axis_names, mesh.axis_types))
    mixed = {AxisType.Auto, AxisType.Explicit} <= set(kinds.values())
    named = {n for n, size in mesh.shape.items() if not (mixed and size == 1 and kinds[n] == AxisType.Explicit)}
    return _restricted(entries, named)


def _restricted(entries: Iterable[BatchEntry], names: set[str]) -> PartitionSpec:
    """Return the spec of `entries` with only the mesh axes in `names`."""
    return PartitionSpec(*(spec_entry(name for name in entry_names(entry) if name in names) for entry in entries))


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
    explicit = _axes_of_kind(sharding.mesh, AxisType.Explicit)
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
