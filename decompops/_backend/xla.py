"""The default backend: XLA's collectives and FFTs."""

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import assert_never

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax import Array, lax
from jax.experimental.layout import Layout as DeviceLayout, with_layout_constraint

from .._stage import Clear, Crop, Extend, Fourier, Move, Plan, Resize, Stage
from .base import AbstractBackend
from .xla_halo import Exchange, clear, crop, embed, extend, permute


# XLA's CPU transposes walk the output element by element; with a large (above all a power-of-two) input stride nearly
# every read misses the cache. Writing a few cells of the new last axis at a time keeps whole cache lines in use:
# 1.4 to 2 times faster at 256^3 (docs/performance.md). Bounded, so that the program stays small on long axes.
_CHUNK = 8
_MOST_CHUNKS = 64


def avoid_hanging_ffts(environment: MutableMapping[str, str], version: str) -> None:
    """With two versions of jaxlib, let XLA's FFTs on CPUs do without its threads, unless the user has decided.

    There an FFT that follows other work occupies a thread of XLA's pool and waits in it for parts of its own, which no
    thread may be left to run (openxla/xla#46347; `jnp.fft` hangs as well). XLA reads them at its first computation.
    """
    flags = environment.get("XLA_FLAGS", "")
    if version in ("0.11.1", "0.11.2") and "xla_cpu_multi_thread_eigen" not in flags:
        environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()


avoid_hanging_ffts(os.environ, jaxlib.version.__version__)


@dataclass(frozen=True)
class XLA(AbstractBackend):
    """Moves data with XLA collectives: NCCL on GPUs, Gloo between CPU processes, ICI on TPUs. Nothing to compile."""

    def problem(self) -> None:
        return None

    def check(self, mesh) -> None:
        del mesh  # XLA runs on every mesh.

    def run(self, plan: Plan, block: Array) -> Array:
        return interpret(plan, block, functools.partial(move, chunked=_platform(plan.mesh) == "cpu"))


def interpret(plan: Plan, block: Array, move: Callable[[Move, Array], Array], exchange: Exchange = permute) -> Array:
    """Apply `plan` with XLA, but for what `move` and `exchange` do."""
    scale = plan.scale * math.prod(map(normalisation, plan.stages))
    gpu = _platform(plan.mesh) == "gpu"
    # The whole scale at one transform, where it fuses with what is done anyway: the multiplication by weights, else a
    # copy after the first one or, if that is to real space, before it.
    transforms = [stage for stage in plan.stages if isinstance(stage, Fourier)]
    chosen = next((stage for stage in transforms if stage.weighted), transforms[0] if transforms else None)
    for previous, stage in zip((None, *plan.stages), plan.stages):
        match stage:
            case Move():
                block = move(stage, block)
            case Fourier():
                if gpu and stage.kind == "c2r" and len(stage.axes) == 1:
                    block = real_ends(stage, block)
                here = scale if stage is chosen else 1.0
                block = (
                    fourier(stage, scaled(block, here)) if stage.kind == "c2r" else scaled(fourier(stage, block), here)
                )
            case Extend():
                block = _extend_or_transpose(stage, block, exchange)
            case Crop():
                block = (embed if stage.transposed else crop)(stage, block)
            case Clear():
                block = clear(stage, block)
            case Resize():
                if gpu and not any(stage.nyquist):
                    block = resize_fused(stage, block, previous.gathered if isinstance(previous, Move) else None)
                else:
                    block = resize(stage, block)
            case _:
                assert_never(stage)
    return block


def normalisation(stage: Stage) -> int:
    """What XLA divides by in `stage`, where the stage is defined without it."""
    if not isinstance(stage, Fourier):
        return 1
    inverse = stage.kind == "c2r" or (stage.kind == "c2c" and stage.sign == 1)
    return stage.size if inverse else 1


def scaled(block: Array, scale: float) -> Array:
    # Products of sizes and their reciprocals may miss 1 by a rounding error of float64.
    return block if abs(scale - 1) < 1e-14 else block * scale


