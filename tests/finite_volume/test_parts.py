"""Tests of grids of several closed parts, each of which has a constant of its own in the null space."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.csgraph
from decompops import finite_volume, solve

from helpers import assert_close, make_mesh, random_field


def ring(x, y):
    return jnp.abs(jnp.sqrt((x - 0.45) ** 2 + (y - 0.5) ** 2) - 0.31) - 0.09


@pytest.mark.parametrize(
    ("sizes", "shape", "axis_type", "boundary", "has_body"),
    [
        ((2, 4), (5, 7, 6), "explicit", (("neumann", "neumann"), "periodic", ("neumann", "dirichlet")), False),
        pytest.param((8,), (9, 6, 5), "auto", "periodic", False, marks=pytest.mark.sweep),
        ((4,), (13, 12), "auto", "dirichlet", True),
        pytest.param((1,), (13, 12), "auto", "neumann", True, marks=pytest.mark.sweep),
    ],
)
def test_closed_parts(sizes, shape, axis_type, boundary, has_body):
    """The parts are those that SciPy finds in the matrix, and the solution is the one of its pseudoinverse."""
    dec = dops.Decomposition(make_mesh(sizes, axis_type), shape=shape, pad=True, box=dops.Box(1.0))
    a = np.where(np.random.default_rng(3).uniform(size=shape) < (0 if has_body else 0.74), 0.0, 1.0)
    size, b = a.size, random_field(shape)
    body = finite_volume.Body(ring) if has_body else None
    operator = finite_volume.Diffusion(dec, dec.shard(a), boundary=boundary, body=body, parts=24)
    matrix = dec.gather(operator(dec.shard(np.eye(size).reshape(size, *shape)))).reshape(size, size)
    is_open = matrix.diagonal() != 0
    _, labels = scipy.sparse.csgraph.connected_components(matrix != 0)
    is_closed = abs(matrix.sum(1)) < 1e-12 * abs(matrix).max()
    cells = [labels == label for label in range(labels.max() + 1)]
    expected = {tuple(part) for part in cells if is_open[part].all() and is_closed[part].all()}
    assert len(expected) > (0 if boundary == "dirichlet" else 1)
    parts = dec.gather(operator.closed_parts).reshape(24, size)
    assert {tuple(part) for part in parts if part.any()} == expected
    np.testing.assert_array_equal(dec.gather(operator.open_cells).ravel(), is_open)
    if len(expected) > 1:
        with pytest.raises(ValueError, match="`parts` must be at least the number of closed parts of the grid; got 1"):
            finite_volume.Diffusion(dec, dec.shard(a), boundary=boundary, body=body, parts=1)
    assert solve.CG(operator).solve(dec.shard(b)).reason == solve.Reason.INCOMPATIBLE

    @jax.jit
    def found(b):
        cycle = solve.Multigrid(operator) if axis_type == "auto" else None
        solver = solve.CG(operator, cycle, rtol=1e-10, null_space="constants")
        x, turned = jax.vjp(solver, b)
        return x, turned(b)[0]

    exact = np.zeros(size)  # The open cells alone: cut cells may be tiny.
    inner = matrix[np.ix_(is_open, is_open)]
    scale = 1 / np.sqrt(inner.diagonal())
    null = [part[is_open] / np.linalg.norm(part[is_open]) for part in map(np.array, expected)]
    right = b.ravel()[is_open] - sum(v * (v @ b.ravel()[is_open]) for v in null)
    solution = scale * np.linalg.lstsq(inner * scale[:, None] * scale, scale * right, rcond=1e-11)[0]
    exact[is_open] = solution - sum(v * (v @ solution) for v in null)
    for x in found(dec.shard(b)):
        assert_close(dec.gather(x), exact.reshape(shape), rtol=1e-7)
