"""JAX's meshes and shardings: the mesh that applies to a call, and the sharding in the type of an array.

JAX checks the type of every operation against the mesh of its *context*, `jax.sharding.get_abstract_mesh()`.
`jax.set_mesh` sets this mesh, `jax.sharding.auto_axes` changes its axis types, and `jax.shard_map` makes axes Manual.
The mesh that applies to an operator therefore has the axis types of the context and the operator's own devices.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.extend.core import Jaxpr, Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from . import compat
from .blocks import BatchEntry, entry_names, flat_names, spec_entry


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
    devices = mesh if isinstance(mesh, Mesh) else ambient_devices()
    if devices is None or dict(devices.shape) != dict(context.shape):
        return context
    return mesh_like(context, devices.devices, devices.axis_names)


@functools.lru_cache(maxsize=256)
def program_on(mesh: Mesh) -> Jaxpr:
    """Return a program that does nothing on the devices of `mesh`.

    As a parameter of a primitive, it tells a surrounding `jax.jit` the devices of the primitive, and is never lowered.
    """
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return jax.make_jaxpr(jax.shard_map(lambda: 0, mesh=mesh, in_specs=(), out_specs=PartitionSpec()))().jaxpr


def ambient_mesh() -> Mesh | AbstractMesh:
    """Return the mesh of the context, with its devices if they are known; an empty mesh if there is none."""
    return mesh_in_context(jax.sharding.get_abstract_mesh())


@contextmanager
def without_ambient_mesh() -> Iterator[None]:
    with jax.set_mesh(Mesh(np.empty((), object), ())):
        yield


def checked_types(axis_types: Any, axes: tuple[str, ...]) -> AxisTypes:
    """Return a type for each of the mesh axes `axes`, or `None`. Raises `TypeError` for anything else."""
    if axis_types is None:
        return None
    found = (axis_types,) * len(axes) if isinstance(axis_types, AxisType) else tuple(axis_types)
    if len(found) != len(axes) or not all(isinstance(one, AxisType) for one in found):
        raise TypeError(f"`axis_types` must be an `AxisType` of JAX, or one for each of {axes}; got {axis_types!r}.")
    return found


def mesh_of(x: Any) -> Mesh | AbstractMesh | None:
    """Return the ambient mesh, else the mesh of the array's own sharding; `None` if neither is known."""
    if not (mesh := ambient_mesh()).empty:
        return mesh
    own = getattr(x, "sharding", None) if not isinstance(x, Tracer) else jax.typeof(x).sharding
    return own.mesh if isinstance(own, NamedSharding) and not own.mesh.empty else None


@contextmanager
def mesh_of_type(x: Array) -> Iterator[None]:
    """If the context has no mesh, trace a loop in a context with the mesh in the type of `x`.

    If `jax.vmap` maps the loop over an axis that Explicit mesh axes shard, JAX shards all that the loop carries over
    these axes, and looks for them in the context.
    """
    own, context = jax.typeof(x).sharding.mesh, jax.sharding.get_abstract_mesh()
    is_traced = isinstance(jnp.zeros(()), Tracer)
    with jax.sharding.use_abstract_mesh(own) if is_traced and context.empty and not own.empty else nullcontext():
        yield


