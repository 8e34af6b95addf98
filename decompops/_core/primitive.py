"""The JAX primitive that runs every distributed operator, and its form for one block inside a `shard_map`.

The parameters of both primitives are a hashable `Call`, and a program that tells JAX the devices. The rules for JAX's
transformations are written once, in this file. docs/design_plans.md explains why this is a primitive and not a
`custom_vjp` or a bare `shard_map`.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .._backend.base import Call
from .._backend.execute import run_on_block
from .._backend.xla.backend import XLA
from .._common.blocks import entry_names
from .._common.memory_layout import exported
from .._common.placement import batch_of, batch_of_concrete, place_field, typed_as_result
from .._common.sharding import (
    array_spec,
    explicit_spec,
    manual_axes,
    map_blocks,
    mesh_in_context,
    mesh_with_devices,
    no_devices,
    program_on,
    result_sharding,
)


def apply(call: Call, x: Array) -> Array:
    """Apply the plan of `call` to a field `x` of global shape `(*batch, *call.plan.source.shape)`."""
    if (mesh := mesh_in_context(call.mesh)) is not call.mesh:
        call = replace(call, mesh=mesh, own=call.own or call.mesh)
    x = place_field(x, call.mesh, call.plan.source, call.batch)
    call.backend.prepare(call, x.dtype)
    if isinstance(x, Tracer) or isinstance(call.mesh, AbstractMesh) or manual_axes():
        return _bind(reduction_p if call.plan.reduces else operator_p, x, call)
    return _run(x, call)  # The result is the same, in less time.


def apply_to_block(call: Call, block: Array) -> Array:
    """Apply the plan of `call` to one block, inside a `shard_map` over the mesh, or over the mesh axes of the grid."""
    call.backend.prepare(call, block.dtype)
    simple = call.backend.differentiable_block and not _free_axes(call)
    return run_on_block(call, block) if simple else _bind(block_p, block, call)


def apply_on_one_device(call: Call, x: Array) -> Array:
    """Apply the plan of `call`, which does not shard the grid, to an array that is on no mesh."""
    return _bind(block_p, x, call)


def _bind(primitive: Primitive, x: Array | np.ndarray, call: Call) -> Array:
    """Bind a primitive. If kernels run it, its parameter `devices` names the devices that they are compiled for.

    In a program, types do not name devices. So the program may get the blocks in another order of the devices, from an
    array or from `jax.set_mesh`, and only JAX can find this.
    """
    mesh = call.own or call.mesh
    named = isinstance(mesh, Mesh) and mesh.size > 1 and not call.backend.differentiable_block
    return primitive.bind(x, call=call, devices=program_on(mesh) if named else None)


operator_p = Primitive("distributed_operator")
# The same for reductions. `Structure.through` distinguishes them: they leave the field of their argument where it is.
reduction_p = Primitive("distributed_reduction")


def _block_map(x: Array, *, call: Call) -> Array:
    """Run the plan on every block, with all mesh axes manual.

    Batch axes must be manual as well, because XLA would gather sharded batch axes for its FFTs.
    """
    return _map_free_axes(call, x, call.plan.source.spec, call.plan.target.spec)


def _free_axes(call: Call) -> frozenset[str]:
    """Return the mesh axes that are not manual. A partly manual `shard_map` around the call leaves some of them."""
    return frozenset(call.mesh.axis_names) - manual_axes()


def _map_free_axes(call: Call, x: Array, source: PartitionSpec, target: PartitionSpec) -> Array:
    """Run the plan with all mesh axes manual. `source` and `target` name the axes of the grid that are not yet."""
    names, lead = _free_axes(call), x.ndim - call.plan.source.ndim
    batch = batch_of(x, lead, call.mesh, call.plan.mesh_axes, call.batch, names)
    specs = PartitionSpec(*batch, *source), PartitionSpec(*batch, *target)
    return map_blocks(functools.partial(run_on_block, call), call.mesh, names, *specs, check_types=False)(x)


def _evaluate(x: Array | np.ndarray, *, call: Call, **_) -> Array:
    x = x if isinstance(x, Array) else jnp.asarray(x)  # `jax.grad` passes NumPy arrays on unchanged.
    if isinstance(call.mesh, AbstractMesh):  # The devices are known only here, after all transformations.
        call = replace(call, mesh=mesh_with_devices(mesh_in_context(call.mesh), x))
    x = place_field(x, call.mesh, call.plan.source, call.batch)
    return _run(x, call)  # A function that `jax.linearize` returns binds its tangent as it is.


def _run(x: Array, call: Call) -> Array:
    """Run the program for a placed array with values."""
    plan, lead = call.plan, x.shape[: -call.plan.source.ndim]
    batch = batch_of_concrete(x, len(lead), call.mesh, plan.mesh_axes, call.batch)
    call = call if batch == call.batch else replace(call, batch=batch)
    if not x.size:  # XLA does not cut empty arrays into blocks, and JAX cannot read the result of such a program.
        return jax.device_put(np.zeros((*lead, *plan.target.shape), plan.result_dtype(x.dtype)), _result_sharding(call))
    return _compiled(call)(x)


def _result_sharding(call: Call) -> NamedSharding:
    return NamedSharding(call.mesh, array_spec(call.mesh, (*call.batch, *call.plan.target.spec)))


@functools.lru_cache(maxsize=1024)
def _compiled(call: Call):
    """Return the program for eager calls. Its output sharding is given, because XLA's may omit some mesh axes."""
    return jax.jit(functools.partial(_block_map, call=call), out_shardings=_result_sharding(call))


