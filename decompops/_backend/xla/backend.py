"""The default backend: XLA's collectives and FFTs."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..._basis.base import AbstractLineTransform, Run
from ..._common.blocks import MeshAxis
from ..._common.compat import most_fft_elements
from ..._common.memory_layout import row_major, stored_as
from ..._plan.lower import Wire
from ..._plan.pieces import even_lengths
from ..._plan.stage import AbstractStage, Clear, Crop, Extend, LocalTransform, Move, Resize, Scale
from ..base import AbstractBackend, check_counts
from ..wire import check_wire
from .halo import Exchange, clear, crop, embed, extend, permute


# XLA's CPU transposes write the output element by element. If the input stride is large, above all if it is a power of
# two, nearly every read misses the cache. A transpose in chunks, each with a few cells of the new last axis, uses whole
# cache lines, and is 1.4 to 2 times as fast at 256^3 (docs/performance.md). Too many chunks would make large programs.
_CHUNK = 8
_MOST_CHUNKS = 64
# A function `(block, mesh_axis, axis) -> block` that exchanges parts of blocks between the devices along a mesh axis.
AllToAll = Callable[[Array, MeshAxis, int], Array]


@dataclass(frozen=True)
class XLA(AbstractBackend):
    """Run operators with XLA's collectives and FFTs. This backend works everywhere and has no kernels to compile.

    The collectives use NCCL on GPUs, Gloo between CPU processes, and ICI on TPUs.

    **Arguments:**

    - `overlap`: the number of pieces that each exchange, and the transforms next to it, are split into. XLA for GPUs
        exchanges one piece while it transforms another piece. With more pieces, complex transforms need less scratch
        memory, but programs take longer to compile, above all for CPUs. See docs/performance_exchanges.md.
    - `wire`: the narrower dtype that exchanges between pencils send: "float32", "bfloat16" or "float16". `None` sends
        the field's dtype. docs/performance_exchanges.md lists the bytes sent and the rounding errors.

    **Raises:** `ValueError` if an option has an invalid value.
    """

    overlap: int = field(default=1, kw_only=True)
    wire: Wire | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check_counts(self, "overlap")
        check_wire(self)

    @property
    def differentiable_block(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.wire is None  # Exchanges with `wire` reinterpret floats as integers, which have no derivative.

    def problem(self) -> None:
        return None

    def check(self, mesh) -> None:
        del mesh  # XLA runs on every mesh.


def run_stage(stage: AbstractStage, block: Array, platform: str) -> Array:
    """Apply one stage to one block with XLA, inside a `shard_map` over the mesh.

    - `block`: shape `(*batch, *stage.before.block_shape)`. The result has shape `(*batch, *stage.after.block_shape)`.
    - `platform`: "cpu", "gpu" or "tpu".

    Raises `TypeError` if the stage is from another package and has no method `apply`.
    """
    match stage:
        case Move():
            return move(stage, block, chunked=platform == "cpu")
        case LocalTransform():
            return local_transform(stage, block, most_fft_elements(platform))
        case Extend():
            return extend_or_add(stage, block, permute)
        case Crop():
            return (embed if stage.transposed else crop)(stage, block)
        case Clear():
            return clear(stage, block)
        case Scale():
            return block * stage.factor
        case Resize():
            return (resize_fused if stage.fused else resize)(stage, block)
        case _:
            return stage.apply(block)


def extend_or_add(stage: Extend, block: Array, exchange: Exchange) -> Array:
    """Extend one block along one axis. The transposed stage adds each halo cell to the cell that it was copied from."""
    if not stage.transposed:
        return extend(stage, block, exchange)
    forward = stage.transpose()
    # `linear_transpose` needs an example input, whose values do not matter. A part of `block` has the right type: it
    # varies over the same axes of a surrounding `shard_map`.
    primal = block[..., *map(slice, forward.before.block_shape)]
    # In a `shard_map` without `check_vma`, the type of an argument names the axes over which it varies, but the type of
    # a computed array does not. JAX requires that the cotangent and the result have the same type. The result is a
    # computed array, and `[None]` makes the cotangent a computed array, too.
    (result,) = jax.linear_transpose(lambda b: extend(forward, b, exchange)[None], primal)(block[None])
    return result


def all_to_all(block: Array, name: MeshAxis, axis: int) -> Array:
    """Send part `i` of `block` along `axis` to device `i` of the mesh axis `name`, and join the parts that arrive."""
    return lax.all_to_all(block, name, axis, axis, tiled=True)


def move(stage: Move, block: Array, *, chunked: bool = False, exchange: AllToAll = all_to_all) -> Array:
    """Rearrange one block: with an all-to-all if a grid axis changes its mesh axes, else with a local transpose.

    - `block`: of shape `(*batch, *stage.before.block_shape)`, inside a `shard_map` over the mesh. The result has shape
        `(*batch, *stage.after.block_shape)`.
    - `chunked`: transpose a few cells at a time, which is faster on CPUs.
    - `exchange`: a replacement for `all_to_all`, with the same arguments and the same result.
    """
    before, after, lead = stage.before, stage.after, block.ndim - stage.before.ndim
    order = tuple(range(lead)) + tuple(lead + before.order.index(axis) for axis in after.order)
    gathered, divided = stage.gathered, stage.divided
    if gathered is None or divided is None or stage.mesh_axis is None:
        block = _reorder(block, order, chunked)
        # `row_major` is needed on GPUs: without it, XLA would rearrange each array that is computed from the result.
        return block if chunked else row_major(block)

    # Along the axis that becomes sharded, the block is cut into one piece for each receiver. The pieces are rearranged
    # while they are copied, and joined along the axis that becomes whole. The all-to-all then splits and joins along
    # this one axis. So nothing is copied again, except inside XLA's all-to-all.
    cells, parts, length = after.core(divided), stage.parts, before.core(divided)
    cut, join = lead + before.order.index(divided), lead + after.order.index(gathered)
    pieces = []
    for part in range(parts):
        start = min(part * cells, length)
        stop = min(start + cells, length)
        piece = pad_end(lax.slice_in_dim(block, start, stop, axis=cut), cells, cut)
        pieces.append(_reorder(piece, order, chunked))
    block = jnp.concatenate(pieces, axis=join)
    if (parts - 1) * cells >= length:
        # If XLA knows that a piece is zero, it gives this piece a different memory layout, and then rejects its own
        # all-to-all ("operands with different shapes"). The barrier hides which pieces are zero.
        block = lax.optimization_barrier(block)
    block = exchange(block, stage.mesh_axis, join)
    return lax.slice_in_dim(block, 0, after.core(gathered), axis=join)


def pad_end(block: Array, length: int, axis: int) -> Array:
    missing = length - block.shape[axis]
    if missing == 0:
        return block
    return jnp.pad(block, [(0, missing if i == axis else 0) for i in range(block.ndim)])


def _reorder(block: Array, order: tuple[int, ...], chunked: bool) -> Array:
    last, length = order[-1], block.shape[order[-1]]
    if not chunked or last == block.ndim - 1 or length <= _CHUNK:
        return block.transpose(order)
    chunk = max(_CHUNK, -(-length // _MOST_CHUNKS))
    chunks = [
        lax.slice_in_dim(block, start, min(start + chunk, length), axis=last).transpose(order)
        for start in range(0, length, chunk)
    ]
    return jnp.concatenate(chunks, axis=-1)


def local_transform(stage: LocalTransform, block: Array, most: float | int = math.inf) -> Array:
    """Transform the lines of one block, with at most `most` elements in one FFT."""
    axes = tuple(stage.before.position(axis) for axis in stage.axes)
    # In a real transform, the factor multiplies the spectrum and not the field, because the spectrum is copied anyway.
    early, late = (stage.scale, 1.0) if stage.transform.to_points else (1.0, stage.scale)
    # XLA gives an FFT the memory layout of neighbouring operations. On CPUs, XLA's FFT fails at run time if this layout
    # is not row-major.
    block = row_major(_times(block, early))
    return _times(row_major(_transformed(stage.transform, block, axes, stage.points, most)), late)


def _transformed(
    transform: AbstractLineTransform, block: Array, axes: tuple[int, ...], points: tuple[int, ...], most: float | int
) -> Array:
    def apply(block: Array) -> Array:
        return transform.apply(block, axes, points)

    # A result has at most twice as many elements as its input. If the number of elements is a symbol, which exported
    # programs may contain, no FFT is split.
    if not isinstance(block.size, int) or 2 * block.size <= most:
        return apply(block)
    elements = max(block.size, jax.eval_shape(apply, block).size)
    if elements <= most:
        return apply(block)
    others = [axis for axis in range(-block.ndim, 0) if axis not in axes]
    if elements > most * math.prod(block.shape[axis] for axis in others):
        parts = transform.separated(axes, points)
        if len(parts) == 1:  # A single line cannot be split.
            return apply(block)
        for part, part_axes, part_points in parts:
            block = _transformed(part, block, part_axes, part_points, most)
        return block
    longest = max(others, key=lambda axis: block.shape[axis])
    length = block.shape[longest]
    cells = max(1, int(most * length // elements))
    ends = itertools.accumulate(even_lengths(length, -(-length // cells)), initial=0)
    pieces = (lax.slice_in_dim(block, *bounds, axis=longest) for bounds in itertools.pairwise(ends))
    return assembled((_transformed(transform, piece, axes, points, most) for piece in pieces), longest, length)


def assembled(pieces: Iterable[Array], axis: int, length: int) -> Array:
    """Join pieces along `axis` (negative, counted from the end). `length` is the length of the result.

    A concatenation would hold all pieces and the result in memory. This function writes one piece after the other into
    the result.
    """
    result, start = None, 0
    for piece in pieces:
        if result is None:
            at = piece.ndim + axis
            result = jnp.zeros_like(piece, shape=(*piece.shape[:at], length, *piece.shape[at + 1 :]))
        result = lax.dynamic_update_slice_in_dim(result, piece, start, axis)
        start += piece.shape[axis]
    assert result is not None
    return result


def _times(block: Array, factor: float) -> Array:
    return block if factor == 1 else block * factor


def resize(stage: Resize, block: Array) -> Array:
    """Copy coefficients of one block to the places that the runs of `stage` name."""
    lead = block.shape[: -stage.before.ndim]
    every: list[tuple[Run, ...]] = [(Run(0, 0, length),) for length in stage.before.block_shape]
    for axis, runs in zip(stage.axes, stage.runs):
        every[stage.before.position(axis)] = runs
    result = jnp.zeros_like(block, shape=(*lead, *stage.after.block_shape))
    for runs in itertools.product(*every):
        ends = (run.source + run.length for run in runs)
        piece = block[..., *map(slice, (run.source for run in runs), ends)]
        piece = _times(piece, math.prod(run.factor for run in runs))
        if any(run.real for run in runs) and jnp.iscomplexobj(piece):
            piece = lax.complex(piece.real, jnp.zeros_like(piece.real))
        start = (*[0] * len(lead), *(run.target for run in runs))
        if stage.adds:
            piece = piece + lax.dynamic_slice(result, start, piece.shape)
        result = lax.dynamic_update_slice(result, piece, start)
    return lax.optimization_barrier(result)  # The barrier hides from XLA which parts are zero, as in `move`.


def resize_fused(stage: Resize, block: Array) -> Array:
    """Return the result of `resize` for runs that only copy. XLA for GPUs fuses this form with other operations."""
    for axis, runs in zip(stage.axes, stage.runs):
        at, new = block.ndim + stage.before.position(axis), stage.after.lengths[axis]

        def zeros(length: int, block=block, at=at) -> Array:
            return jnp.zeros_like(block, shape=(*block.shape[:at], length, *block.shape[at + 1 :]))

        pieces, end = [], 0
        for run in sorted(runs, key=lambda run: run.target):
            piece = lax.slice_in_dim(block, run.source, run.source + run.length, axis=at)
            pieces += [zeros(run.target - end), piece]
            end = run.target + run.length
        block = jnp.concatenate([*pieces, zeros(new - end)], axis=at)
        if axis == stage.arrived:
            # An all-to-all has just joined this axis. Its pieces arrived in the layout that is given here. With this
            # layout, a single pass over memory puts the pieces into order and adds the zeros.
            block = stored_as(block, (at, *(i for i in range(block.ndim) if i != at)))
    return block
