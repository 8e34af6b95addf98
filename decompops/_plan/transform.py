"""Plans of transforms along every axis of a grid, in whatever basis each axis has."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from .._basis.base import AbstractBasis
from .._blocks import Blocks
from .plan import Plan
from .stage import AbstractStage, LocalTransform, Move, Resize


Norm = Literal["backward", "ortho", "forward"]


def transform_plan(
    name: str,
    source: Blocks,
    target: Blocks,
    bases: Sequence[AbstractBasis],
    kept: Sequence[int],
    pencil: Callable[[int, tuple[int, ...]], Blocks],
    *,
    scale: float = 1.0,
    nyquist: bool = False,
) -> Plan:
    """Transform whatever is local, communicate, and so on: every decomposition's transform is an instance of this.

    - `source`, `target`: where fields and spectra lie; `pencil(axis, lengths)` says how a pencil in between is cut.
    - `kept`: for how many points of each axis of `source` coefficients are kept; with `nyquist`, also those that stand
        for two, as their sum.

    Later axes are transformed first. The axes of one transform lie last and next to each other, so that it is one
    contiguous multi-axis FFT.

    Raises `ValueError` for `kept` that are not from one to the points, and for a basis of real fields along an axis
    that is transformed after coefficients have become complex.
    """
    check_order(bases)
    if not len(bases) == len(kept) == source.ndim:
        raise ValueError(f"`bases` and `kept` must have one entry for each of {source.ndim} axes; got {bases}, {kept}.")
    if not all(1 <= k <= n for k, n in zip(kept, source.lengths)):
        raise ValueError(f"`kept` must be from 1 to the points along each axis, {source.lengths}; got {kept}.")
    last, lengths = source.ndim - 1, source.lengths
    stages: list[AbstractStage] = []
    here = source
    for phase in _phases(source, bases, nyquist):
        groups = _groups(phase, bases, last)
        if stages:
            axes = tuple(axis for group in reversed(groups) for axis in group)
            is_last_phase = 0 in phase
            order = _order(here, axes, target if is_last_phase else None)
            there = replace(pencil(min(phase), lengths), order=order)
            stages.append(Move(here, there))
            here = there
        for group in groups:
            stages += _transforms(here, group, source.lengths, bases, kept, nyquist)
            here = stages[-1].after
        lengths = here.lengths
    if here != target:
        stages.append(Move(here, target))
    return Plan(name, source, tuple(stages), scale)


def check_order(bases: Sequence[AbstractBasis]) -> None:
    """Raise `ValueError` for a basis of real fields along an axis that is transformed after one with complex
    coefficients."""
    for axis, basis in enumerate(bases):
        for later in range(axis + 1, len(bases)):
            if (basis.kinds[0], bases[later].kinds[1]) == ("real", "complex"):
                raise ValueError(
                    "`bases` must have a basis of real fields, such as `Fourier(half=True)`, after all others with "
                    f"complex coefficients, because later axes are transformed first; got {basis} along axis {axis} "
                    f"and {bases[later]} along axis {later}."
                )


def _phases(source: Blocks, bases: Sequence[AbstractBasis], nyquist: bool) -> list[list[int]]:
    """The axes that are transformed between one communication and the next, later axes first."""
    last = source.ndim - 1
    halved = [axis for axis, n in enumerate(source.lengths) if bases[axis].stored(n) < n]
    phases = [[last]]
    for axis in reversed(range(last)):
        # An axis joins the phase before it, unless a mesh axis must first move off it. With `nyquist`, none joins a
        # halved one: the sum of two modes of a half spectrum is known only where no earlier axis is transformed.
        if source.parts[axis] > 1 or (nyquist and axis + 1 in halved):
            phases.append([axis])
        else:
            phases[-1].append(axis)
    return phases


def _groups(phase: list[int], bases: Sequence[AbstractBasis], last: int) -> list[tuple[int, ...]]:
    """The axes of each transform of a phase, in the order of the transforms."""
    groups: list[list[int]] = []
    for axis in phase:
        if groups and bases[axis].joined(bases[groups[-1][0]]) is not None:
            groups[-1].append(axis)
        else:
            groups.append([axis])

    # The first axis of a group may be halved, and must then be stored last. Else the order that ends with the first
    # axis of the grid is nearer to that of x-pencils.
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
) -> list[AbstractStage]:
    """Transform the axes of a group at once, and cut their coefficients."""
    basis = bases[group[-1]]
    transform = (bases[group[0]].joined(basis) if len(group) > 1 else None) or basis.forward
    spectrum = _with_lengths(here, {axis: bases[axis].stored(points[axis]) for axis in group})
    stages: list[AbstractStage] = [LocalTransform(here, spectrum, group, transform)]
    cut = tuple(axis for axis in group if kept[axis] != points[axis])
    if cut:
        shorter = _with_lengths(spectrum, {axis: bases[axis].stored(kept[axis]) for axis in cut})
        runs = tuple(bases[axis].truncation(points[axis], kept[axis], nyquist=nyquist) for axis in cut)
        stages.append(Resize(spectrum, shorter, cut, runs))
    return stages


def _with_lengths(blocks: Blocks, lengths: dict[int, int]) -> Blocks:
    return replace(blocks, lengths=tuple(lengths.get(axis, n) for axis, n in enumerate(blocks.lengths)))


def _order(here: Blocks, axes: tuple[int, ...], target: Blocks | None) -> tuple[int, ...]:
    """The storage order for transforming `axes`: the target's own if that has them last, else a cheap one."""
    if target is not None and target.order[-len(axes) :] == axes:
        return target.order
    return (*(axis for axis in here.order if axis not in axes), *axes)