def _platform(mesh) -> str:
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh.devices.flat[0].platform
    return jax.default_backend()


def _extend_or_transpose(stage: Extend, block: Array, exchange: Exchange) -> Array:
    if not stage.transposed:
        return extend(stage, block, exchange)
    forward = stage.transpose()
    # A part of `block` varies over the same axes of a surrounding `shard_map` as it does. Its values do not matter.
    primal = block[..., *map(slice, forward.before.block_shape)]
    # In a `shard_map` without `check_vma`, arguments name these axes in their types and results of operations do not.
    # JAX requires that a cotangent has the type of the result: with `[None]` it is the result of an operation, too.
    (result,) = jax.linear_transpose(lambda b: extend(forward, b, exchange)[None], primal)(block[None])
    return result


def move(stage: Move, block: Array, chunked: bool) -> Array:
    """Rearrange one block: one all-to-all if a grid axis changes hands, else a local transpose."""
    before, after, lead = stage.before, stage.after, block.ndim - 3
    order = tuple(range(lead)) + tuple(lead + before.order.index(axis) for axis in after.order)
    gathered, divided = stage.gathered, stage.divided
    if gathered is None or divided is None:
        return _reorder(block, order, chunked)

    # One piece per receiver, cut along the axis that becomes divided, rearranged while it is copied and laid side by
    # side along the axis that becomes whole. Splitting and joining along that one axis, the all-to-all needs no copies
    # beyond XLA's own.
    cells, parts = after.core(divided), after.parts[divided]
    cut, join = lead + before.order.index(divided), lead + after.order.index(gathered)
    pieces = []
    for part in range(parts):
        start = min(part * cells, before.lengths[divided])
        stop = min(start + cells, before.lengths[divided])
        piece = pad_end(lax.slice_in_dim(block, start, stop, axis=cut), cells, cut)
        pieces.append(_reorder(piece, order, chunked))
    block = jnp.concatenate(pieces, axis=join)
    if (parts - 1) * cells >= before.lengths[divided]:
        # XLA gives a piece that it knows to be zero another memory layout than the others, and then rejects its own
        # all-to-all ("operands with different shapes").
        block = lax.optimization_barrier(block)
    block = lax.all_to_all(block, before.names[gathered], join, join, tiled=True)
    return lax.slice_in_dim(block, 0, after.lengths[gathered], axis=join)


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


def fourier(stage: Fourier, block: Array) -> Array:
    """Transform one block, with XLA's own normalisation."""
    # XLA lets the layout of a neighbour spread to an FFT, whose CPU implementation then refuses it, at run time.
    return _row_major(_fourier(stage, _row_major(block)))


def _row_major(block: Array) -> Array:
    return with_layout_constraint(block, DeviceLayout(tuple(range(block.ndim))))


def _fourier(stage: Fourier, block: Array) -> Array:
    axes = tuple(stage.before.position(axis) for axis in stage.axes)
    match stage.kind:
        case "c2c":
            return (jnp.fft.fftn if stage.sign == -1 else jnp.fft.ifftn)(block, axes=axes)
        case "r2c":
            block = jnp.fft.rfftn(block, axes=axes)
            block = block if stage.sign == -1 else jnp.conj(block)
            return block * _weights(stage, block.dtype) if stage.weighted else block
        case "c2r":
            block = block if stage.sign == 1 else jnp.conj(block)
            block = block / _weights(stage, block.dtype) if stage.weighted else block
            return jnp.fft.irfftn(block, s=stage.real_lengths, axes=axes)


