"""Tests of bodies in `Diffusion`: matrices, solutions, and derivatives by the shape."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
import scipy.sparse.csgraph
from decompops import finite_volume

from helpers import assert_close, make_mesh
from volumes import diffusion_matrix, open_fractions, widths_of


LENGTHS = (1.0, 1.5, 2.0)
WALLS = [("dirichlet", "neumann"), "periodic", ("neumann", "neumann")]
CLOSED = [("neumann", "neumann"), "periodic", ("neumann", "neumann")]
GRIDS = {
    "pencils": ((2, 4), (6, 6, 6), "auto"),
    "uneven pencils": ((2, 2), (5, 7, 6), "explicit"),
    "uneven slabs": ((8,), (9, 6), "auto"),
    "one device": ((1,), (11,), "explicit"),
}


class Ball(eqx.Module):
    """The distance from a ball that is stretched along the axes, and at the same place on a periodic y axis."""

    centre: tuple[float, ...]
    radius: jax.Array | float

    def __call__(self, *points):
        if len(points) > 1:
            points = (points[0], jnp.sin(np.pi / 1.5 * (points[1] - self.centre[1])) / 2, *points[2:])
        shifts = [(c if i != 1 else 0.0) for i, c in enumerate(self.centre)]
        return jnp.sqrt(sum((p - c) ** 2 for p, c in zip(points, shifts))) - self.radius


def dense(operator: dops.AbstractOperator) -> np.ndarray:
    dec = operator.decomposition
    size = int(np.prod(dec.shape))
    return dec.gather(operator(dec.shard(np.eye(size).reshape(size, *dec.shape)))).reshape(size, size).T


def edges_of(shape, widths) -> list[np.ndarray]:
    return [np.concatenate([[0], np.cumsum(w)]) for w in widths_of(shape, LENGTHS, widths)]


@pytest.mark.parametrize(
    ("grid", "kind", "as_field", "is_closed"),
    [
        ("pencils", "neumann", False, True),
        ("pencils", "dirichlet", True, True),
        ("uneven pencils", "neumann", True, False),
        ("uneven pencils", "dirichlet", False, False),
        ("uneven slabs", "neumann", False, True),
        ("uneven slabs", "dirichlet", True, True),
        ("one device", "neumann", True, True),
        ("one device", "dirichlet", False, True),
    ],
)
def test_matrix(grid, kind, as_field, is_closed):
    """The matrix is the one that NumPy assembles: symmetric, and positive but for closed cells and for constants."""
    sizes, shape, axis_type = GRIDS[grid]
    ndim = len(shape)
    dec = dops.Decomposition(make_mesh(sizes, axis_type), shape=shape, box=dops.Box(LENGTHS[:ndim]), pad=True)
    rng = np.random.default_rng(1)
    widths = [None if axis == 1 else rng.uniform(0.7, 1.3, n) for axis, n in enumerate(shape)]
    a, c = rng.uniform(0.5, 2, (ndim, *shape)), rng.uniform(0, 1, shape)
    ball = Ball((0.45, 0.6, 0.83)[:ndim], 0.42 if ndim > 1 else 0.2)
    edges = edges_of(shape, widths)
    centres = [(e[1:] + e[:-1]) / 2 for e in edges]
    distance = np.asarray(ball(*np.meshgrid(*centres, indexing="ij")))
    if as_field:
        corners = corners_of(distance, centres, edges)
        body = finite_volume.Body(dec.shard(distance), kind)
    else:
        corners = np.asarray(ball(*np.meshgrid(*edges, indexing="ij")))
        body = finite_volume.Body(ball, kind)
    openings = open_fractions(corners)
    given = {"openings": openings} if kind == "neumann" else {"distance": distance}
    options = {"cells": [None if w is None else jnp.asarray(w) for w in widths], "body": body}
    walls = (CLOSED if is_closed else WALLS)[:ndim]
    operator = finite_volume.Diffusion(dec, a, boundary=walls, **options)
    matrix = dense(operator)
    assert_close(matrix, diffusion_matrix(a, 0.0, LENGTHS[:ndim], walls, widths, **given), rtol=1e-12)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-13 * abs(matrix).max())
    is_open = dec.gather(operator.open_cells).ravel()
    np.testing.assert_array_equal(is_open, abs(matrix).sum(0) > 0)
    assert not is_open.all()
    inner = matrix[np.ix_(is_open, is_open)]
    null = scipy.sparse.csgraph.connected_components(inner != 0)[0] if is_closed and kind == "neumann" else 0
    assert operator.null_space == ("constants" if null else None)
    values = np.linalg.eigvalsh(inner)
    assert (values[null:] > 1e-12 * values[-1]).all()
    assert (abs(values[:null]) < 1e-13 * values[-1]).all()
    with_c = finite_volume.Diffusion(dec, a, c, boundary=walls, **options)
    assert with_c.null_space is None
    assert_close(dense(with_c), diffusion_matrix(a, c, LENGTHS[:ndim], walls, widths, **given), rtol=1e-12)
    relative = np.ones(shape)
    for axis, w in enumerate(widths_of(shape, LENGTHS, widths)):
        relative = relative * (w / w.mean()).reshape([-1 if i == axis else 1 for i in range(ndim)])
    expected = relative * (openings[ndim] if kind == "neumann" else distance > 0)
    assert_close(dec.gather(operator.volumes), expected, rtol=1e-12)


def corners_of(distance, centres, edges) -> np.ndarray:
    """Return values at corners by linear interpolation along each axis; the second axis is periodic."""
    for axis, (points, corners) in enumerate(zip(centres, edges)):
        values = np.moveaxis(distance, axis, 0)
        if axis == 1:
            length = corners[-1]
            points = np.concatenate([[points[-1] - length], points, [points[0] + length]])
            values = np.concatenate([values[-1:], values, values[:1]])
        found = scipy.interpolate.interp1d(points, values, axis=0, fill_value="extrapolate")(corners)
        distance = np.moveaxis(found, 0, axis)
    return distance
