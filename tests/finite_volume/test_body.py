"""Tests of bodies in `Diffusion`: matrices, solutions, and derivatives by the shape."""

import itertools

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
import scipy.sparse.csgraph
from decompops import finite_volume, solve

from helpers import assert_close, finite_difference, make_mesh, random_field, thinned
from volumes import diffusion_matrix, open_fractions, widths_of


LENGTHS = (1.0, 1.5, 2.0)
CENTRE, RADIUS = (0.5, 0.52, 0.47), 0.27
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
    thinned(
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
        lambda grid, kind, *_: (kind == "neumann") == (grid in ("pencils", "one device")),
    ),
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


def potential(ndim: int, centre: tuple[float, ...], radius: float):
    """The velocity potential around a cylinder or a sphere in a uniform flow: its normal derivative vanishes there."""

    def u(*p):
        square = sum((q - c) ** 2 for q, c in zip(p, centre))
        return (p[0] - centre[0]) * (1 + (radius**2 / square if ndim == 2 else radius**3 / (2 * square**1.5)))

    return u


def body_of(kind: str, ndim: int, radius: jax.Array) -> finite_volume.Body:
    """Return a circle or a sphere."""
    return finite_volume.Body(lambda *p: jnp.sqrt(sum((q - c) ** 2 for q, c in zip(p, CENTRE[:ndim]))) - radius, kind)


def solved(kind: str, ndim: int, n: int) -> tuple[np.ndarray, np.ndarray, finite_volume.Diffusion]:
    """Return the errors, the exact solution and the operator of a problem around a circle or a sphere."""
    dec = dops.Decomposition(make_mesh((2, 2)), shape=(n,) * ndim, box=dops.Box(1.0))
    if kind == "neumann":
        u, surface, factor = potential(ndim, CENTRE, RADIUS), None, 0.0
    else:  # The value on the surface is u itself.
        u, surface = (lambda x, y, z=0.0, m=m: m.exp(x) * m.sin(2 * y) * m.cos(z) for m in (np, jnp))
        factor = 4.0 if ndim == 3 else 3.0
    points = (np.arange(n) + 0.5) / n
    exact = u(*np.meshgrid(*[points] * ndim, indexing="ij"))
    values = []
    for axis in range(ndim):
        sides = []
        for end in (0.0, 1.0):
            lines = [points] * (ndim - 1)
            lines.insert(axis, np.array([end]))
            sides.append(u(*np.meshgrid(*lines, indexing="ij")).squeeze(axis))
        values.append(tuple(sides))

    @jax.jit
    def solution(radius, f, values):
        operator = finite_volume.Diffusion(dec, 1.0, boundary="dirichlet", body=body_of(kind, ndim, radius))
        right = operator.volumes * f + operator.source(*values, body=surface)
        return solve.CG(operator, rtol=1e-9)(right), operator

    found, operator = solution(RADIUS, dec.shard(factor * exact), values)
    error = np.where(dec.gather(operator.open_cells), dec.gather(found) - exact, 0)
    return error, dec.gather(found), operator


@pytest.mark.parametrize(
    ("kind", "ndim"),
    thinned(itertools.product(("neumann", "dirichlet"), (2, 3)), lambda kind, ndim: ndim == 2),
)
def test_order_of_convergence(kind, ndim):
    """Errors are of second order: in the mean around impermeable bodies, and everywhere with values on the surface."""
    each = []
    for n in (32, 64) if ndim == 2 else (12, 24):
        error, found, operator = solved(kind, ndim, n)
        volumes = np.asarray(operator.volumes)
        each.append([np.sum(volumes * abs(error)), np.sqrt(np.sum(volumes * error**2)), abs(error).max()])
        each[-1] = np.array(each[-1]) / [n**ndim, n ** (ndim / 2), 1]
    orders = np.log2(each[0] / each[1])
    assert (orders > [1.8, 1.8, 1.7 if kind == "dirichlet" or ndim == 2 else 1.5]).all(), orders
    if kind == "neumann":
        # The impulse, which is the integral of the potential times the normal over the surface, and the area.
        @jax.jit
        def surface(radius):
            gradient = finite_volume.Gradient(operator.decomposition, body=body_of(kind, ndim, radius))
            return gradient.openings[0], operator.source(*[None] * ndim, body=1.0)

        openings, source = map(np.asarray, surface(RADIUS))
        normal = (np.roll(openings, -1, 0) - openings) / n ** (ndim - 1)
        assert np.sum(found * normal) == pytest.approx(2 * np.pi * RADIUS**ndim, rel=0.02)
        assert source.mean() == pytest.approx(2 * np.pi * RADIUS * (1 if ndim == 2 else 2 * RADIUS), rel=0.01)


