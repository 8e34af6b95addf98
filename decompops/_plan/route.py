"""Finds the route of a transform: in which order its axes are transformed, and the cheapest exchanges in between."""

import functools
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from .._basis.base import AbstractBasis
from .._common.blocks import Blocks, MeshAxis, flat_names, spec_entry


# For each grid axis: the mesh axes that shard it, with their sizes, major mesh axis first. Sizes of 1 are left out.
Division = tuple[tuple[tuple[MeshAxis, int], ...], ...]


@dataclass(frozen=True)
class Leg:
    """The part of a route between two exchanges: how the grid is divided, and which axes are transformed in turn."""

    division: Division
    axes: tuple[int, ...]


class NoRouteError(ValueError):
    """No sequence of exchanges makes each transformed axis whole in turn and ends in the requested division."""


def division_of(blocks: Blocks) -> Division:
    """Return the mesh axes, with their sizes, that shard each grid axis.

    If an entry of `blocks.names` has several mesh axes, exchanges always move them together.
    """
    return tuple(
        ((name, parts),) if name is not None and parts > 1 else () for name, parts in zip(blocks.names, blocks.parts)
    )


def divided_blocks(lengths: tuple[int, ...], division: Division, order: tuple[int, ...] = ()) -> Blocks:
    """Return the blocks of a grid of `lengths` with the given division and storage order."""
    parts = tuple(math.prod(size for _, size in units) for units in division)
    names = tuple(spec_entry(flat_names(name for name, _ in units)) for units in division)
    return Blocks(lengths, parts, names, order)


def check_bases_fit(bases: tuple[AbstractBasis, ...]) -> None:
    """Raise `ValueError` if no order of transforms gives every basis the real or complex numbers that it needs."""
    start: Division = ((),) * len(bases)
    _, done = _transformed(start, frozenset(), bases)
    left = [basis for axis, basis in enumerate(bases) if basis.is_transformed and axis not in done]
    if left:
        raise ValueError(
            "`bases` must have at most one basis with real fields and complex coefficients, such as "
            f"`Fourier(half=True)`; got {bases}."
        )
    kinds = [basis.kinds for basis in bases if basis.is_transformed]
    if (None, "complex") in kinds and ("real", "complex") not in kinds and any(makes == "real" for _, makes in kinds):
        raise ValueError(
            "`bases` must have one basis with real fields and complex coefficients, such as `Fourier(half=True)`, "
            f"beside a basis with real coefficients, because other inverses return complex numbers; got {bases}."
        )


