"""The one JAX primitive that carries every distributed operator.

Its only parameter is a hashable `Plan`. All of JAX's transformations are rules on plans, written once, here; this is
the only file that touches JAX's extension interface. Why a primitive and not `custom_vjp` or a bare `shard_map`:
docs/design.md.
"""

import functools
import math
from dataclasses import replace
from itertools import zip_longest

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.errors import ConcretizationTypeError
from jax.extend.core import Primitive, concrete_or_error
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ._sharding import (
    array_spec,
    axis_names,
    batch_spec,
    entries_of,
    explicit_spec,
    manual_axes,
    mesh_in_context,
    mesh_to_map,
    mesh_with_devices,
    no_devices,
    spec_entry,
)
from ._stage import NOBODY, BatchEntry, Plan, result_dtype


def apply(plan: Plan, x: Array) -> Array:
    """Apply `plan` to a field `x` of global shape `(*batch, *plan.source.shape)`."""
    plan = replace(_called(plan), mesh=mesh_in_context(plan.mesh))
    _refuse_other_devices(plan, x)
    plan.backend.prepare(plan, x.dtype)
    return operator_p.bind(_place(plan, x), plan=plan)


def apply_to_block(plan: Plan, block: Array) -> Array:
    """Apply `plan` to one block, inside a `shard_map` over the mesh."""
    plan = _called(plan)
    plan.backend.prepare(plan, block.dtype)
    return plan.local(block) if plan.backend.differentiable_block else block_p.bind(block, plan=plan)


def _called(plan: Plan) -> Plan:
    """`plan` with who calls it. A transpose is called where the operator was."""
    return plan if plan.caller != NOBODY else replace(plan, caller=plan.backend.caller())


operator_p = Primitive("distributed_operator")


def _block_map(x: Array, *, plan: Plan) -> Array:
    """The meaning of the primitive: the plan on every block, with all mesh axes manual.

    A batch axis must be manual too: left to XLA, its FFTs would gather it.
    """
    # A surrounding, partly manual `shard_map` has made some axes manual already.
    names = frozenset(plan.mesh.axis_names) - manual_axes()
    batch = _batch(plan, x, names)
    return jax.shard_map(
        plan.local,
        mesh=mesh_to_map(plan.mesh),
        in_specs=PartitionSpec(*batch, *plan.source.spec),
        out_specs=PartitionSpec(*batch, *plan.target.spec),
        axis_names=names,
        check_vma=False,
    )(x)


@operator_p.def_impl
def _evaluate(x: Array, *, plan: Plan) -> Array:
    if isinstance(plan.mesh, AbstractMesh):  # Only now, after all transformations, are the devices known.
        plan = replace(plan, mesh=mesh_with_devices(mesh_in_context(plan.mesh), x))
        x = _place(plan, x)
    return _compiled(replace(plan, batch=_batch_of_concrete(plan, x)))(x)


@functools.lru_cache(maxsize=1024)
def _compiled(plan: Plan):
    """The program for eager calls. Left to itself, XLA would leave one-device and trailing entries out of the spec."""
    spec = array_spec(plan.mesh, (*plan.batch, *plan.target.spec))
    return jax.jit(functools.partial(_block_map, plan=plan), out_shardings=NamedSharding(plan.mesh, spec))


@operator_p.def_abstract_eval
def _abstract_value(x, *, plan: Plan):
    lead = x.shape[:-3]
    dtype = _dtype(plan, x)
    shape = (*lead, *plan.target.shape)
    if x.sharding.mesh.empty:
        return x.update(shape=shape, dtype=dtype, weak_type=False)
    spec = explicit_spec(x.sharding.mesh, (*entries_of(x.sharding, x.ndim)[: len(lead)], *plan.target.spec))
    sharding = NamedSharding(x.sharding.mesh, spec)
    return x.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def _dtype(plan: Plan, x) -> np.dtype:
    return functools.reduce(lambda dtype, stage: result_dtype(stage, dtype), plan.stages, x.dtype)


