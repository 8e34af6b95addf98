"""Encodes a plan as integers, which `decode` in ffi/common/plan.cc reads."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import get_args

import numpy as np

from ..._basis.cosine import RealToReal
from ..._basis.fourier import DFT
from ..._common.blocks import Blocks, MeshAxis
from ..._plan.lower import Wire
from ..._plan.pieces import Pieces, plain_stages
from ..._plan.plan import Plan
from ..._plan.stage import AbstractStage, Clear, Crop, Extend, LocalTransform, Move, Resize


_TRANSFORMS = ("c2c", "r2c", "c2r")
_WIRES = (None, *get_args(Wire))  # as `Wire` in ffi/common/plan.h


def mesh_entries(plan: Plan, mesh_axes: Sequence[str]) -> tuple[MeshAxis, ...]:
    """Return the mesh axes that the kernels see. Mesh axes that together shard one grid axis become one entry."""
    cuts = [
        (name, parts)
        for b in (plan.source, *(s.after for s in plain_stages(plan.stages)))
        for name, parts in zip(b.names, b.parts)
    ]
    compound = sorted({name for name, parts in cuts if parts > 1 and isinstance(name, tuple)})
    merged = {axis for entry in compound for axis in entry}
    return (*compound, *(axis for axis in mesh_axes if axis not in merged))


def encoded(plan: Plan, entries: Sequence[MeshAxis], stamp: int, wire: Wire | None = None) -> np.ndarray:
    """Return `plan` as int64 numbers: the stamp, `wire`, the number of grid axes, the source blocks, and each stage.

    The numbers of each stage are followed by the numbers of the blocks after it. A stage `Pieces` becomes a stage that
    opens the pieces, its inner stages, and a stage that closes the pieces. `entries` are the mesh axes that the kernels
    see. `stamp` identifies the kernels: others refuse the plan. `wire` is the narrower type that exchanges send.

    Raises `ValueError` if the kernels do not support a stage.
    """
    axes = {entry: i for i, entry in enumerate(entries)}
    stages = (chain(numbers, _blocks(after, axes)) for numbers, after in _numbered(plan.stages))
    numbers = chain((stamp, _WIRES.index(wire), plan.source.ndim), _blocks(plan.source, axes), *stages)
    return np.fromiter(numbers, np.int64)


def _numbered(stages: tuple[AbstractStage, ...]) -> Iterator[tuple[tuple[int, ...], Blocks]]:
    """Yield the numbers of each stage, and the blocks after it."""
    for stage in stages:
        if isinstance(stage, Pieces):
            yield (5, -1 if stage.axis is None else stage.axis, stage.count), stage.before
            yield from _numbered(stage.stages)
            yield (6,), stage.after
        else:
            yield _stage(stage), stage.after


def _stage(stage: AbstractStage) -> tuple[int, ...]:
    """Return the number of the kind of `stage`, as in `Stage::Kind` in ffi/common/plan.h, and its parameters."""
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
        case Resize(changes_ends=True):
            return (7, len(stage.axes), *stage.axes)
        case LocalTransform(transform=RealToReal(type=2 | 3) as waves):
            power = waves.after if waves.type == 2 else waves.before
            return (8, waves.kind == "dst", waves.type, power, len(stage.axes), *stage.axes)
        case _:
            raise ValueError(f"the kernels do not support the stage {stage}.")


def _blocks(blocks: Blocks, axes: dict[MeshAxis, int]) -> Iterator[int]:
    yield from blocks.lengths
    yield from blocks.parts
    # An axis whose name is not among the entries is not sharded.
    yield from (-1 if name is None else axes.get(name, -1) for name in blocks.names)
    yield from blocks.order
    yield from chain(*blocks.halo)
