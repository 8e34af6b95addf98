"""Tests of routes of exchanges, which are found from the input or from the result, and of plans of whole arrays."""

import itertools
import math

import numpy as np
import pytest
from decompops._basis.fourier import Fourier
from decompops._basis.points import Points
from decompops._plan.route import NoRouteError, find_route
from decompops._plan.stage import LocalTransform, Move, Resize
from decompops._plan.whole import default_entries, undivided_axis, whole_array_plan


FULL, HALF, POINTS = Fourier(), Fourier(half=True), Points()
SIZES = {"x": 2, "y": 4}


def sent(legs, lengths, stored, is_complex) -> float:
    """Return how many real numbers each device sends in all exchanges of a route."""
    current, per_cell, total = list(lengths), 2 if is_complex else 1, 0.0
    blocks = lambda division: [math.prod(size for _, size in units) for units in division]
    cells = lambda division: per_cell * math.prod(-(-n // p) for n, p in zip(current, blocks(division)))
    for before, after in itertools.pairwise([None, *legs]):
        if before is not None:
            moved = math.prod(max(a // b, 1) for a, b in zip(blocks(before.division), blocks(after.division)))
            total += max(cells(before.division), cells(after.division)) * (1 - 1 / moved)
        for axis in after.axes:
            assert not after.division[axis]
            current[axis], per_cell = stored[axis], 2
    return total


@pytest.mark.parametrize(
    ("shape", "bases"),
    [
        ((8, 16, 24), (FULL, FULL, HALF)),
        ((8, 8), (FULL, FULL)),
        ((8, 16, 6), (HALF, POINTS, FULL)),
    ],
)
def test_a_route_found_backwards_is_the_cheapest_of_those_that_end_there(shape, bases):
    stored = tuple(basis.stored(n) for basis, n in zip(bases, shape))
    is_complex = HALF not in bases
    units = [("x", 2), ("y", 4)]
    starts = []
    for places in itertools.product(range(len(shape)), repeat=2):
        for order in (units, units[::-1]):
            starts.append(
                tuple(tuple(u for u in order if places[units.index(u)] == axis) for axis in range(len(shape)))
            )
    even = lambda lengths, division: not any(n % math.prod(s for _, s in u) for n, u in zip(lengths, division))
    cost = lambda legs: sent(legs, shape, stored, is_complex)
    for end in {start for start in starts if even(stored, start)}:
        found = []
        for start in {start for start in starts if even(shape, start)}:
            try:
                found.append(cost(find_route(shape, start, end, bases, stored, is_complex=is_complex)))
            except NoRouteError:
                continue
        if not found:
            continue
        legs = find_route(shape, None, end, bases, stored, is_complex=is_complex)
        assert legs[-1].division == end
        assert even(shape, legs[0].division)
        assert sorted(axis for leg in legs for axis in leg.axes) == [i for i, b in enumerate(bases) if b != POINTS]
        np.testing.assert_allclose(cost(legs), min(found))


def test_axes_are_fitted_while_they_are_whole():
    lengths = ((8, 12), (8, 10), (8, 5))
    plan = whole_array_plan("test", (POINTS, HALF), lengths, (("x", None), None), SIZES, scale=1.0, is_complex=False)
    assert [type(stage) for stage in plan.stages] == [Resize, LocalTransform, Resize]
    assert [stage.after.lengths[1] for stage in plan.stages] == [10, 6, 5]
    crossed = whole_array_plan(
        "test", (FULL, POINTS), ((8, 4),) * 3, (("x", None), None), SIZES, scale=1.0, is_complex=True
    )
    assert [type(stage) for stage in crossed.stages] == [Move, LocalTransform, Move]
    # The second move changes only the storage order.
    assert [stage.gathered for stage in crossed.stages[::2]] == [0, None]
    assert crossed.target.names == (None, "x")


def test_default_shardings_of_arrays():
    assert default_entries((8, 8, 8), SIZES) == ("x", "y", None)
    assert default_entries((8, 8), SIZES) == ("x", "y")
    assert default_entries((3, 8, 8, 8), SIZES) == (None, "x", "y", None)
    assert default_entries((8, 8), {"c": 2, **SIZES}) == ("x", "y")
    assert default_entries((8,), SIZES) == (None,)
    assert default_entries((8, 8, 8), {"y": 4}, ("x", None, None)) == ("x", "y", None)
    assert undivided_axis((8, 6), ("x", "y"), SIZES) == 1
    assert undivided_axis((8, 6), (("x", "y"), None), SIZES) is None


def test_a_route_needs_a_start_or_an_end():
    with pytest.raises(ValueError, match=r"`start` or `end`"):
        find_route((8, 8), None, None, (FULL, FULL), (8, 8))
    with pytest.raises(NoRouteError, match="'x'"):
        find_route((8,), ((("x", 2),),), None, (FULL,), (8,))