def _batching_rule(axis_data, args, dims, *, plan: Plan):
    (x,), (dim,) = args, dims
    if dim is None:  # not mapped: JAX asks all the same
        return operator_p.bind(x, plan=plan), None
    x = batching.bdim_at_front(x, dim, axis_data.size)
    known = axis_data.spmd_name or PartitionSpec.UNCONSTRAINED
    if axis_data.spmd_name is not None:
        _check_spmd_name(plan, axis_names(known), axis_data.size)
    return operator_p.bind(x, plan=replace(plan, batch=(known, *plan.batch))), 0


def _check_spmd_name(plan: Plan, names: tuple[str, ...], length: int) -> None:
    sizes = {name: size for name, size in plan.mesh.shape.items() if name not in plan.axes}
    if not sizes.keys() >= set(names) or length % math.prod(sizes[name] for name in names):
        raise ValueError(
            f"`spmd_axis_name` of `jax.vmap` must name batch axes of the operator's mesh, {sizes}, that divide the "
            f"mapped axis; got {names} for a length of {length}."
        )


batching.fancy_primitive_batchers[operator_p] = _batching_rule
# A cotangent may come from the user, sharded in any way: it is placed like an input.
ad.deflinear2(operator_p, lambda cotangent, _, *, plan: [apply(plan.transpose(), jnp.asarray(cotangent))])


def _lower(ctx, x, *, plan: Plan):
    # Only a whole program has devices: its other inputs may be on the mesh where `x` is not, and the reverse.
    devices = getattr(ctx.module_context.axis_context, "num_devices", None)
    if devices is not None and devices < plan.mesh.size:
        raise no_devices(plan.mesh)
    return mlir.lower_fun(_block_map, multiple_results=False)(ctx, x, plan=plan)


mlir.register_lowering(operator_p, _lower)


# The same on one block, for backends whose kernels JAX cannot differentiate by itself.
block_p = Primitive("distributed_operator_on_block")


@block_p.def_impl
def _evaluate_block(block: Array, *, plan: Plan) -> Array:
    return jax.jit(plan.local)(block)


@block_p.def_abstract_eval
def _abstract_block(block, *, plan: Plan):
    return block.update(shape=(*block.shape[:-3], *plan.target.block_shape), dtype=_dtype(plan, block), weak_type=False)


def _batch_block(args, dims, *, plan: Plan):
    return block_p.bind(jnp.moveaxis(args[0], dims[0], 0), plan=plan), 0


batching.primitive_batchers[block_p] = _batch_block
ad.deflinear2(block_p, lambda cotangent, _, *, plan: [block_p.bind(cotangent, plan=plan.transpose())])
mlir.register_lowering(block_p, mlir.lower_fun(lambda block, *, plan: plan.local(block), multiple_results=False))


def _refuse_other_devices(plan: Plan, x: Array) -> None:
    """Refuse an array on other devices, as `jax.jit` does: moving it in silence would cost a transfer in each call.

    The order of the devices may differ, as the sharding may. An array that is on one device of the mesh, and on no mesh
    of its own, is yet to be sharded.
    """
    if not isinstance(plan.mesh, Mesh) or AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        return
    own = set(plan.mesh.devices.flat)
    try:
        value = concrete_or_error(None, x)  # `jax.grad` and the like know it when they trace eagerly
    except ConcretizationTypeError:  # `jax.vmap` and `jax.jit` know its mesh
        mesh = jax.typeof(x).sharding.mesh
        found = None if mesh.empty or mesh.size == len(own) else f"{mesh.size} devices"
    else:
        devices = value.sharding.device_set
        to_be_sharded = isinstance(value.sharding, SingleDeviceSharding) and devices <= own
        found = None if not value.committed or devices == own or to_be_sharded else _ids(devices)
    if found is None:
        return
    lead = [None] * (x.ndim - 3)
    spec = PartitionSpec() if plan.source.padded_axes else PartitionSpec(*lead, *plan.source.spec)
    raise ValueError(
        f"`x` must lie on the operator's mesh, {_ids(own)}; got an array on {found}. To move it, call "
        "`jax.device_put(x, sharding)`, or between processes `mpmd.reshard(x, sharding)`, with "
        f"`sharding = NamedSharding(operator.decomposition.mesh, {spec})`."
    )


def _ids(devices: set) -> str:
    return f"devices {np.array2string(np.sort([device.id for device in devices]), separator=', ', threshold=16)}"


