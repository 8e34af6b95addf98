"""A plan as integers, which `decode` in ffi/common/plan.cc reads."""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from .._basis.fourier import DFT
from .._blocks import Blocks
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Clear, Crop, Extend, LocalTransform, Move


FORMAT = 3  # It changes with `kFormat` in ffi/common/plan.h.
_TRANSFORMS = ("c2c", "r2c", "c2r")


def encoded(plan: Plan, mesh_axes: tuple[str, ...]) -> np.ndarray:
    """The format, the number of grid axes, how the field is cut, and each stage with how it is cut then.

    Raises `ValueError` for a stage that the kernels do not know.
    """
    axes = {name: i for i, name in enumerate(mesh_axes)}
    stages = (chain(_stage(stage), _blocks(stage.after, axes)) for stage in plan.stages)
    numbers = chain((FORMAT, plan.source.ndim), _blocks(plan.source, axes), *stages)
    return np.fromiter(numbers, np.int64)


def _stage(stage: AbstractStage) -> tuple[int, ...]:
    """The number of a kind of stage, as `Stage::Kind` in ffi/common/plan.h has it, and what belongs to that kind."""
    match stage:
        case Move():
            return (0,)
        case LocalTransform(transform=DFT(normalised=False) as dft):
            return (1, _TRANSFORMS.index(dft.kind), dft.sign, dft.weighted, len(stage.axes), *stage.axes)
        case Extend():
            return (2, stage.axis, stage.periodic, stage.transposed)
        case Crop():
            return (3, stage.transposed)
        case Clear():
            return (4,)
        case _:
            raise ValueError(f"the kernels do not know the stage {stage}.")


def _blocks(blocks: Blocks, axes: dict[str, int]) -> Iterator[int]:
    yield from blocks.lengths
    yield from blocks.parts
    yield from (-1 if name is None else axes[name] for name in blocks.names)
    yield from blocks.order
    yield from chain(*blocks.halo)
