"""Plans of transforms along the axes of a grid. Each axis has its own basis."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from .._basis.base import AbstractBasis, Run
from .._common.blocks import Blocks
from .plan import Plan
from .route import Leg, check_bases_fit, divided_blocks, division_of, find_route
from .stage import AbstractStage, LocalTransform, Move, Resize


Norm = Literal["backward", "ortho", "forward"]


def transform_plan(
    name: str,
    source: Blocks,
    target: Blocks,
    bases: Sequence[AbstractBasis],
    kept: Sequence[int],
    *,
    scale: float = 1.0,
    nyquist: bool = False,
) -> Plan:
    """Return the plan of a transform for any decomposition. In this plan, transforms and exchanges alternate.

    - `source`, `target`: the blocks of fields and of spectra.
    - `bases`: the basis of each axis.
    - `kept`: for each axis, the number of points whose coefficients are kept, from 1 to the points in `source`.
    - `nyquist`: whether a coefficient that represents two modes becomes the sum of both. Otherwise it becomes zero.

    Axes that are transformed together are stored last, so that one FFT transforms them in contiguous memory.

    Raises `ValueError` if the number of `bases` is wrong, if `kept` is out of range, or if no order of transforms gives
    each basis the real or complex input that it needs.
    """
    bases = tuple(bases)
    if not len(bases) == len(kept) == source.ndim:
        raise ValueError(f"`bases` and `kept` must have one entry for each of {source.ndim} axes; got {bases}, {kept}.")
    check_bases_fit(bases)
    if not all(1 <= k <= n for k, n in zip(kept, source.lengths)):
        raise ValueError(f"`kept` must be from 1 to the number of points of each axis, {source.lengths}; got {kept}.")
    legs = find_route(source.lengths, division_of(source), division_of(target), bases, target.lengths)
    return plan_along(name, legs, source, target, bases, kept, scale=scale, nyquist=nyquist)


def plan_along(
    name: str,
    legs: tuple[Leg, ...],
    source: Blocks,
    target: Blocks,
    bases: tuple[AbstractBasis, ...],
    kept: Sequence[int],
    *,
    points: tuple[int, ...] | None = None,
    scale: float = 1.0,
    nyquist: bool = False,
) -> Plan:
    """Return the plan of a transform on a given route. `transform_plan` describes the other arguments.

    - `legs`: the route.
    - `points`: the lengths that are transformed; by default the lengths of `source`. If an axis has a different length
        in `source`, it is cropped or zero-padded at its end before its transform. After its transform, it is cropped or
        zero-padded to its length in `target`.
    """
    points = points or source.lengths
    folded = [axis for axis in range(source.ndim) if _is_folded(bases[axis], points[axis], kept[axis], nyquist)]
    legs = tuple(part for leg in legs for part in _divided(leg, folded))
    stages: list[AbstractStage] = []
    here = source
    for leg in legs:
        if leg is legs[-1] and not leg.axes:
            break  # The move after the loop leads directly to the target.
        groups = _groups(leg.axes, bases, source.ndim - 1)
        if leg is not legs[0]:
            axes = tuple(axis for group in reversed(groups) for axis in group)
            order = _order(here, axes, target if leg is legs[-1] else None)
            there = divided_blocks(here.lengths, leg.division, order)
            if there != here:
                stages.append(Move(here, there))
                here = there
        for group in groups:
            stages += _transforms(here, group, points, bases, kept, nyquist, target.lengths)
            here = stages[-1].after
    if here != target:
        stages.append(Move(here, target))
    return Plan(name, source, tuple(stages), scale)


def _is_folded(basis: AbstractBasis, points: int, kept: int, nyquist: bool) -> bool:
    """Return whether a kept mode is the sum of two modes, one of which the half spectrum does not store."""
    return kept != points and any(run.real for run in basis.truncation(points, kept, nyquist=nyquist))


def _divided(leg: Leg, folded: Sequence[int]) -> list[Leg]:
    """Split a leg in two after its last axis that is in `folded`.

    Along an axis in `folded`, two modes of a half spectrum are added. This is possible only before another axis is
    transformed.
    """
    found = [leg.axes.index(axis) for axis in folded if axis in leg.axes]
    first = 1 + max(found, default=-1)
    if first in (0, len(leg.axes)):
        return [leg]
    return [Leg(leg.division, leg.axes[:first]), Leg(leg.division, leg.axes[first:])]


def _groups(axes: Sequence[int], bases: Sequence[AbstractBasis], last: int) -> list[tuple[int, ...]]:
    """Return groups of the axes of a leg, in the order of their transforms. One transform handles each group."""
    groups: list[list[int]] = []
    for axis in axes:
        if groups and bases[axis].joined(bases[groups[-1][0]]) is not None:
            groups[-1].append(axis)
        else:
            groups.append([axis])

    # If the first axis of a group has a half spectrum, it must be stored last. If not, the first axis of the grid is
    # stored last, because this order is closer to the order of x-pencils.
    def ends_with_first(group: list[int]) -> bool:
        return last not in group and len(groups) == 1 and len({bases[axis] for axis in group}) == 1

    return [tuple(group if ends_with_first(group) else group[::-1]) for group in groups]


def _transforms(
    here: Blocks,
    group: tuple[int, ...],
    points: tuple[int, ...],
    bases: Sequence[AbstractBasis],
    kept: Sequence[int],
    nyquist: bool,
    lengths: tuple[int, ...],
) -> list[AbstractStage]:
    """Return the stages that transform the axes of a group together, truncate them, and fit them to `lengths`."""
    stages = _fitted(here, group, points)
    here = stages[-1].after if stages else here
    taken = {axis: bases[axis].transformed_points(points[axis]) for axis in group}
    stages += _copied(here, taken)
    here = stages[-1].after if stages else here
    basis = bases[group[-1]]
    transform = (bases[group[0]].joined(basis) if len(group) > 1 else None) or basis.forward
    spectrum = _with_lengths(here, {axis: bases[axis].computed(points[axis]) for axis in group})
    stages.append(LocalTransform(here, spectrum, group, transform))
    cut = {}
    for axis in group:
        runs = bases[axis].truncation(points[axis], kept[axis], nyquist=nyquist)
        cut[axis] = bases[axis].stored(kept[axis]), runs
    stages += _copied(spectrum, cut)
    return [*stages, *_fitted(stages[-1].after, group, lengths)]


def _fitted(here: Blocks, axes: tuple[int, ...], lengths: tuple[int, ...]) -> list[AbstractStage]:
    """Return the stages that give `axes` their `lengths`: the axes are cropped or zero-padded at their ends."""
    return _copied(here, {axis: (lengths[axis], (Run(0, 0, min(here.lengths[axis], lengths[axis])),)) for axis in axes})


def _copied(here: Blocks, copies: dict[int, tuple[int, tuple[Run, ...]]]) -> list[AbstractStage]:
    """Return the stages that copy cells along axes. `copies` has the new length and the runs of each axis.

    The result is empty if no axis changes.
    """
    changed = {axis: copy for axis, copy in copies.items() if copy != (here.lengths[axis], (Run(0, 0, copy[0]),))}
    after = _with_lengths(here, {axis: length for axis, (length, _) in changed.items()})
    return [Resize(here, after, tuple(changed), tuple(runs for _, runs in changed.values()))] if changed else []


def _with_lengths(blocks: Blocks, lengths: dict[int, int]) -> Blocks:
    return replace(blocks, lengths=tuple(lengths.get(axis, n) for axis, n in enumerate(blocks.lengths)))


def _order(here: Blocks, axes: tuple[int, ...], target: Blocks | None) -> tuple[int, ...]:
    """Return a storage order with `axes` last: the order of `target` if it fits, else the order of `here`, changed."""
    if target is not None and target.order[-len(axes) :] == axes:
        return target.order
    return (*(axis for axis in here.order if axis not in axes), *axes)