@pytest.mark.parametrize("kind", ["neumann", "dirichlet"])
def test_derivative_by_the_radius(kind):
    """The derivative of a solution by the radius and the place of the body is that of finite differences."""
    dec = dops.Decomposition(make_mesh((2, 2), "explicit"), shape=(9, 7), box=dops.Box(LENGTHS[:2]), pad=True)
    right = dec.shard(random_field(dec.shape))
    weights = dec.shard(random_field(dec.shape, seed=1))

    @jax.jit
    @jax.value_and_grad
    def loss(t):
        body = finite_volume.Body(Ball((0.45, 0.6 + 0.1 * t), 0.3 + t), kind)
        operator = finite_volume.Diffusion(dec, 1.0, boundary=CLOSED[:2], body=body)
        solver = solve.CG(operator, rtol=1e-12, null_space="constants" if kind == "neumann" else "operator")
        g = lambda x, y: jnp.cos(3 * x + 0 * y)
        source = operator.source(None, None, body=g)
        u = solver(operator.volumes * right + source)
        return jnp.sum(weights * u * operator.volumes) + jnp.sum(source**2)

    zero = np.zeros(())
    expected = finite_difference(lambda t: loss(t)[0], zero, np.ones(()), 1e-5)
    assert loss(zero)[1] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("kind", "centre"), [("neumann", 0.5), ("dirichlet", 0.4375)])
def test_derivative_by_a_centre_on_a_point(kind, centre):
    """Where a corner or a centre of a cell is the centre of a circle, the root that `Body` recommends has a slope."""
    dec = dops.Decomposition(make_mesh((2,)), shape=(8, 8), box=dops.Box(1.0))
    u = dec.shard(random_field(dec.shape))

    def loss(x):
        circle = lambda *p: jnp.sqrt(jnp.maximum((p[0] - x) ** 2 + (p[1] - centre) ** 2, 1e-30)) - 0.27
        return jnp.sum(u * finite_volume.Diffusion(dec, boundary="dirichlet", body=finite_volume.Body(circle, kind))(u))

    found = jax.jit(jax.grad(loss))(centre)
    assert found == pytest.approx(finite_difference(jax.jit(loss), centre, 1.0, 1e-6), rel=1e-6)


def test_several_bodies_and_blocks():
    """`vmap` maps over radii, `local` works on blocks, and values in the body matter to nothing."""
    mesh = make_mesh((2, 2))
    dec = dops.Decomposition(mesh, shape=(9, 7), box=dops.Box(LENGTHS[:2]), pad=True)
    body = lambda radius: finite_volume.Body(Ball((0.45, 0.6), radius))
    of = lambda radius: finite_volume.Diffusion(dec, 1.0, boundary=CLOSED[:2], body=body(radius))
    u = dec.shard(random_field(dec.shape))
    several = eqx.filter_jit(eqx.filter_vmap(lambda radius: of(radius)(u)))(jnp.array([0.2, 0.4]))
    operator = of(0.4)
    applied = np.asarray(operator(u))
    for single, result in zip((np.asarray(of(0.2)(u)), applied), several):
        assert_close(result, single, rtol=1e-12)
    mapped = jax.shard_map(
        lambda operator, block: operator.local(block),
        mesh=mesh,
        in_specs=(operator.specs, dec.spec()),
        out_specs=dec.spec(),
    )
    assert_close(jax.jit(mapped)(operator, u), applied, rtol=1e-12)
    inside = ~np.asarray(operator.open_cells)
    other = jax.device_put(np.where(inside, 7.0, u), u.sharding)
    assert_close(operator(other), applied, rtol=1e-12)
    solver = solve.MINRES(operator, rtol=1e-9, null_space="constants")
    found = solver.solve(u, guess=other)
    assert found.converged
    assert not np.asarray(found.value)[inside].any()
    assert_close(found.value, np.asarray(solver.solve(other, guess=u).value), rtol=1e-6)
    assert operator.T.null_space == "constants"
    assert solve.CG(operator).solve(u).reason == solve.Reason.INCOMPATIBLE


