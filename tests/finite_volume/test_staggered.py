"""Tests of `Gradient` and `Divergence` on the staggered grid."""

import functools
import itertools

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, solve
from decompops.testing import assert_transposed
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, thinned
from volumes import widths_of


LENGTHS = (1.0, 1.5, 2.0)
GRIDS = {
    "uneven pencils": ((2, 2), (5, 3, 4), "explicit"),
    "one cell per device": ((2, 4), (2, 4, 3), "auto"),
    "uneven slabs": ((8,), (9, 4), "auto"),
    "one device": ((1,), (6, 5, 4), "auto"),
}


@pytest.mark.parametrize("jitted", [False, True])
def test_components_on_a_mesh_axis_that_the_grid_leaves_over(jitted):
    """`Decomposition.shard` may shard the components of vectors and of coefficients, also over an Explicit axis."""
    u, scalar = random_field((2, 4, 6)), random_field((4, 6), seed=1)
    tensor = np.eye(2)[:, :, None, None] + 0.1 * random_field((2, 2, 4, 6)) ** 2
    calls = {
        "divergence": lambda dec, u, tensor: finite_volume.Divergence(dec)(u),
        "flux": lambda dec, u, tensor: finite_volume.Gradient(dec, u**2)(dec.shard(scalar)),
        "diagonal": lambda dec, u, tensor: finite_volume.Diffusion(dec, u**2)(u),
        "tensor": lambda dec, u, tensor: finite_volume.Diffusion(dec, tensor)(u),
    }
    for call in calls.values():
        results = []
        for sizes, axis in (((1,), "x"), ((2, 2), "y")):
            dec = dops.Decomposition(make_mesh(sizes, "explicit"), shape=(4, 6), axes=axis)
            run = functools.partial(call, dec)
            results.append((jax.jit(run) if jitted else run)(dec.shard(u), dec.shard(tensor)))
        assert_close(results[1], results[0], 1e-12)


@pytest.mark.parametrize(
    ("grid", "stretched"),
    thinned(
        [(grid, stretched) for grid in GRIDS for stretched in (False, True)],
        lambda grid, stretched: grid != "uneven slabs" and stretched == (grid == "uneven pencils"),
    ),
)
def test_gradient_and_divergence(grid, stretched):
    """Both are those of NumPy, and each other's transposes, and `Diffusion` is the product of the two."""
    sizes, shape, kind = GRIDS[grid]
    ndim = len(shape)
    dec = dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=dops.Box(LENGTHS[:ndim]), pad=True)
    rng, sides = np.random.default_rng(0), ("neumann", "periodic", "neumann")[:ndim]
    relative = [rng.uniform(0.5, 1.5, n) for n in shape] if stretched else None
    options = {"boundary": sides, "cells": relative and list(map(jnp.asarray, relative))}
    gradient, divergence = (of(dec, **options) for of in (finite_volume.Gradient, finite_volume.Divergence))
    widths = widths_of(shape, LENGTHS[:ndim], relative)
    u, v = random_field((2, *shape)), random_field((2, ndim, *shape), seed=1)
    along = lambda values, axis: values.reshape([-1 if i == axis else 1 for i in range(ndim)])
    slopes, fluxes = np.zeros((2, ndim, *shape)), np.zeros((2, *shape))
    for axis, (w, side) in enumerate(zip(widths, sides)):
        inside = np.ones(shape[axis])
        inside[0] = side == "periodic"
        distance = along((w + np.roll(w, 1)) / 2, axis)
        place = axis - ndim
        slopes[:, axis] = along(inside, axis) * (u - np.roll(u, 1, place)) / distance
        through = along(inside, axis) * v[:, axis]
        fluxes += (np.roll(through, -1, place) - through) / along(w, axis)
    volumes = np.ones(shape)
    for axis, w in enumerate(widths):
        volumes = volumes * along(w / w.mean(), axis)
    diffusion = finite_volume.Diffusion(dec, **options)

    @jax.jit
    def everything(u, v):
        products = (divergence @ gradient)(u), diffusion(u)
        return gradient(u), divergence(v), gradient.T(v[0]), divergence.T(u[0]), *products

    x, y = dec.shard(u), dec.shard(v)
    slope, through, slope_t, through_t, product, expected = everything(x, y)
    assert_close(dec.gather(slope), slopes, rtol=1e-13)
    assert_close(dec.gather(through), volumes * fluxes, rtol=1e-12)
    slope, x, y = np.asarray(slope), np.asarray(x)[0], np.asarray(y)[0]
    assert not slope[:, :, shape[0] :].any()
    assert_transposed(lambda _: slope[0], lambda _: slope_t, x, y)
    assert_transposed(lambda _: np.asarray(through)[0], lambda _: through_t, y, x)
    assert_close(through_t, -np.asarray(gradient.weights) * slope[0], rtol=1e-12)
    if not stretched:
        assert_close(through_t, -slope[0], rtol=1e-13)
    assert_close(product, -np.asarray(expected), rtol=1e-12)