@functools.lru_cache(maxsize=1024)
def find_route(
    lengths: tuple[int, ...],
    start: Division | None,
    end: Division | None,
    bases: tuple[AbstractBasis, ...],
    stored: tuple[int, ...],
    *,
    is_complex: bool = True,
) -> tuple[Leg, ...]:
    """Return the route with the fewest exchanges, and among several such routes the one that sends the fewest bytes.

    - `lengths`, `stored`: the lengths of the axes before and after their transforms.
    - `start`, `end`: the divisions of the grid at the start and at the end. If one is `None`, the route may start or
        end with any division that needs no padding.
    - `is_complex`: whether the field is complex before the first transform.

    Raises `NoRouteError` if there is no route, and `ValueError` if `start` and `end` are both `None`.
    """
    every = frozenset(axis for axis, basis in enumerate(bases) if basis.is_transformed)
    if start is not None:
        first, last, done, wanted, transform = start, end, frozenset(), every, _transformed
    elif end is not None:  # The search goes backwards: exchanges cost the same in both directions.
        first, last, done, wanted, transform = end, start, every, frozenset(), _undone
    else:
        raise ValueError("`start` or `end` of a route must be given.")

    def sizes(done: frozenset[int]) -> tuple[int, ...]:
        return tuple(stored[axis] if axis in done else n for axis, n in enumerate(lengths))

    def cells(division: Division, done: frozenset[int]) -> int:
        parts = (math.prod(size for _, size in units) for units in division)
        per_cell = 2 if is_complex or any(bases[axis].kinds[1] == "complex" for axis in done) else 1
        return per_cell * math.prod(-(-n // part) for n, part in zip(sizes(done), parts))

    def has_arrived(division: Division, done: frozenset[int]) -> bool:
        return done == wanted and (_is_even(sizes(done), division) if last is None else division == last)

    leg, done = transform(first, done, bases)
    # Routes of equal cost are compared by `ranks`: the position of each exchange in the order of `_exchanges`. No two
    # routes have equal ranks.
    ahead: list[tuple[int, Fraction, tuple[int, ...], Division, frozenset[int], tuple[Leg, ...]]]
    ahead = [(0, Fraction(0), (), first, done, (leg,))]
    seen = set()
    while ahead:
        exchanges, cost, ranks, division, done, legs = heapq.heappop(ahead)
        if has_arrived(division, done):
            forwards = legs if start is not None else tuple(Leg(leg.division, leg.axes[::-1]) for leg in legs[::-1])
            return _joined(forwards, bases, lengths, stored)
        if (division, done) in seen:
            continue
        seen.add((division, done))
        for rank, (there, devices) in enumerate(_exchanges(division, sizes(done), forwards=start is not None)):
            sent = max(cells(division, done), cells(there, done)) * Fraction(devices - 1, devices)
            leg, more = transform(there, done, bases)
            heapq.heappush(ahead, (exchanges + 1, cost + sent, (*ranks, rank), there, more, (*legs, leg)))
    raise NoRouteError(
        f"no sequence of exchanges makes each axis of {lengths} whole in turn; the grid is sharded by {_text(first)}"
    )


def _is_even(lengths: tuple[int, ...], division: Division) -> bool:
    """Return whether a grid of `lengths` has this division without padding."""
    return all(n % math.prod(size for _, size in units) == 0 for n, units in zip(lengths, division))


def _transformed(
    division: Division, done: frozenset[int], bases: tuple[AbstractBasis, ...]
) -> tuple[Leg, frozenset[int]]:
    """Transform every whole axis that can be transformed now, later axes first.

    Axes whose bases have complex coefficients come last, because transforms of real numbers take half as long. Return
    the leg, and all axes that are now transformed.
    """
    axes: list[int] = []
    while ready := [axis for axis in range(len(bases)) if _is_ready(axis, division, done.union(axes), bases)]:
        axes.append(min(ready, key=lambda axis: (bases[axis].kinds[1] == "complex", -axis)))
    return Leg(division, tuple(axes)), done.union(axes)


def _undone(division: Division, done: frozenset[int], bases: tuple[AbstractBasis, ...]) -> tuple[Leg, frozenset[int]]:
    """Do the reverse of `_transformed`: undo the transform of every whole axis that can have been transformed last.

    Return the leg and the axes that are still transformed.
    """
    axes: list[int] = []
    while last := [axis for axis in done if _is_ready(axis, division, done - {axis}, bases)]:
        axes.append(min(last, key=lambda axis: (bases[axis].kinds[1] != "complex", axis)))
        done = done - {axes[-1]}
    return Leg(division, tuple(axes)), done


def _is_ready(axis: int, division: Division, done: frozenset[int], bases: tuple[AbstractBasis, ...]) -> bool:
    """Return whether an axis can be transformed after the axes in `done`.

    Axes whose bases take only real fields must be transformed before axes whose bases have complex coefficients.
    """
    if axis in done or division[axis] or not bases[axis].is_transformed:
        return False
    takes, makes = bases[axis].kinds
    before = {bases[other].kinds[1] for other in done}
    waiting = {bases[other].kinds[0] for other in range(len(bases)) if other not in (axis, *done)}
    return not (takes == "real" and "complex" in before) and not (makes == "complex" and "real" in waiting)


def _joined(
    legs: tuple[Leg, ...], bases: tuple[AbstractBasis, ...], lengths: tuple[int, ...], stored: tuple[int, ...]
) -> tuple[Leg, ...]:
    """Return the route with some axes moved to a later leg, where one transform handles them and a later grid axis."""
    axes = [list(leg.axes) for leg in legs]
    for number, leg in enumerate(legs):
        for axis in leg.axes:
            waits = bases[axis].kinds == (None, "complex") and stored[axis] == lengths[axis]
            later = (other for other in range(number + 1, len(legs)) if axes[other])
            there = next(later, number)
            if waits and max(axes[there]) > axis and not any(leg.division[axis] for leg in legs[number : there + 1]):
                axes[number].remove(axis)
                axes[there].append(axis)
    return tuple(Leg(leg.division, tuple(own)) for leg, own in zip(legs, axes))


def _exchanges(division: Division, lengths: tuple[int, ...], *, forwards: bool) -> Iterator[tuple[Division, int]]:
    """Yield each division that one exchange can reach, and the number of devices that take part in the exchange.

    An exchange moves the last (minor) mesh axes of one grid axis to another grid axis. If that grid axis is already
    sharded, the moved mesh axes come after its own mesh axes.

    The order of the exchanges decides between routes of equal cost: earlier exchanges win. Exchanges that shard a whole
    axis come before all others. Within both groups, the order depends on `forwards`. If it is true, exchanges that make
    later axes whole come first, so that routes lead from z-pencils to x-pencils. If it is false, exchanges that make
    earlier axes whole come first, so that routes lead from x-pencils to z-pencils.
    """
    axes = range(len(division))[:: -1 if forwards else 1]
    pairs = sorted(((s, t) for s in axes for t in axes[::-1] if s != t), key=lambda pair: bool(division[pair[1]]))
    for source, target in pairs:
        for kept in range(len(division[source])):
            moved = division[source][kept:]
            new = {source: division[source][:kept], target: division[target] + moved}
            there = tuple(new.get(axis, units) for axis, units in enumerate(division))
            # If an axis stays sharded, or was sharded before, its blocks must have no padding.
            cut = [math.prod(size for _, size in units) for units in (division[source], there[target])]
            partial = kept > 0 or bool(division[target])
            if not partial or (lengths[source] % cut[0] == 0 and lengths[target] % cut[1] == 0):
                yield there, math.prod(size for _, size in moved)


def _text(division: Division) -> str:
    return ", ".join(f"{name!r} ({size} devices)" for units in division for name, size in units)
