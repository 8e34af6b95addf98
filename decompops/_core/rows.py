"""The primitive `move_rows`: rows of arrays move from device to device, by a compiled kernel or by XLA.

It is linear in the arrays: each row that moves has one slot before and one slot after. So its transpose is the same
primitive, with all rows on their way back.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._backend.base import Group
from .._backend.execute import rows_of_all
from .._backend.xla.backend import XLA
from .primitive import apply_to_block
from .row_route import RowRoute


def move_rows(group: Group, leaving: Array, sent: Array, count: Array, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Move rows of arrays to other devices, inside a `shard_map`. Slots without a row are zero afterwards.

    Rows that come fill the slots of those that leave, and then the slots behind the last row. If more rows leave than
    come, the last rows fill the slots that are still free. So a device's rows are in its first slots, before and after.

    **Arguments:**

    - `leaving`: integers of shape `(slots,)` and dtype int32. It begins with the slots whose rows leave this device, by
        the number of their destination. The rest has no meaning.
    - `sent`: how many rows device i sends to device d, for all i and d: integers of shape `(devices, devices)` and
        dtype int32, zero on the diagonal.
    - `count`: how many rows this device has: an integer of dtype int32.
    - `arrays`: arrays of shape `(slots, ...)` and of any dtype.
    """
    return tuple(move_rows_p.bind(leaving, sent, count, *arrays, group=group, back=False))


def everywhere(group: Group, row: Array) -> Array:
    """Give each device of `group` the rows of all of them, as an array of shape `(size, *row.shape)`."""
    return rows_of_all(group, row, apply_to_block)


move_rows_p = Primitive("move_rows")
move_rows_p.multiple_results = True
_FACTS = 3  # The arguments before the arrays.


def _move(leaving: Array, sent: Array, count: Array, *arrays: Array, group: Group, back: bool) -> tuple[Array, ...]:
    if group.backend.moves_rows:
        return group.backend.move_rows(group, leaving, sent, count, arrays, back=back)
    return RowRoute.of(group, leaving, sent, count, back=back)(arrays)


def _lower(ctx, *args, group: Group, back: bool):
    """Lower to a kernel, or for an exported program to operations of XLA, which other installations have as well."""
    if ctx.module_context.lowering_parameters.for_export:
        group = replace(group, backend=XLA())
    return mlir.lower_fun(_move, multiple_results=True)(ctx, *args, group=group, back=back)


def _abstract_value(leaving, sent, count, *arrays, group: Group, back: bool):
    del leaving, sent, count, group, back
    return [x.update(weak_type=False) for x in arrays]


def _batching_rule(args, dims, **params):
    if all(dim is None for dim in dims[:_FACTS]):  # The same rows of all arrays move: a batch axis is one column more.
        moved = [x if dim is None else jnp.moveaxis(x, dim, -1) for x, dim in zip(args, dims)]
        results = move_rows_p.bind(*moved, **params)
        return results, [None if dim is None else x.ndim - 1 for x, dim in zip(results, dims[_FACTS:])]
    size = next(x.shape[dim] for x, dim in zip(args, dims) if dim is not None)
    batches = [None if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(args, dims)]
    one = lambda i: move_rows_p.bind(*(x if b is None else b[i] for x, b in zip(args, batches)), **params)
    return jax.lax.map(one, jnp.arange(size)), [0] * (len(args) - _FACTS)


def _derivative(primals, tangents, **params):
    results = move_rows_p.bind(*primals, **params)
    found = list(tangents[_FACTS:])
    known = [i for i, tangent in enumerate(found) if type(tangent) is not ad.Zero]
    if known:
        moved = move_rows_p.bind(*primals[:_FACTS], *(found[i] for i in known), **params)
        for i, tangent in zip(known, moved):
            found[i] = tangent
    return results, found


def _transposed(cotangents, *args, group: Group, back: bool):
    facts, arrays = args[:_FACTS], args[_FACTS:]
    found = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in arrays]
    needed = [i for i, x in enumerate(found) if x is not None and type(cotangents[i]) is not ad.Zero]
    if needed:
        moved = move_rows_p.bind(*facts, *(cotangents[i] for i in needed), group=group, back=not back)
        for i, cotangent in zip(needed, moved):
            found[i] = cotangent
    return [None] * _FACTS + found


move_rows_p.def_impl(jax.jit(_move, static_argnames=("group", "back")))
move_rows_p.def_abstract_eval(_abstract_value)
mlir.register_lowering(move_rows_p, _lower)
batching.primitive_batchers[move_rows_p] = _batching_rule
ad.primitive_jvps[move_rows_p] = _derivative
ad.primitive_transposes[move_rows_p] = _transposed