SIDES = {"closed": "neumann", "open behind": ("neumann", "dirichlet"), "open before": ("dirichlet", "neumann")}
FEW = {"uneven pencils": "open before", "one cell per device": "open behind", "uneven slabs": "closed"}


@pytest.mark.parametrize(
    ("grid", "side"), thinned(itertools.product(GRIDS, SIDES), lambda grid, side: side == FEW.get(grid))
)
def test_fluxes_with_coefficients(grid, side):
    """The divergence of the flux is `Diffusion`, and inside the grid the flux has the harmonic mean of NumPy.

    One coefficient for all axes, and one for each of them. On the flat grid, also a number.
    """
    sizes, shape, kind = GRIDS[grid]
    ndim, rng = len(shape), np.random.default_rng(0)
    dec = dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=dops.Box(LENGTHS[:ndim]), pad=True)
    with_body = side == "open behind"  # Here, cells are equal, and the grid has a body. Otherwise, they are stretched.
    relative = None if with_body else [rng.uniform(0.5, 1.5, n) for n in shape]
    options = {"boundary": (SIDES[side], "periodic", "neumann")[:ndim]}
    options["cells"] = relative and list(map(jnp.asarray, relative))
    options["body"] = finite_volume.Body(Ball((0.5,) * ndim, 0.3)) if with_body else None
    a, u = np.exp(random_field((ndim, *shape))), dec.shard(random_field((2, *shape), seed=1))
    divergence, plain = (of(dec, **options) for of in (finite_volume.Divergence, finite_volume.Gradient))
    slopes = dec.gather(plain(u))
    y = dec.shard(random_field((ndim, *shape), seed=3))
    for given in (a, a[0], 1.7) if ndim == 2 else (a, a[0]):
        coefficient = given if isinstance(given, float) else dec.shard(given)
        flux = finite_volume.Gradient(dec, coefficient, **options)
        diffusion = finite_volume.Diffusion(dec, coefficient, **options)
        both = jax.jit(lambda u, y, f=flux, d=diffusion: ((divergence @ f)(u), d(u), f(u), f.T(y)))
        product, expected, found, back = both(u, y)
        assert_close(product, -np.asarray(expected), rtol=1e-12)
        first = np.asarray(found)[0]
        assert_transposed(lambda _, v=first: v, lambda _, v=back: v, np.asarray(u)[0], np.asarray(y))
        found = dec.gather(found)
        for axis, w in enumerate(widths_of(shape, LENGTHS[:ndim], relative)):
            one = np.broadcast_to(given if np.ndim(given) <= ndim else given[axis], shape)
            w = w.reshape([-1 if i == axis else 1 for i in range(ndim)])
            mean = (w + np.roll(w, 1, axis)) / (w / one + np.roll(w / one, 1, axis))
            inner = (slice(None), axis, *(slice(1, None) if i == axis else slice(None) for i in range(ndim)))
            assert_close(found[inner], slopes[inner] * mean[inner[2:]], rtol=1e-12)


def test_a_force_moves_a_pipe_of_two_fluids():
    """In a closed ring, incompressible fluids move together: their velocity is the mean momentum over the mean mass.

    Between cells of unequal densities, a face has the mean density, because 1/ρ has a harmonic mean.
    """
    shape = (24, 2)
    dec = dops.Decomposition(make_mesh((4, 2), "explicit"), shape=shape, box=dops.Box((3.0, 1.0)))
    density = np.where(np.arange(24) < 7, 1.0, 1000.0)[:, None] * np.ones(shape)
    before = np.stack([random_field((24, 1)) * np.ones(shape), np.zeros(shape)])
    inverse = dec.shard(1 / density)
    diffusion = finite_volume.Diffusion(dec, inverse)
    divergence, gradient = finite_volume.Divergence(dec), finite_volume.Gradient(dec, inverse)
    pressure = solve.CG(diffusion, solve.Multigrid(diffusion), rtol=1e-12)
    velocity = dec.shard(before)
    with jax.set_mesh(dec.mesh):
        after = velocity - gradient(pressure(-divergence(velocity)))
    faces = (density + np.roll(density, 1, 0)) / 2
    expected = np.sum(faces * before[0]) / np.sum(faces)
    assert_close(np.asarray(after)[0], np.full(shape, expected), rtol=1e-8)
    assert np.abs(np.asarray(after)[1]).max() < 1e-12


