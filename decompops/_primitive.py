"""The one JAX primitive that carries every distributed operator.

Its only parameter is a hashable `Plan`. All of JAX's transformations are rules on plans, written once, here; this is
the only file that touches JAX's extension interface. Why a primitive and not `custom_vjp` or a bare `shard_map`:
docs/design.md.
"""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.errors import ConcretizationTypeError
from jax.extend.core import Primitive, concrete_or_error
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ._sharding import (
    array_spec,
    axis_names,
    batch_of,
    batch_of_concrete,
    manual_axes,
    map_blocks,
    mesh_in_context,
    mesh_with_devices,
    no_devices,
    place_field,
    refuse_other_devices,
    result_sharding,
)
from ._stage import NOBODY, Plan, result_dtype


def apply(plan: Plan, x: Array) -> Array:
    """Apply `plan` to a field `x` of global shape `(*batch, *plan.source.shape)`."""
    plan = replace(_called(plan), mesh=mesh_in_context(plan.mesh))
    if not manual_axes():
        lead = [None] * (x.ndim - 3)
        spec = PartitionSpec() if plan.source.padded_axes else PartitionSpec(*lead, *plan.source.spec)
        refuse_other_devices(_known(x), plan.mesh, spec)
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


def _known(x: Array) -> Array:
    """The value of `x`, if it is known: `jax.grad` and the like know it when they trace eagerly."""
    try:
        return concrete_or_error(None, x)
    except ConcretizationTypeError:
        return x


def _place(plan: Plan, x: Array) -> Array:
    """Bring `x` to the sharding that the plan starts from."""
    return place_field(x, plan.mesh, plan.axes, plan.source.spec, plan.batch)


operator_p = Primitive("distributed_operator")


def _block_map(x: Array, *, plan: Plan) -> Array:
    """The meaning of the primitive: the plan on every block, with all mesh axes manual.

    A batch axis must be manual too: left to XLA, its FFTs would gather it.
    """
    # A surrounding, partly manual `shard_map` has made some axes manual already.
    names = frozenset(plan.mesh.axis_names) - manual_axes()
    batch = batch_of(x, plan.mesh, plan.axes, plan.batch, names)
    specs = PartitionSpec(*batch, *plan.source.spec), PartitionSpec(*batch, *plan.target.spec)
    return map_blocks(plan.local, plan.mesh, names, *specs, check_types=False)(x)


@operator_p.def_impl
def _evaluate(x: Array, *, plan: Plan) -> Array:
    if isinstance(plan.mesh, AbstractMesh):  # Only now, after all transformations, are the devices known.
        plan = replace(plan, mesh=mesh_with_devices(mesh_in_context(plan.mesh), x))
        x = _place(plan, x)
    batch = batch_of_concrete(x, plan.mesh, plan.axes, plan.batch)
    return _compiled(replace(plan, batch=batch))(x)


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
    sharding = result_sharding(x.sharding, len(lead), plan.target.spec)
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