def test_a_flux_that_varies_is_that_of_the_surface():
    """The disc touches lines of the grid, where the centres of all cut cells are on the same side of its surface."""
    centre, radius, length = (0.5, 0.75), 0.25, (1.0, 1.5)
    away = lambda x, y: np.hypot(x - centre[0], y - centre[1])
    flux = lambda x, y: jnp.exp(2 * x) * jnp.cos(3 * y)

    def error(n: int) -> float:
        widths = (1 + np.cos(np.pi * np.arange(0.5, n) / n) / 3) / n, np.full(n, 1.5 / n)
        x, y = np.meshgrid(*(np.cumsum(width) - width / 2 for width in widths), indexing="ij")
        dec = dops.Decomposition(make_mesh((2, 2)), shape=(n, n), box=dops.Box(length))
        body = finite_volume.Body(lambda x, y: jnp.hypot(x - centre[0], y - centre[1]) - radius)
        operator = finite_volume.Diffusion(dec, cells=(jnp.asarray(widths[0]), None), body=body)
        found, areas = (np.asarray(operator.source(None, None, body=g)) for g in (flux, 1.0))
        cut = areas > 1e-9 * areas.max()
        places = (c + (points - c) * radius / away(x, y) for c, points in zip(centre, (x, y)))
        return abs(found / np.where(cut, areas, 1) - flux(*places))[cut].max()

    assert error(16) < 0.15
    assert error(48) < error(16) / 6


@pytest.mark.parametrize("kind", ["neumann", "dirichlet"])
def test_values_on_the_surface_may_be_nan_inside(kind):
    """As the normal of a sphere is at its centre, here that of a cell."""
    dec = dops.Decomposition(make_mesh((2,)), shape=(9, 9), box=dops.Box(9.0), pad=True)
    ball = lambda x, y: jnp.hypot(x - 4.5, y - 4.5) - 2.6
    operator = finite_volume.Diffusion(dec, body=finite_volume.Body(ball, kind))

    def source(least):
        return operator.source(
            None, None, body=lambda x, y: (x - 4.5) / jnp.maximum(jnp.hypot(x - 4.5, y - 4.5), least)
        )

    assert np.abs(source(0.1)).max() > 0.1
    np.testing.assert_allclose(source(0.0), source(0.1), atol=1e-14)


def test_a_distance_that_is_nan():
    dec = dops.Decomposition(make_mesh((1,)), shape=(6, 6), box=dops.Box(1.0))
    distance = np.ones(dec.shape)
    distance[2, 3] = np.nan
    for kind in ("neumann", "dirichlet"):
        operator = finite_volume.Diffusion(dec, body=finite_volume.Body(distance, kind))
        assert np.isnan(np.asarray(operator(np.ones(dec.shape)))[2, 3])