class Ball(eqx.Module):
    """The distance from a ball."""

    centre: tuple[float, ...]
    radius: float

    def __call__(self, *points):
        return jnp.sqrt(sum((p - c) ** 2 for p, c in zip(points, self.centre))) - self.radius


@pytest.mark.parametrize(
    ("grid", "side", "with_body"),
    thinned(
        itertools.product(["uneven pencils", "uneven slabs"], [0, 1], [False, True]),
        lambda *case: case in (("uneven pencils", 0, False), ("uneven slabs", 1, True)),
    ),
)
def test_open_sides(grid, side, with_body):
    """On a side where p is given, entry 0 is the slope to that side, and `Diffusion` is the product of both."""
    sizes, shape, kind = GRIDS[grid]
    ndim = len(shape)
    dec = dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=dops.Box(LENGTHS[:ndim]), pad=True)
    rng, n = np.random.default_rng(0), shape[0]
    relative = [rng.uniform(0.5, 1.5, n) for n in shape]
    pair = ("neumann", "dirichlet") if side else ("dirichlet", "neumann")
    # The body cuts the open side, too.
    body = finite_volume.Body(Ball((0.9 * side, 0.7, 0.9)[:ndim], 0.35)) if with_body else None
    options = {"boundary": (pair, "neumann", "periodic")[:ndim], "cells": list(map(jnp.asarray, relative))}
    options["body"] = body
    gradient, divergence = (of(dec, **options) for of in (finite_volume.Gradient, finite_volume.Divergence))
    x, y = (dec.shard(random_field(lead + shape, seed=len(lead))) for lead in ((), (ndim,)))
    diffusion = finite_volume.Diffusion(dec, **options)

    @jax.jit
    def everything(x, y):
        slopes = gradient(x)
        return slopes, divergence(y), gradient.T(y), divergence.T(x), divergence(slopes), diffusion(x)

    slopes, through, slopes_t, through_t, product, expected = everything(x, y)
    width = widths_of(shape, LENGTHS[:ndim], relative)[0][-side]
    here = dec.gather(x)[n - 1 if side else 0]
    slope = dec.gather(slopes)[0, 0]
    openings = 1.0 if body is None else dec.gather(gradient.openings)[0, 0]
    assert body is None or 0 < openings.mean() < 1
    assert_close(slope, np.where(openings > 0, (-1 if side else 1) * here / (width / 2), 0), rtol=1e-12)
    assert_transposed(lambda _: slopes, lambda _: slopes_t, np.asarray(x), np.asarray(y))
    assert_transposed(lambda _: through, lambda _: through_t, np.asarray(y), np.asarray(x))
    assert_close(through_t, -np.asarray(gradient.weights) * np.asarray(slopes), rtol=1e-12)
    assert_close(product, -np.asarray(expected), rtol=1e-12)


