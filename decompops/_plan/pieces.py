"""Stages that run piece by piece, so that one piece is exchanged while another piece is transformed."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from .._common.blocks import Blocks
from .stage import AbstractStage, LocalTransform, Move, Resize


@dataclass(frozen=True)
class Pieces(AbstractStage):
    """Consecutive stages that run on each of `count` pieces of a block.

    - `stages`: the stages, as they would be for whole blocks.
    - `axis`: the grid axis along which blocks are cut into pieces. No stage may transform, resize or reshard this axis.
        `None` if blocks are cut along their leading batch axes.

    The pieces are independent of each other: a backend may exchange one piece while it transforms another piece.
    """

    stages: tuple[AbstractStage, ...]
    axis: int | None
    count: int

    def __post_init__(self):
        valid = bool(self.stages) and all(a.after == b.before for a, b in itertools.pairwise(self.stages))
        if not valid:
            raise ValueError(
                "`stages` of `Pieces` must be one or more stages, each of which starts from the blocks after the "
                f"previous one; got {self.stages}."
            )
        if self.axis is None:
            return
        for stage in self.stages:
            if self.axis not in untouched_axes(stage):
                raise ValueError(
                    f"`axis` of `Pieces` must be an axis that no stage changes; got {self.axis}, which "
                    f"{type(stage).__name__} changes. Pass an axis that no stage transforms, resizes or reshards."
                )
        if not 1 <= self.count <= self.before.core(self.axis):
            cells = self.before.core(self.axis)
            raise ValueError(
                f"`count` of `Pieces` must be from 1 to {cells}, the cells of a block along its axis; got {self.count}."
            )

    @property
    def before(self) -> Blocks:
        """How the field is cut into blocks before the first stage."""
        return self.stages[0].before

    @property
    def after(self) -> Blocks:
        """How the field is cut into blocks after the last stage."""
        return self.stages[-1].after

    def transpose(self) -> "Pieces":
        return replace(self, stages=tuple(stage.transpose() for stage in reversed(self.stages)))

    def conjugate(self) -> "Pieces":
        return replace(self, stages=tuple(stage.conjugate() for stage in self.stages))

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        return self.stages[0].input_dtype(dtype)

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        for stage in self.stages:
            dtype = stage.result_dtype(dtype)
        return dtype


def plain_stages(stages: Iterable[AbstractStage]) -> tuple[AbstractStage, ...]:
    """Return `stages` with all `Pieces` replaced by the stages that they contain."""
    return tuple(itertools.chain(*(stage.stages if isinstance(stage, Pieces) else (stage,) for stage in stages)))


def even_lengths(cells: int, count: int) -> tuple[int, ...]:
    """Return the lengths of `count` pieces with `cells` cells in total. If the lengths differ, the first are longer."""
    return tuple(cells // count + (piece < cells % count) for piece in range(count))


def untouched_axes(stage: AbstractStage) -> frozenset[int]:
    """Return the grid axes along which `stage` does the same with every cell, independently of the other cells."""
    match stage:
        case Move(before=before, after=after):
            touched = {axis for axis in range(before.ndim) if before.parts[axis] != after.parts[axis]}
        case LocalTransform(axes=axes) | Resize(axes=axes):
            touched = set(axes)
        case _:
            return frozenset()
    return frozenset(range(stage.before.ndim)) - touched


def shortened(stage: AbstractStage, axis: int, length: int) -> AbstractStage:
    """Return `stage` for blocks of `length` cells along `axis`, an axis that the stage does not touch."""
    assert isinstance(stage, Move | LocalTransform | Resize)

    def short(blocks: Blocks) -> Blocks:
        lengths = list(blocks.lengths)
        lengths[axis] = blocks.parts[axis] * length
        return replace(blocks, lengths=tuple(lengths))

    return replace(stage, before=short(stage.before), after=short(stage.after))


def in_pieces(stages: tuple[AbstractStage, ...], count: int, fields: int) -> Iterator[AbstractStage]:
    """Combine each exchange, and the stages that can overlap with it, into `Pieces`. Yield all resulting stages.

    Several `fields` are cut along their batch axes, and all stages become one `Pieces`. A single field is cut along a
    grid axis that no stage in these `Pieces` touches. A grid of two axes has no such axis, so its stages are yielded
    unchanged.
    """
    exchanges = [i for i, stage in enumerate(stages) if is_exchange(stage)]
    if exchanges and fields > 1:
        yield Pieces(stages, None, min(count, fields))
        return
    done = 0
    for exchange, following in itertools.zip_longest(exchanges, exchanges[1:], fillvalue=len(stages)):
        blocks = stages[exchange].before
        axes = [axis for axis in sorted(untouched_axes(stages[exchange])) if blocks.core(axis) > 1]
        if axes:
            choices = [_around(stages, axis, done, exchange, following) for axis in axes]
            start, stop, axis = max(choices, key=lambda choice: _merit(stages, *choice))
            yield from stages[done:start]
            yield Pieces(stages[start:stop], axis, min(count, blocks.core(axis)))
            done = stop
    yield from stages[done:]


def is_exchange(stage: AbstractStage) -> bool:
    """Return whether `stage` is a `Move` that communicates."""
    return isinstance(stage, Move) and stage.gathered is not None


def _around(stages: tuple[AbstractStage, ...], axis: int, first: int, exchange: int, last: int) -> tuple[int, int, int]:
    """Return the longest range of stages that contains an exchange, and whose other stages do not touch `axis`.

    The range lies between `first` and `last`. The result is `(start, stop, axis)`.
    """
    start = stop = exchange
    while start > first and axis in untouched_axes(stages[start - 1]):
        start -= 1
    while stop < last and axis in untouched_axes(stages[stop]):
        stop += 1
    return start, stop, axis


def _merit(stages: tuple[AbstractStage, ...], start: int, stop: int, axis: int) -> tuple[int, int, int]:
    """Return how good a choice of `_around` is. The best choice has the largest merit.

    The best choice has the most transforms that overlap with the exchange. If several choices have the same number of
    transforms, the best choice cuts the longest axis. If several axes have the same length, it cuts the axis whose
    pieces are most contiguous in memory.
    """
    transforms = sum(isinstance(stage, LocalTransform) for stage in stages[start:stop])
    blocks = stages[start].before
    return transforms, blocks.core(axis), -blocks.order.index(axis)
