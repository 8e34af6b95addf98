"""A backend that takes whole transforms, like a library with one call for a distributed FFT."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from decompops.extend import DFT, AbstractBackend, LocalTransform, Move
from jax import lax


@dataclass(frozen=True)
class Whole(AbstractBackend):
    """Computes complex FFTs along all axes at once, if the mesh divides the grid.

    XLA does everything else.

    This backend gathers the whole grid on every device. A real backend would call a library such
    as cuFFTMp instead.
    """

    def problem(self):
        return None

    def check(self, mesh):
        pass

    def takes(self, stages):
        signs, left = set(), set(range(stages[0].before.ndim))
        for count, stage in enumerate(stages, start=1):
            if stage.before.padded_axes or stage.after.padded_axes:
                break
            match stage:
                case Move():
                    continue
                case LocalTransform(transform=DFT(kind="c2c", sign=sign), axes=axes):
                    signs.add(sign)
                    left -= set(axes)
                case _:
                    break
            if not left:
                return count if len(signs) == 1 else 0
        return 0

    def run(self, plan, block, call):
        source, target = plan.source, plan.target
        for axis, name in enumerate(source.names):
            if name is not None:
                block = lax.all_gather(
                    block, name, axis=block.ndim + source.position(axis), tiled=True
                )
        lead = block.ndim - source.ndim
        block = jnp.transpose(
            block, (*range(lead), *(lead + source.order.index(axis) for axis in target.order))
        )

        stages = [stage for stage in plan.stages if isinstance(stage, LocalTransform)]
        backward = stages[0].transform == DFT("c2c", 1)
        # unnormalised, and multiplied by the scales of the stages
        scale = math.prod(stage.scale for stage in stages)
        axes = tuple(range(lead, block.ndim))
        block = (
            jnp.fft.ifftn(block, axes=axes, norm="forward")
            if backward
            else jnp.fft.fftn(block, axes=axes)
        ) * scale

        for axis, name in enumerate(target.names):
            if name is not None:
                start = lax.axis_index(name) * target.core(axis)
                block = lax.dynamic_slice_in_dim(
                    block, start, target.core(axis), block.ndim + target.position(axis)
                )
        return block
