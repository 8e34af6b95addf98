"""Runs the stages of a plan on one block: kernels of the backend run the stages that they support, XLA the others."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._common.blocks import Blocks, entry_names, flat_names, spec_entry
from .._common.ordered import extreme_or_nan, from_ordered, ordered
from .._plan.lower import Chunks, Segment, Wire, schedule
from .._plan.plan import Plan
from .._plan.reduce import Reduce
from .._plan.stage import AbstractStage, Clear, Move
from .base import AbstractBackend, Call, Group
from .wire import narrower, send_narrow
from .xla.backend import assembled, run_stage


# So many devices, or fewer, exchange the numbers of a reduction all at once.
AT_ONCE = 8


def run_on_block(call: Call, block: Array) -> Array:
    """Apply the plan of `call` to one block, inside a `shard_map` over the mesh."""
    fields = math.prod(block.shape[: -call.plan.source.ndim]) if call.backend.overlap > 1 else 1
    fields = fields if isinstance(fields, int) else 1  # In an exported program, the number may be a symbol.
    wire = narrower(call.backend.wire, np.dtype(block.dtype))
    for part in lowered(call.plan, call.backend, call.platform, fields, wire):
        block = _run_pieces(part, block, call) if isinstance(part, Chunks) else _run(part, block, call)
    return block


def _run(segment: Segment, block: Array, call: Call) -> Array:
    if segment.wire is not None:
        (move,), plain = segment.plan.stages, replace(segment, wire=None)
        assert isinstance(move, Move) and move.mesh_axis is not None  # noqa: PT018
        if segment.wire == "float16" and move.before.padded_axes:
            # The largest number of a field sets the scale of what is sent, and padding may hold any numbers.
            block = run_stage(Clear(move.before), block, call.platform)
        return send_narrow(lambda b: _run(plain, b, call), block, segment.wire, move.before.ndim, move.mesh_axis)
    if segment.native:
        result = call.backend.run(segment.plan, block, call)
        return _check_result(result, block, segment.plan, f"`{type(call.backend).__name__}.run`")
    for stage in segment.plan.stages:
        result = _reduced(stage, block, call) if isinstance(stage, Reduce) else run_stage(stage, block, call.platform)
        block = _check_result(result, block, stage, f"the stage `{type(stage).__name__}` of `{call.plan.name}`")
    return block


def _reduced(stage: Reduce, block: Array, call: Call) -> Array:
    """Reduce a block to one number, or copy a number into each cell of a block.

    Each device reduces its own cells. With kernels, every device then gets the numbers of all devices, and reduces them
    in the order of the devices. So the result is the same to the last bit. Many devices exchange numbers along one grid
    axis after the other.
    """
    cells = stage.before
    if stage.transposed:
        return jnp.broadcast_to(block, (*block.shape[: -cells.ndim], *stage.after.block_shape))
    entries = [entry for entry, parts in zip(cells.names, cells.parts) if parts > 1]
    grid = tuple(range(-cells.ndim, 0))
    if stage.to == "sum":
        reduce, across = functools.partial(jnp.sum, dtype=block.dtype), lax.psum
        number = reduce(block, axis=grid, keepdims=True)
    else:
        reduce, across = (jnp.max, lax.pmax) if stage.to == "max" else (jnp.min, lax.pmin)
        largest = stage.to == "max"
        number = ordered(extreme_or_nan(block, grid, largest=largest, keepdims=True), largest=largest)
    if call.backend.moves_rows:
        groups = [entry_names(entry) for entry in entries]
        if len(groups) > 1 and math.prod(cells.parts) <= AT_ONCE:
            groups = [tuple(flat_names(entries))]
        for names in reversed(groups):
            group = Group(call.plan.name, call.mesh, names, call.backend, call.caller)
            number = reduce(rows_of_all(group, number, run_on_block), axis=0)
    elif entries:
        number = across(number, tuple(flat_names(entries)))
    return number if stage.to == "sum" else from_ordered(number, block.dtype)


def rows_of_all(group: Group, row: Array, run: Callable[[Call, Array], Array]) -> Array:
    """Give each device of `group` the rows of all of them, as an array of shape `(size, *row.shape)`.

    With compiled kernels, this is a transpose, which the function `run` runs on a block. A device that waits for others
    then says so. `wire` does not apply: with rounded sums, a solver would end early, or never.
    """
    size, entry = group.size, spec_entry(group.names)
    if size == 1 or row.size == 0:  # An empty batch: kernels move blocks of at least one number.
        return jnp.broadcast_to(row, (size, *row.shape))
    if not group.backend.moves_rows:
        return lax.all_gather(row, group.names)
    lengths = (size, size * row.size)
    rows, columns = Blocks(lengths, (size, 1), (entry, None)), Blocks(lengths, (1, size), (None, entry))
    plan = Plan(group.name, rows, (Move(rows, columns),))
    backend = group.backend
    if backend.wire is not None:
        backend = replace(backend, wire=None)  # pyright: ignore[reportArgumentType]
    call = Call(plan, group.mesh, backend, caller=group.caller)
    return run(call, jnp.tile(row.ravel(), size)[None]).reshape(size, *row.shape)


def _run_pieces(chunks: Chunks, block: Array, call: Call) -> Array:
    """Cut a block, run each piece, and join the results."""
    source, target, axis = chunks.source, chunks.target, chunks.axis
    lead = block.shape[: -source.ndim]
    if axis is None:
        block = block.reshape(-1, *source.block_shape)
        cut = joined = -source.ndim - 1
    else:
        cut, joined = source.position(axis), target.position(axis)

    # Each piece waits for an earlier piece, so that at most two pieces (on CPUs one) are processed at the same time. If
    # pieces did not wait, XLA for GPUs would exchange all of them before it transforms the first that has arrived. XLA
    # for CPUs, whose exchanges block, would hold many pieces in memory.
    in_flight = 1 if call.platform == "cpu" else 2
    results, start = [], 0
    for length, segments in chunks.pieces:
        if len(results) >= in_flight:
            block, results[-in_flight] = lax.optimization_barrier((block, results[-in_flight]))
        piece = lax.slice_in_dim(block, start, start + length, axis=cut)
        for segment in segments:
            piece = _run(segment, piece, call)
        results.append(piece)
        start += length
    return assembled(results, joined, start).reshape(*lead, *target.block_shape)


def _check_result(result: Array, block: Array, step: AbstractStage | Plan, what: str) -> Array:
    """Return `result`. Raise `ValueError` if it does not have the shape and dtype that `step` declares.

    Without this check, a later step would raise the error, although `step` has caused it.
    """
    before, after = (step.source, step.target) if isinstance(step, Plan) else (step.before, step.after)
    shape, dtype = (*block.shape[: -before.ndim], *after.block_shape), step.result_dtype(np.dtype(block.dtype))
    if not isinstance(result, Array) or (result.shape, result.dtype) != (shape, dtype):
        got = f"{result.dtype}{result.shape}" if isinstance(result, Array) else repr(result)
        raise ValueError(f"{what} must return a block {dtype}{shape}; got {got}.")
    return result


@functools.lru_cache(maxsize=1024)
def lowered(
    plan: Plan, backend: AbstractBackend, platform: str, fields: int, wire: Wire | None = None
) -> tuple[Segment | Chunks, ...]:
    """Return the steps in which `backend` runs `plan`. `fields` is how many fields the batch axes of a block hold."""
    return schedule(plan, backend.takes, platform, backend.overlap, fields, wire, narrows=backend.narrows)