def test_bad_arguments(plain):
    dec, body = plain.Decomposition(make_mesh((1,)), shape=(6, 6)), plain.finite_volume.Body
    diffusion, ones = plain.finite_volume.Diffusion, np.ones((6, 6))
    with pytest.raises(ValueError, match="`boundary` must be one of"):
        body(ones, "periodic")
    with pytest.raises(TypeError, match=r"`body` must be a `finite_volume.Body`"):
        diffusion(dec, body=ones)
    with pytest.raises(ValueError, match="`distance` must be a function of the coordinates, or a field"):
        diffusion(dec, body=body(np.ones((5, 6))))
    with pytest.raises(ValueError, match="`a` must not be a tensor where a `body` is given"):
        diffusion(dec, np.ones((2, 2, 6, 6)), body=body(ones))
    with pytest.raises(ValueError, match="`body` must be None for an operator without a body"):
        diffusion(dec).source(None, None, body=1.0)
    with pytest.raises(TypeError, match=r"`distance` must be real, the signed distance .* got bool"):
        diffusion(dec, body=body(lambda x, y: x > y))
    with pytest.raises(TypeError, match=r"`distance` must be real, the signed distance .* got complex"):
        diffusion(dec, body=body(1j * ones, "dirichlet"))
    with pytest.raises(ValueError, match=r"`distance` must return a number or an array .* got an array .*\[3\]"):
        diffusion(dec, body=body(lambda x, y: jnp.zeros(3)))
    with pytest.raises(ValueError, match=r"`body` must return a number or an array that broadcasts .* got None"):
        diffusion(dec, body=body(ones)).source(None, None, body=lambda x, y: None)
    with pytest.raises(ValueError, match="`body` must be a function of the coordinates, or a field"):
        diffusion(dec, body=body(ones)).source(None, None, body=np.ones(6))


@pytest.mark.parametrize("length", [1e-18, 1e18])
def test_fluxes_do_not_depend_on_the_unit_of_length(length):
    """In single precision, squares of areas could be zero or infinite."""

    def source(length):
        dec = dops.Decomposition(make_mesh((2, 2)), shape=(8, 6, 10), box=dops.Box((1.5 * length, 2 * length, length)))
        centre = np.array([0.7, 1.0, 0.5])
        ball = lambda *x: length * (jnp.sqrt(sum((a / length - b) ** 2 for a, b in zip(x, centre))) - 0.35)
        operator = finite_volume.Diffusion(
            dec, dec.shard(np.ones(dec.shape, np.float32)), body=finite_volume.Body(ball)
        )
        return length * np.asarray(operator.source(None, None, None, body=1.0))

    assert np.abs(source(1.0)).max() > 0
    assert_close(source(length), source(1.0), 1e-5)


THERE = 0.3


def distance(*points):
    return points[0] - THERE


@pytest.mark.parametrize(("kind", "boundary"), [("auto", "dirichlet"), ("explicit", "neumann")])
def test_an_operator_sees_the_variables_that_a_function_reads(kind, boundary, monkeypatch):
    """A function may read a global variable. Operators are as if they were given its present values as an array."""
    dec = dops.Decomposition(make_mesh((4,), kind), shape=(8, 6), box=dops.Box((1.0, 1.0)))
    u, x = dec.shard(random_field((8, 6))), (np.arange(8.0)[:, None] + 0.5) / 8 + np.zeros((8, 6))
    walls = ("neumann", "neumann")
    for there in (0.3, 0.6):
        monkeypatch.setitem(globals(), "THERE", there)
        bodies = [finite_volume.Body(given, boundary) for given in (distance, x - there)]
        one, other = (finite_volume.Diffusion(dec, 1.0, boundary=walls, body=body) for body in bodies)
        assert_close(one(u), other(u))
        assert_close(one.source(None, None, body=distance), one.source(None, None, body=x - there))
        if boundary == "neumann":
            one, other = (finite_volume.Gradient(dec, boundary=walls, body=body) for body in bodies)
            assert_close(one(u), other(u))


def test_functions_may_be_constant():
    """A function need not read its coordinates: a program without them still runs on the devices of the mesh."""
    dec = dops.Decomposition(make_mesh((4,), "explicit"), shape=(8, 6), box=dops.Box((1.0, 1.0)))
    u, ones = dec.shard(random_field((8, 6))), np.ones((8, 6))
    no_body, cut = (finite_volume.Body(given) for given in (lambda x, y: 1.0, lambda x, y: x - 0.3))
    assert_close(finite_volume.Diffusion(dec, body=no_body)(u), finite_volume.Diffusion(dec)(u))
    operator = finite_volume.Diffusion(dec, body=cut)
    assert_close(operator.source(None, None, body=lambda x, y: 1), operator.source(None, None, body=ones))