def real_ends(stage: Fourier, block: Array) -> Array:
    """Set to zero what a transform to real space ignores: the imaginary parts of modes zero and Nyquist.

    NumPy and XLA on CPUs do not read them; libraries for GPUs may (rocFFT; cuFFT at some lengths, as found in
    pytorch/pytorch#154496). Spectra of real fields have none, but cotangents do. Where several axes are transformed at
    once, JAX sees to it.
    """
    axis, length = stage.before.position(stage.axes[-1]), stage.real_lengths[-1]
    for mode in {0, length // 2} if length % 2 == 0 else {0}:
        plane = lax.slice_in_dim(block, mode, mode + 1, axis=axis)
        plane = lax.complex(plane.real, jnp.zeros_like(plane.real))
        block = lax.dynamic_update_slice_in_dim(block, plane, mode, axis)  # in place, unless the block is a caller's
    return block


def resize(stage: Resize, block: Array) -> Array:
    """Drop the highest modes of one block, or put zeros in their place."""
    lead = block.shape[:-3]
    runs = [[(0, 0, length, 1.0)] for length in stage.before.block_shape]
    for axis, modes, nyquist in zip(stage.axes, stage.modes, stage.nyquist):
        lengths = stage.before.lengths[axis], stage.after.lengths[axis]
        halved = stage.halved and axis == 2
        runs[stage.before.position(axis)] = list(_runs(*lengths, modes, halved, nyquist))
    result = jnp.zeros_like(block, shape=(*lead, *stage.after.block_shape))
    for parts in itertools.product(*runs):
        source, target, lengths, factors = zip(*parts)
        ends = (start + length for start, length in zip(source, lengths))
        piece = scaled(block[..., *map(slice, source, ends)], math.prod(factors))
        start = (*[0] * len(lead), *target)
        if any(stage.nyquist):  # then pieces may overlap
            piece = piece + lax.dynamic_slice(result, start, piece.shape)
        result = lax.dynamic_update_slice(result, piece, start)
    return lax.optimization_barrier(result)  # parts known to be zero: as in `move`


def resize_fused(stage: Resize, block: Array, joined: int | None) -> Array:
    """As `resize`, without Nyquist modes, in a form that XLA for GPUs fuses with what comes before and after.

    `joined`: the axis that an all-to-all has just put together.
    """
    for axis, modes in zip(stage.axes, stage.modes):
        at, old, new = block.ndim + stage.before.position(axis), stage.before.lengths[axis], stage.after.lengths[axis]

        def zeros(length: int, block=block, at=at) -> Array:
            return jnp.zeros_like(block, shape=(*block.shape[:at], length, *block.shape[at + 1 :]))

        pieces, end = [], 0
        for source, target, length, _ in _runs(old, new, modes, stage.halved and axis == 2, 0.0):
            pieces += [zeros(target - end), lax.slice_in_dim(block, source, source + length, axis=at)]
            end = target + length
        block = jnp.concatenate([*pieces, zeros(new - end)], axis=at)
        if axis == joined:
            # As it has arrived: then all pieces are put into order in one pass, zeros included.
            block = with_layout_constraint(block, DeviceLayout((at, *(i for i in range(block.ndim) if i != at))))
    return block


def _runs(old: int, new: int, modes: int, halved: bool, nyquist: float) -> Iterator[tuple[int, int, int, float]]:
    """What goes where along one axis: from, to, how many, times what."""
    yield 0, 0, (modes + 1) // 2, 1.0
    if modes % 2 == 0 and nyquist:
        # The two places of the Nyquist mode are one if it is that of this very length.
        sources, targets = ({modes // 2} if halved else {modes // 2, n - modes // 2} for n in (old, new))
        yield from ((source, target, 1, nyquist) for source in sources for target in targets)
    negative = (modes - 1) // 2
    if negative and not halved:
        yield old - negative, new - negative, negative, 1.0


def _weights(stage: Fourier, dtype: np.dtype) -> np.ndarray:
    """How often each mode of the half spectrum stands in the full one, along its (halved) axis."""
    halved, length = stage.axes[-1], stage.real_lengths[-1]
    weights = np.full(length // 2 + 1, 2.0)
    weights[0] = 1
    if length % 2 == 0:
        weights[-1] = 1
    shape = [1, 1, 1]
    shape[stage.before.position(halved)] = -1
    return weights.reshape(shape).astype(dtype)
