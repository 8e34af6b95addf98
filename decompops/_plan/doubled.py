"""Plans of transforms on a grid that is doubled along some axes. The doubled grid is never stored whole.

An axis is zero-padded directly before its own transform, so lines that are known to be zero are neither transformed nor
sent. The axes that are doubled come last. The last part of the transform can run for one piece of the field after the
other, so only one piece has the length of the doubled grid along the last two axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .._basis.base import AbstractBasis, AbstractLineTransform
from .._common.blocks import Blocks
from .pieces import shortened, untouched_axes
from .plan import Plan
from .route import Division, Leg, divided_blocks, division_of
from .stage import AbstractStage, LocalTransform, Move, Resize
from .transform import plan_along


@dataclass(frozen=True)
class DoubledPlans:
    """The transform of a field on a doubled grid: the plan `outer`, and then the plan `inner`.

    - `order`: the grid axes in the order of their transforms.
    - `divisions`: how the grid is divided when each axis of `order` is transformed.
    - `axis`: a grid axis that `inner` does not change, so that `inner` may run for pieces along this axis; `None` if
        there is no such axis.
    """

    outer: Plan
    inner: Plan
    order: tuple[int, ...]
    divisions: tuple[Division, ...]
    axis: int | None

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype that a field of `dtype` is cast to. Raises `TypeError` if the plans cannot take `dtype`."""
        return self.outer.then(self.inner, self.outer.name).input_dtype(dtype)

    def inner_piece(self, length: int | None) -> Plan:
        """Return the plan `inner` for a piece of `length` cells along `axis`; `None` for the whole block.

        Its axes have new numbers, in the order in which they are stored: compiled kernels keep two axes in the cache
        from one transform to the next if they have the highest numbers.
        """
        stages = self.inner.stages
        if self.axis is not None and length is not None:
            stages = tuple(shortened(stage, self.axis, length) for stage in stages)
        stages = tuple(_renumbered(stage, self.inner.source.order) for stage in stages)
        return Plan(self.inner.name, stages[0].before, stages)


def doubled_plans(
    name: str, source: Blocks, points: Sequence[int], bases: Sequence[AbstractBasis], order: tuple[int, ...]
) -> DoubledPlans:
    """Return the plans of a transform that zero-pads each axis to its number of `points` before its transform.

    - `source`: the blocks of fields.
    - `order`: the grid axes in the order of their transforms, those that are not padded first.
    """
    bases, points, ndim = tuple(bases), tuple(points), source.ndim
    divisions = _divisions(division_of(source), order)
    is_padded = [points[axis] != source.lengths[axis] for axis in order]
    # The last axis always belongs to `inner`; the axis before it only if it is padded, and another axis can be cut.
    first = ndim - 2 if ndim > 2 and is_padded[-2] else ndim - 1
    stored = tuple(basis.stored(n) for basis, n in zip(bases, points))

    def blocks(done: int, division: Division, last: int) -> Blocks:
        lengths = tuple(stored[axis] if axis in order[:done] else source.lengths[axis] for axis in range(ndim))
        # The axis that is cut into pieces is stored first, so that the pieces are contiguous.
        others = [axis for axis in order if axis != last]
        return divided_blocks(lengths, division, (*others, last))

    middle = blocks(first, divisions[first], order[first]) if first else source
    target = blocks(ndim, divisions[-1], order[-1])
    outer = (
        Leg(division_of(source), ()),
        *_legs(divisions[:first], order[:first], is_padded),
        Leg(divisions[first], ()),
    )
    before = plan_along(name, outer, source, middle, bases, points, points=points) if first else Plan(name, source, ())
    inner = tuple(Leg(division, (axis,)) for division, axis in zip(divisions[first:], order[first:]))
    after = plan_along(name, inner, middle, target, bases, points, points=points)
    free = frozenset(range(ndim)).intersection(*map(untouched_axes, after.stages))
    cut = max(free, key=lambda axis: (middle.core(axis), -middle.order.index(axis)), default=None)
    return DoubledPlans(before, after, order, divisions, cut)


def lines_plan(
    name: str,
    source: Blocks,
    legs: Sequence[tuple[Division, int]],
    transforms: Mapping[int, tuple[AbstractLineTransform, int]],
    order: tuple[int, ...] | None = None,
) -> Plan:
    """Return the plan that transforms one axis after the other, each in a given division of the grid.

    - `legs`: the divisions, and the axis that is transformed in each.
    - `transforms`: the transform of each axis, and the length of the result.
    - `order`: the storage order of the result; `None` for any.
    """
    here, stages = source, list[AbstractStage]()
    for division, axis in legs:
        there = divided_blocks(here.lengths, division, (*(other for other in here.order if other != axis), axis))
        stages += _moved(here, there)
        transform, length = transforms[axis]
        lengths = tuple(length if other == axis else n for other, n in enumerate(there.lengths))
        here = replace(there, lengths=lengths)
        stages.append(LocalTransform(there, here, (axis,), transform))
    return Plan(name, source, (*stages, *_moved(here, replace(here, order=order or here.order))))


def _renumbered(stage: AbstractStage, old: tuple[int, ...]) -> AbstractStage:
    """Return `stage` with new numbers of the grid axes: the axis with the number `old[i]` gets the number `i`."""

    def blocks(b: Blocks) -> Blocks:
        return Blocks(
            lengths=tuple(b.lengths[axis] for axis in old),
            parts=tuple(b.parts[axis] for axis in old),
            names=tuple(b.names[axis] for axis in old),
            order=tuple(map(old.index, b.order)),
            halo=tuple(b.halo[axis] for axis in old),
        )

    axes = {"axes": tuple(map(old.index, stage.axes))} if isinstance(stage, LocalTransform | Resize) else {}
    assert isinstance(stage, Move | LocalTransform | Resize)
    return replace(stage, before=blocks(stage.before), after=blocks(stage.after), **axes)


def _moved(here: Blocks, there: Blocks) -> list[AbstractStage]:
    return [Move(here, there)] if here != there else []


def _legs(divisions: Sequence[Division], order: Sequence[int], is_padded: Sequence[bool]) -> list[Leg]:
    """Return one leg for each axis. Neighbouring axes that are not padded and are whole together share a leg."""
    legs: list[Leg] = []
    for number, (division, axis) in enumerate(zip(divisions, order)):
        if legs and legs[-1].division == division and not is_padded[number]:
            legs[-1] = Leg(division, (*legs[-1].axes, axis))
        else:
            legs.append(Leg(division, (axis,)))
    return legs


def _divisions(division: Division, order: tuple[int, ...]) -> tuple[Division, ...]:
    """Return how the grid is divided when each axis of `order` is transformed.

    To make an axis whole, its mesh axes move to the axis that was transformed last, among those that are whole. If none
    of the whole axes is transformed yet, they move to the axis that is transformed last of all.
    """
    found: list[Division] = []
    for number, axis in enumerate(order):
        if division[axis]:
            done, waiting = order[:number][::-1], order[:number:-1]
            there = next(other for other in (*done, *waiting) if not division[other])
            moved = {axis: (), there: division[axis]}
            division = tuple(moved.get(other, units) for other, units in enumerate(division))
        found.append(division)
    return tuple(found)