def _place(plan: Plan, x: Array) -> Array:
    """Bring `x` to the sharding that the plan starts from."""
    if not isinstance(x, Tracer):
        return _put(x, plan.mesh, (*_batch_of_concrete(plan, x), *plan.source.spec))
    mesh = jax.typeof(x).sharding.mesh
    if mesh.empty and AxisType.Explicit not in plan.mesh.axis_types:
        return _constrain(x, plan)
    if mesh != plan.mesh.abstract_mesh and not manual_axes():
        x = _put(x, plan.mesh, ())
    sharding = jax.typeof(x).sharding
    spec = explicit_spec(plan.mesh, (*_lead(plan, sharding, x.ndim), *plan.source.spec))
    mesh = plan.mesh.abstract_mesh if sharding.mesh.empty else sharding.mesh
    return x if sharding.spec == spec else jax.sharding.reshard(x, NamedSharding(mesh, spec))


def _constrain(x: Array, plan: Plan) -> Array:
    """Tell a surrounding `jit` which devices it is for, as an ambient mesh does by itself: it does not look inside our
    primitive, and inputs without a sharding would leave it on one device."""
    if not (isinstance(plan.mesh, Mesh) and jax.sharding.get_abstract_mesh().empty):
        return x
    batch = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 3)
    spec = PartitionSpec(*batch, *plan.source.spec)
    return jax.lax.with_sharding_constraint(x, NamedSharding(plan.mesh, spec))


def _put(x: Array, mesh: Mesh | AbstractMesh, entries: tuple[BatchEntry, ...]) -> Array:
    sharding = NamedSharding(mesh, array_spec(mesh, entries))
    if not isinstance(mesh, Mesh):  # an abstract mesh has no devices to put anything on
        return jax.sharding.reshard(x, sharding) if isinstance(x, Tracer) else x
    # On another mesh, or on Explicit axes of one device, an equivalent sharding may make an array of another type.
    same_type = (
        not isinstance(x, Tracer)
        and isinstance(x.sharding, NamedSharding)
        and x.sharding.mesh == mesh
        and jax.typeof(x).sharding.spec == explicit_spec(mesh, (*entries, *[None] * x.ndim)[: x.ndim])
    )
    return x if same_type and x.sharding.is_equivalent_to(sharding, x.ndim) else jax.device_put(x, sharding)


def _batch(plan: Plan, x, names: frozenset[str]) -> tuple[BatchEntry, ...]:
    """Over which mesh axes, of those in `names`, the leading axes of `x` are divided: as its type says (Explicit), as
    `vmap` was told (other axes), else over the batch axes of the mesh that divide them."""
    lead = x.shape[:-3]
    sharding = jax.typeof(x).sharding
    kinds = zip(sharding.mesh.axis_names, sharding.mesh.axis_types)
    explicit = {name for name, kind in kinds if kind == AxisType.Explicit}
    entries = []
    for typed, given in zip_longest(_lead(plan, sharding, x.ndim), plan.batch, fillvalue=PartitionSpec.UNCONSTRAINED):
        if given is not PartitionSpec.UNCONSTRAINED:
            given = spec_entry(name for name in axis_names(given) if name not in explicit)
        entries.append(typed or given)
    free = names.difference(plan.axes, explicit)
    return batch_spec(lead, {n: size for n, size in plan.mesh.shape.items() if n in free}, tuple(entries))


def _batch_of_concrete(plan: Plan, x: Array) -> tuple[BatchEntry, ...]:
    sharding = getattr(x, "sharding", None)
    if isinstance(sharding, NamedSharding) and sharding.mesh == plan.mesh:
        return _lead(plan, sharding, x.ndim)
    return _batch(plan, x, frozenset(plan.mesh.axis_names))


def _lead(plan: Plan, sharding: NamedSharding, ndim: int) -> tuple[BatchEntry, ...]:
    """What a sharding says of the leading axes, without the mesh axes that the grid needs."""
    entries = entries_of(sharding, ndim)[: ndim - 3]
    return tuple(spec_entry(name for name in axis_names(entry) if name not in plan.axes) for entry in entries)
