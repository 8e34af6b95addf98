"""Tests of the images of `plot.projection` against NumPy."""

import decompops as dops
import numpy as np
import pytest
from decompops import plot
from decompops.plot import _planes
from decompops.tools.hlo import collectives

from helpers import make_mesh, random_field


SHAPE = (9, 10, 11)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("axis", ["x", "y", "z"])
@pytest.mark.parametrize("reduce", ["max", "min", "mean", "sum"])
def test_reductions(axis, reduce, kind):
    """No reduction includes the zeros in the padding, even where they would be the largest or the smallest values."""
    dec = dops.Decomposition(make_mesh((2, 4), kind), shape=SHAPE, pad=True)
    u = random_field(SHAPE)
    u = -1 - abs(u) if reduce == "max" else 1 + abs(u)
    axes = plot.projection(dec, dec.shard(u), axis, reduce)
    expected = getattr(np, reduce)(u, "xyz".index(axis)).T
    np.testing.assert_allclose(axes.images[0].get_array(), expected, rtol=1e-12)
    assert axes.get_title() == f"{reduce} along {axis}"
    assert [axes.get_xlabel(), axes.get_ylabel()] == [name for name in "xyz" if name != axis]


def test_components_of_a_slab():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, box=dops.Box(10.0), pad=True)
    u = abs(random_field((3, *SHAPE)))
    options = {"between": (2, 5)}  # The points along y have the coordinates 0 to 9.
    for reduce in ("max", "mean"):
        axes = plot.projection(dec, dec.shard(u), "y", reduce, **options, title=("a", "b", "c"))
        expected = getattr(np, reduce)(u[:, :, 2:6], 2)
        for panel, plane in zip(axes, expected):
            np.testing.assert_allclose(panel.images[0].get_array(), plane.T, rtol=1e-12)


@pytest.mark.parametrize("length", [1.0, 2 * np.pi, 3.0, 0.7, 10.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("basis", "points"),
    [
        (dops.Fourier(), lambda length: np.arange(10) * length / 10),
        (dops.Chebyshev(), lambda length: length / 2 - length / 2 * np.cos(np.pi * np.arange(10) / 9)),
        (dops.Cells([0, 1e-8, 3e-8, 0.5, 1]), lambda length: np.array([0.5e-8, 2e-8, 0.25 + 1.5e-8, 0.75]) * length),
    ],
    ids=["fourier", "chebyshev", "cells"],
)
def test_a_slab_includes_both_bounds(basis, points, dtype, length):
    """Bounds that are computed in another way than the points of the grid, or in 32 bits, select the same planes."""
    coordinates = points(length).astype(dtype)
    shape, bases = (len(coordinates), 4, 4), (basis, dops.Fourier(), dops.Fourier(half=True))
    transform = dops.Transform(make_mesh((2, 2)), shape=shape, bases=bases, box=dops.Box(length), pad=True)
    field = transform.decomposition.shard(np.ones(shape))
    for first, last in ((0, 1), (1, 2), (2, len(coordinates) - 1), (3, 3)):
        found = plot.projection(transform, field, "x", "sum", between=coordinates[[first, last]])
        np.testing.assert_array_equal(found.images[0].get_array(), last - first + 1)


def test_mean_between_walls_has_the_quadrature_weights():
    bases = (dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True))
    transform = dops.Transform(make_mesh((2, 4)), shape=(7, 8, 8), bases=bases, box=dops.Box(1.0), pad=True)
    x = bases[0].points(7)[:, None, None]
    u = 0 * random_field((7, 8, 8)) + x**4 + np.arange(8)  # The mean of x⁴ is 1/5.
    axes = plot.projection(transform, transform.decomposition.shard(u), "x", "mean")
    np.testing.assert_allclose(axes.images[0].get_array(), (0.2 + np.arange(8) + np.zeros((8, 8))).T, rtol=1e-12)


@pytest.mark.parametrize("reduce", ["max", "min", "sum"])
def test_devices_reduce_before_anything_is_gathered(reduce):
    n = 16
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(n, n, n))
    u = random_field((n, n, n))
    u[3, 9, 2] = np.nan
    field = dec.shard(u)
    for axis in (-3, -2, -1):
        found = _planes.reduce_axis(field, np.ones(n), axis, reduce)
        np.testing.assert_allclose(found, getattr(np, reduce)(u, axis), rtol=1e-12)
        found = collectives(_planes.reduce_axis.lower(field, np.ones(n), axis, reduce).compile().as_text())
        assert {collective.kind for collective in found} <= {"all-reduce"}
        assert sum(collective.bytes for collective in found) <= 2 * 8 * n**2


def test_errors(plain):
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    u = dec.shard(random_field((8, 8, 8)))
    flat = plain.Decomposition(make_mesh((2,)), shape=(8, 8))
    draw = plain.plot.projection
    for message, call in (
        ("`grid` must have three axes", lambda: draw(flat, random_field((8, 8)))),
        ("`reduce` must be one of", lambda: draw(dec, u, "x", "median")),
        ("`between` must be two increasing coordinates", lambda: draw(dec, u, between=(2, 1))),
        ("`between` must be two increasing coordinates", lambda: draw(dec, u, between=(0.1, 0.2))),
        *(
            ("`between` must be two increasing coordinates", lambda between=between: draw(dec, u, between=between))
            for between in (0.3, (0, 1, 2), (None, 1), "ab", np.zeros((2, 2)), (np.nan, 1))
        ),
        ("`axis` must be", lambda: draw(dec, u, 3)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