@contextmanager
def no_ambient_mesh(unless: Mesh | None = None) -> Iterator[None]:
    """Compute without the ambient mesh that the caller may have set by `jax.set_mesh`.

    The ambient mesh stays if it has the devices of the mesh `unless`.

    Raises `ValueError` for an ambient mesh inside JAX's transformations, where JAX does not allow changing it.
    """
    context, ambient = jax.sharding.get_abstract_mesh(), ambient_devices()
    is_kept = unless is not None and (ambient is None or {*ambient.devices.flat} == {*unless.devices.flat})
    if context.empty or is_kept:
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

    With `check_types=False`, and inside another `shard_map`, JAX does not check over which mesh axes results are
    replicated.
    """
    own, context = mesh_in_context(mesh), jax.sharding.get_abstract_mesh()
    # JAX takes an empty set as all mesh axes, without the Explicit ones over which a surrounding `jax.vmap` maps.
    manual = frozenset() if set(names) == set(own.axis_names) else frozenset(names)
    options = {"in_specs": in_specs, "out_specs": out_specs, "axis_names": manual}

    def on_block(*blocks: Any) -> Any:
        for name in sorted(set(names) - manual_axes()):
            raise ValueError(
                "The arguments of `jax.vmap` must not be sharded along the mapped axis for this function on an "
                f"Explicit mesh, because JAX cannot map it over mesh axes; got an axis sharded over {name!r}. Before "
                "`jax.vmap`, call `jax.sharding.reshard(x, spec)` with `None` for this axis, or take an Auto mesh."
            )
        return function(*blocks)

    def mapped(*arguments: Any) -> Any:
        for x in jax.tree.leaves(arguments):
            if not all(isinstance(n, int) for n in jnp.shape(x)):
                raise ValueError(
                    "`x` must have known lengths for this function, because JAX cannot run a `shard_map` with symbolic "
                    f"lengths; got shape {jnp.shape(x)}. Call `jax.lax.map(function, x)`, or export a program for each "
                    "length of the batch."
                )
        # The mesh itself is passed if possible, because a surrounding `jit` may learn the devices only from this mesh.
        # JAX requires that it equals the mesh of the context, including the kind of device, which an `AbstractMesh` set
        # by a user does not have. `None` selects the mesh of the context. `place` tells why `auto_axes` needs it.
        passed = own if context.empty or (own == mesh and own.abstract_mesh == context) else None
        if left := axes_of_kind(own, AxisType.Auto).difference(names, manual_axes()):
            without = functools.partial(without_spmd_name_p.bind, left=frozenset(left))
            arguments = jax.tree.map(lambda x: without(x) if isinstance(x, Tracer) else x, arguments)
        if not manual_axes():
            return jax.shard_map(on_block, mesh=passed, check_vma=check_types, **options)(*arguments)
        # Without checks, JAX does not know over which axes of the surrounding `shard_map` the results vary. It would
        # refuse derivatives and the carries of loops that have these axes in their types. So nothing has them here. The
        # derivative by an argument that does not vary over an axis, such as a parameter, is a sum over this axis.
        arguments = jax.tree.map(jnp.asarray, arguments)
        varying = frozenset().union(*(jax.typeof(x).manual_axis_type.varying for x in jax.tree.leaves(arguments)))
        untyped = jax.tree.map(lambda x: retype_p.bind(varying_over(x, varying), varying=frozenset()), arguments)
        results = jax.shard_map(on_block, mesh=passed, check_vma=False, **options)(*untyped)
        return jax.tree.map(lambda y: retype_p.bind(y, varying=varying), results)

    return mapped


def varying_over(x: Array, axes: frozenset[str]) -> Array:
    """Return `x`, typed as varying over the manual mesh axes `axes`, too."""
    more = tuple(axes - jax.typeof(x).manual_axis_type.varying)
    return jax.lax.pcast(x, more, to="varying") if more else x


# Returns its argument, typed as varying over the manual mesh axes `varying`. Unlike that of `pcast`, its transpose adds
# nothing up, because the numbers vary over these axes in any case.
retype_p = Primitive("typed_as_varying")
retype_p.def_impl(lambda x, *, varying: x)
retype_p.def_abstract_eval(lambda x, *, varying: x.update(manual_axis_type=x.manual_axis_type.update(varying=varying)))
ad.deflinear2(
    retype_p, lambda cotangent, x, *, varying: [retype_p.bind(cotangent, varying=x.aval.manual_axis_type.varying)]
)
batching.defvectorized(retype_p)
mlir.register_lowering(retype_p, lambda context, x, *, varying: [x])


# Returns its argument. On Auto meshes, JAX cannot map a `shard_map` over a mesh axis that this `shard_map` has `left`
# to XLA: it raises errors that do not name `spmd_axis_name` (JAX 0.10 and 0.12).
without_spmd_name_p = Primitive("without_spmd_axis_name")
without_spmd_name_p.def_impl(lambda x, *, left: x)
without_spmd_name_p.def_abstract_eval(lambda x, *, left: x)
ad.deflinear2(without_spmd_name_p, lambda cotangent, _, *, left: [cotangent])
mlir.register_lowering(without_spmd_name_p, lambda context, x, *, left: [x])


def _without_spmd_name(axis_data: Any, args: Any, dims: Any, *, left: frozenset[str]) -> tuple[Array, int | None]:
    (x,), (dim,) = args, dims
    if dim is not None and left.intersection(entry_names(axis_data.spmd_name)):
        raise ValueError(
            "`spmd_axis_name` of `jax.vmap` must be left out for this function on an Auto mesh, because JAX cannot map "
            f"a part of it over mesh axes; got {axis_data.spmd_name}. Without it, XLA shards the batch as its input is."
        )
    return without_spmd_name_p.bind(x, left=left), dim


batching.fancy_primitive_batchers[without_spmd_name_p] = _without_spmd_name


def on_devices_of(mesh: Mesh | AbstractMesh, x: Array) -> Array:
    """Return `x`, replicated over the devices of `mesh` in an eager call inside `auto_axes` or `explicit_axes`.

    There, `map_blocks` names a mesh without devices. So JAX learns the devices of a program from its sharded inputs.
    """
    own = mesh_in_context(mesh)
    if own == mesh or isinstance(x, Tracer) or not is_eager():
        return x
    return jax.device_put(x, NamedSharding(mesh_with_devices(own, x), PartitionSpec()))


def is_eager() -> bool:
    """Return False while JAX traces a program, also for arrays with values."""
    return not isinstance(jnp.zeros(()), Tracer)


def manual_axes() -> set[str]:
    """Return the mesh axes that a surrounding `jax.shard_map` maps over."""
    return axes_of_kind(jax.sharding.get_abstract_mesh(), AxisType.Manual)


def while_any(goes_on: Callable[[Any], Array], step: Callable[[Any], Any], start: Any) -> Any:
    """Return what `jax.lax.while_loop` returns, but end only when no group of devices goes on.

    Inside a `shard_map` over further mesh axes, `goes_on` may differ between groups of devices. A permutation of XLA in
    `step` waits for the devices of all groups, and would wait for ever for a group that has ended. So a `step` must
    change nothing in a group that has ended.
    """

    def any_goes_on(carry: Any) -> Array:
        outer = tuple(sorted(manual_axes()))
        found = goes_on(carry)
        return jax.lax.psum(found.astype(np.int32), outer) > 0 if outer else found

    return jax.lax.while_loop(any_goes_on, step, start)


def axes_to_map(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> frozenset[str]:
    """Return the mesh axes that a `shard_map` of an array with the sharding `spec` should map over.

    These are also the Auto axes that `spec` does not name, because XLA would gather a batch axis that it has sharded
    over such an axis. An Explicit axis that `spec` does not name may belong to a surrounding `jax.vmap`.
    """
    named = set(flat_names(spec))
    unnamed = axes_of_kind(mesh_in_context(mesh), AxisType.Explicit) - named
    return frozenset(mesh.axis_names) - manual_axes() - unnamed


def axes_of_kind(mesh: Mesh | AbstractMesh, kind: AxisType) -> set[str]:
    return {name for name, own in zip(mesh.axis_names, mesh.axis_types) if own == kind}


def ambient_devices() -> Mesh | None:
    """Return the mesh of `jax.set_mesh`, which is empty if none is set. Return `None` while JAX traces."""
    try:
        return jax.sharding.get_mesh()
    except ValueError:  # During tracing, JAX knows only the abstract mesh.
        return None


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
    return _restricted(array_spec(mesh, entries), axes_of_kind(mesh, AxisType.Explicit))


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