def test_projection_around_a_sphere():
    """A flow that enters at one wall, leaves through an open side and passes a sphere gets free of divergence."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(16, 12, 12), box=dops.Box((4.0, 3.0, 3.0)))
    body = finite_volume.Body(Ball((1.5, 1.5, 1.5), 0.7))
    options = {"boundary": (("neumann", "dirichlet"), "periodic", "neumann"), "body": body}
    gradient, divergence = (of(dec, **options) for of in (finite_volume.Gradient, finite_volume.Divergence))
    operator = finite_volume.Diffusion(dec, **options)
    inflow = operator.source((-2.0, 0.0), None, None)  # The outward velocity at the first wall is -2.
    velocity = dec.shard(random_field((3, *dec.shape)))

    @jax.jit
    def projected(operator, velocity):
        solver = solve.CG(operator, rtol=1e-11)
        return velocity - gradient(solver(-divergence(velocity) - inflow))

    found = projected(operator, velocity)
    total = divergence(found) + inflow
    assert np.abs(total).max() < 1e-8
    # What flows in flows out: the fluxes through planes are equal, also past the sphere.
    flux = np.sum(np.asarray(gradient.openings * found)[0], (1, 2)) / 144
    np.testing.assert_allclose(flux, 2.0, atol=1e-8)
    assert np.asarray(gradient.openings[0]).mean((1, 2)).min() < 0.9
    local = jax.shard_map(
        lambda divergence, block: divergence.local(block),
        mesh=dec.mesh,
        in_specs=(divergence.specs, P(None, *dec.spec())),
        out_specs=dec.spec(),
    )
    np.testing.assert_allclose(jax.jit(local)(divergence, found), divergence(found), atol=1e-12)
    with pytest.raises(ValueError, match=r"Pass the operator through the `shard_map`"):
        jax.shard_map(divergence.local, mesh=dec.mesh, in_specs=P(None, *dec.spec()), out_specs=dec.spec())(found)


def test_projection_in_blocks():
    """Inside a `shard_map`, the projection leaves no divergence."""
    mesh = make_mesh((2, 2))
    dec = dops.Decomposition(mesh, shape=(6, 5, 4), box=dops.Box(LENGTHS), pad=True)
    gradient, divergence = finite_volume.Gradient(dec), finite_volume.Divergence(dec)
    v = dec.shard(random_field((3, *dec.shape)))
    matrix = np.asarray(dec.gather(finite_volume.Diffusion(dec)(dec.shard(np.eye(120).reshape(120, 6, 5, 4)))))
    right = -dec.gather(divergence(v)).ravel()
    p = dec.shard(np.linalg.lstsq(matrix.reshape(120, 120).T, right)[0].reshape(dec.shape))
    scalar, vector = dec.spec(), P(None, *dec.spec())
    project = jax.shard_map(
        lambda v, p: divergence.local(v - gradient.local(p)), mesh=mesh, in_specs=(vector, scalar), out_specs=scalar
    )
    assert np.abs(np.asarray(jax.jit(project)(v, p))).max() < 1e-12 * np.abs(right).max()


def test_fluxes_in_blocks():
    """Inside a `shard_map`, the flux is that of the whole grid."""
    mesh = make_mesh((2, 2))
    dec = dops.Decomposition(mesh, shape=(6, 5, 4), box=dops.Box(LENGTHS), pad=True)
    flux = finite_volume.Gradient(dec, dec.shard(np.exp(random_field((3, *dec.shape)))))
    p = dec.shard(random_field(dec.shape, seed=1))
    local = jax.shard_map(
        lambda flux, p: flux.local(p), mesh=mesh, in_specs=(flux.specs, dec.spec()), out_specs=P(None, *dec.spec())
    )
    assert_close(jax.jit(local)(flux, p), np.asarray(flux(p)), rtol=1e-13)


def test_bad_coefficients(plain):
    dec = plain.Decomposition(make_mesh((2,)), shape=(4, 4))
    with pytest.raises(ValueError, match=r"`a` must be a number or an array of shape .*; got shape \(3, 4\)"):
        plain.finite_volume.Gradient(dec, np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"`a` must be a number or an array of shape .*; got shape \(2, 2, 4, 4\)"):
        plain.finite_volume.Gradient(dec, np.ones((2, 2, 4, 4)))
    with pytest.raises(ValueError, match="`a` must be real; got complex128"):
        plain.finite_volume.Gradient(dec, 1j * np.ones((4, 4)))


def test_bad_arguments(plain):
    dec = plain.Decomposition(make_mesh((2, 2)), shape=(6, 5, 4), pad=True)
    divergence = plain.finite_volume.Divergence(dec)
    with pytest.raises(ValueError, match="`x` must have one component for each of x, y, z"):
        divergence(np.ones(dec.shape))
    gradient, body = plain.finite_volume.Gradient, plain.finite_volume.Body
    for boundary in ("dirichlet", plain.finite_volume.Robin(1.0)):
        with pytest.raises(ValueError, match='`boundary` must be "periodic", "neumann", or a pair'):
            gradient(dec, boundary=boundary)
    with pytest.raises(ValueError, match='`body` must be "neumann" for vectors on faces'):
        gradient(dec, body=body(np.ones(dec.shape), "dirichlet"))
    with pytest.raises(TypeError, match=r"`body` must be a `finite_volume.Body`"):
        gradient(dec, body=np.ones(dec.shape))
    with pytest.raises(ValueError, match=r"`distance` must be a function of the coordinates, or a field of shape"):
        gradient(dec, body=body(np.ones((4, 4))))