def _abstract_value(x, *, call: Call, **_):
    plan = call.plan
    lead = x.shape[: -plan.source.ndim]
    dtype = plan.result_dtype(x.dtype)
    shape = (*lead, *plan.target.shape)
    if x.sharding.mesh.empty:
        return x.update(shape=shape, dtype=dtype, weak_type=False)
    sharding = result_sharding(x.sharding, len(lead), plan.target.spec)
    return x.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def _batching_rule(primitive: Primitive, axis_data, args, dims, *, call: Call, **_):
    (x,), (dim,) = args, dims
    if dim is None:  # JAX calls this rule also for an argument that is not mapped.
        return _bind(primitive, x, call), None
    x = batching.bdim_at_front(x, dim, axis_data.size)
    known = axis_data.spmd_name or PartitionSpec.UNCONSTRAINED
    if axis_data.spmd_name is not None:
        # An array on one device may be mapped over a mesh that the operator does not know.
        if primitive is block_p and call.mesh.size == 1:
            return _bind(block_p, x, call), 0
        _check_spmd_name(call, entry_names(known), axis_data.size)
    return _bind(primitive, x, replace(call, batch=(known, *call.batch))), 0


def _check_spmd_name(call: Call, names: tuple[str, ...], length: int) -> None:
    sizes = {name: size for name, size in call.mesh.shape.items() if name not in call.plan.mesh_axes}
    if not sizes.keys() >= set(names) or length % math.prod(sizes[name] for name in names):
        raise ValueError(
            f"`spmd_axis_name` of `jax.vmap` must name batch axes of the operator's mesh, {sizes}, that divide the "
            f"mapped axis; got {names} for a length of {length}."
        )


def _lower(ctx, x, *, call: Call, **_):
    # This is the number of devices of the whole program. Any input of the program, not only `x`, may tell it to JAX.
    devices = getattr(ctx.module_context.axis_context, "num_devices", None)
    if devices is not None and devices < call.mesh.size:
        raise no_devices(call.mesh)
    return _lower_function(_of_any_type, ctx, x, call)


def _of_any_type(x: Array, *, call: Call) -> Array:
    """Run the plan on an array with any Explicit mesh axes in its type.

    A function that `jax.linearize` returns binds its tangent as it is, with any type. If the length of a batch axis is
    a symbol, which exported programs may contain, a loop runs over the batch: JAX cannot run a `shard_map` of arrays
    with symbolic lengths (JAX 0.10.2 and 0.12.0).
    """
    if not all(isinstance(n, int) for n in x.shape):
        return jax.lax.map(functools.partial(_of_any_type, call=replace(call, batch=call.batch[1:])), x)
    source = call.plan.source
    if any(explicit_spec(call.mesh, source.spec)):
        x = place_field(x, call.mesh, source, call.batch)
    return _block_map(x, call=call)


def _lower_function(function: Callable, ctx, x, call: Call, **_):
    """Lower `function(x, call=call)`. An exported program contains only what all later versions of JAX can run.

    So it contains operations of XLA, but no kernels, which other installations may not have.
    """
    lower = mlir.lower_fun(function, multiple_results=False)
    if not ctx.module_context.lowering_parameters.for_export:
        return lower(ctx, x, call=call)
    with exported():
        return lower(ctx, x, call=replace(call, backend=XLA(overlap=call.backend.overlap, wire=call.backend.wire)))


def _pulled_back(cotangent: Array | np.ndarray, x: Any, *, call: Call, **_) -> list[Array]:
    """Apply the transpose to a cotangent. Its type may lack mesh axes: loops of JAX lose them, and users choose any."""
    cotangent, target = jnp.asarray(cotangent), call.plan.target
    if isinstance(cotangent, Tracer):
        batch = x.aval.ndim - target.ndim
        cotangent = typed_as_result(cotangent, x.aval.sharding, batch, target.spec, mesh_in_context(call.mesh))
    return [apply(call.transpose(), cotangent)]


for primitive in (operator_p, reduction_p):
    primitive.def_impl(_evaluate)
    primitive.def_abstract_eval(_abstract_value)
    batching.fancy_primitive_batchers[primitive] = functools.partial(_batching_rule, primitive)
    ad.deflinear2(primitive, _pulled_back)
    # Users may pass tangents with any sharding. `apply` shards them like fields.
    ad.defjvp(primitive, lambda tangent, x, *, call, **_: apply(call, jnp.asarray(tangent)))
    mlir.register_lowering(primitive, _lower)


# The primitive for one block: for backends whose kernels JAX cannot differentiate by itself, and for whole arrays.
block_p = Primitive("distributed_operator_on_block")


@block_p.def_impl
def _evaluate_block(block: Array | np.ndarray, *, call: Call, **_) -> Array:
    return _compiled_on_block(call)(block)


@functools.lru_cache(maxsize=1024)
def _compiled_on_block(call: Call):
    return jax.jit(functools.partial(run_on_block, call))


@block_p.def_abstract_eval
def _abstract_block(block, *, call: Call, **_):
    plan = call.plan
    shape = (*block.shape[: -plan.source.ndim], *plan.target.block_shape)
    return block.update(shape=shape, dtype=plan.result_dtype(block.dtype), weak_type=False)


def _on_free_axes(block: Array, *, call: Call) -> Array:
    """Run the plan on a block, whose batch may be sharded over mesh axes that are not manual."""
    if call.mesh.size == 1 or not _free_axes(call):
        return run_on_block(call, block)
    return _map_free_axes(call, block, PartitionSpec(), PartitionSpec())


batching.fancy_primitive_batchers[block_p] = functools.partial(_batching_rule, block_p)
ad.deflinear2(block_p, lambda cotangent, x, *, call, **_: [_bind(block_p, cotangent, call.transpose())])
mlir.register_lowering(block_p, functools.partial(_lower_function, _on_free_axes))
