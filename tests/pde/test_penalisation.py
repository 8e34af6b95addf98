"""Tests of bodies in a flow, by volume penalisation."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, solve, spectral

from helpers import assert_close, make_mesh, random_field


LENGTHS = (2.0, 3.0, 1.5)


class Sphere(eqx.Module):
    """The signed distance from a sphere, or from a circle on two axes."""

    radius: jax.Array

    def __call__(self, *x):
        parts = [part - 0.4 * length for part, length in zip(x, LENGTHS)]
        return jnp.sqrt(sum(part**2 for part in parts)) - self.radius


def transform(shape, sizes=(1,), kind="auto") -> dops.FFT:
    box = dops.Box(LENGTHS[: len(shape)])
    return dops.FFT(make_mesh(sizes, kind), shape=shape, real=True, pad=True, box=box)


def coordinates(shape) -> list[np.ndarray]:
    along = [length * np.arange(n) / n for n, length in zip(shape, LENGTHS)]
    return np.meshgrid(*along, indexing="ij")


def expected_pull(shape, velocity: np.ndarray, radius: float, viscosity: float, target) -> np.ndarray:
    """Return `χ (u - v) / η` on the grid, by NumPy."""
    x = coordinates(shape)
    distance = np.sqrt(sum((part - 0.4 * length) ** 2 for part, length in zip(x, LENGTHS))) - radius
    thickness = 0.7 * max(length / n for n, length in zip(shape, LENGTHS))
    mask = (1 - np.tanh(2 * distance / thickness)) / 2
    time = (thickness / 2.6482282) ** 2 / viscosity
    return mask * (velocity - np.reshape(target, (-1, *[1] * len(shape)))) / time


@pytest.mark.parametrize(
    ("shape", "sizes", "kind"),
    [
        pytest.param((12, 10), (1,), "auto", marks=pytest.mark.sweep),
        ((12, 10), (4,), "explicit"),
        ((8, 9, 6), (2, 4), "auto"),
        pytest.param((8, 9, 6), (8,), "auto", marks=pytest.mark.sweep),
    ],
)
@pytest.mark.promotes_ranks
def test_term_force_and_torque_are_those_of_numpy(shape, sizes, kind):
    ndim, fft = len(shape), transform(shape, sizes, kind)
    target = (0.5, -0.2, 0.1)[:ndim]
    term = pde.Penalisation(fft, Sphere(jnp.asarray(0.5)), viscosity=0.1, value=target, dealiasing=None)
    velocity = random_field((2, ndim, *shape))
    u = term.transform(fft.decomposition.shard(velocity))
    pull = expected_pull(shape, velocity, 0.5, 0.1, target)
    about = (0.3, 0.7, 0.2)[:ndim]

    @jax.jit
    def run(u):
        return term.transform.inverse(term(0.0, u)), term.force(u), term.torque(u, about)

    found, of_body, turning = run(u)
    assert_close(fft.decomposition.gather(found), -pull, 1e-12)
    cell = np.prod([length / n for n, length in zip(shape, LENGTHS)])
    grid = tuple(range(-ndim, 0))
    assert_close(of_body, pull.sum(grid) * cell, 1e-12)
    arms = np.stack([x - origin for x, origin in zip(coordinates(shape), about)])
    torque = np.cross(np.broadcast_to(arms, pull.shape), pull, axis=1) if ndim == 3 else None
    if ndim == 2:
        torque = arms[0] * pull[:, 1] - arms[1] * pull[:, 0]
    assert_close(turning, torque.sum(grid) * cell, 1e-12)


@pytest.mark.parametrize(("sizes", "kind"), [((1,), "auto"), ((2, 4), "explicit")])
@pytest.mark.promotes_ranks
def test_a_body_that_moves(sizes, kind):
    """A force that builds the term at the traced time t moves the body: the rate of change is that of NumPy."""
    shape, radius, viscosity = (9, 11, 7), 0.5, 0.1
    fft = transform(shape, sizes, kind)

    def moving(t, u, args):
        sphere = lambda x, y, z: Sphere(jnp.asarray(radius))(x - t, y + 2 * t, z)
        term = pde.Penalisation(fft, sphere, viscosity=viscosity, value=(1.0, -2.0, 0.0), dealiasing=None)
        return term(t, u, args)

    equation = pde.NavierStokes(fft, viscosity, forcing=moving, dealiasing=None)
    rest = equation.state(fft.decomposition.shard(np.zeros((3, *shape))))
    rate = jax.jit(lambda t: equation.fields(equation.nonlinear(t, rest, None)))
    for t in (0.0, 0.17):
        x, y, z = coordinates(shape)
        centre = [0.4 * length for length in LENGTHS]
        distance = np.sqrt((x - t - centre[0]) ** 2 + (y + 2 * t - centre[1]) ** 2 + (z - centre[2]) ** 2) - radius
        thickness = 0.7 * max(length / n for n, length in zip(shape, LENGTHS))
        mask = (1 - np.tanh(2 * distance / thickness)) / 2
        force = np.stack([mask, -2 * mask, 0 * mask]) / ((thickness / 2.6482282) ** 2 / viscosity)
        k = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, s / n) for n, s in zip(shape, LENGTHS)), indexing="ij")
        hat = np.fft.fftn(force, axes=(1, 2, 3))
        square = sum(part**2 for part in k)
        slope = sum(part * h for part, h in zip(k, hat)) / np.where(square == 0, 1, square)
        expected = np.fft.ifftn(hat - np.stack([part * slope for part in k]), axes=(1, 2, 3)).real
        assert_close(fft.decomposition.gather(rate(jnp.asarray(t))), expected, 1e-12)


@pytest.mark.promotes_ranks
def test_masks_functions_and_scalars():
    """A mask may be a field, a value a function, and the state a scalar."""
    shape, fft = (12, 10), transform((12, 10), (2,))
    mask = np.random.default_rng(0).uniform(size=shape)
    spin = lambda x, y: (-0.3 * y, 0.3 * x)
    term = pde.Penalisation(fft, fft.decomposition.shard(mask), time=0.2, value=spin, dealiasing=None)
    velocity = random_field((2, *shape))
    x, y = coordinates(shape)
    wanted = -mask * (velocity - np.stack([-0.3 * y, 0.3 * x])) / 0.2
    pull = jax.jit(lambda u: term.transform.inverse(term(0.0, term.transform(u))))
    assert_close(fft.decomposition.gather(pull(fft.decomposition.shard(velocity))), wanted, 1e-12)
    warm = pde.Penalisation(fft, mask, time=0.2, value=(1.5,), components="scalar", dealiasing=None)
    theta = random_field(shape)

    @jax.jit
    def heat(theta):
        u = warm.transform(theta)
        return warm.transform.inverse(warm(0.0, u)), warm.force(u)

    heating, given = heat(fft.decomposition.shard(theta))
    assert_close(fft.decomposition.gather(heating), -mask * (theta - 1.5) / 0.2, 1e-12)
    assert_close(given, (mask * (theta - 1.5) / 0.2).mean() * 6.0, 1e-12)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_functions_need_not_vary_along_all_axes(kind):
    """The distance and the parts of a value may each depend on some of the coordinates only, or on none."""
    fft = transform((12, 9), (4,), kind)
    u, ones = pde.state_transform(fft)(fft.decomposition.shard(random_field((2, 12, 9)))), np.ones((12, 9))
    for body, value in (
        (lambda x, y: y - 1, lambda x, y: (jnp.sin(x), 2)),
        (lambda x, y: x - 1, lambda x, y: (x, y)),
        (lambda x, y: -1.0, (1.0, 0.5)),
    ):
        spread = lambda x, y, body=body: body(x, y) * ones
        parts = lambda x, y, v=value: tuple(part * ones for part in (v(x, y) if callable(v) else v))
        one, other = (
            pde.Penalisation(fft, distance, time=0.3, value=given)
            for distance, given in ((body, value), (spread, parts))
        )
        assert one.mask().shape == (12, 9)
        assert_close(one.force(u), other.force(u))
        assert_close(jax.jit(one)(0.0, u), jax.jit(other)(0.0, u))


def test_derivatives_by_shape_viscosity_and_velocity():
    """The derivatives of the drag equal finite differences, on eight devices."""
    shape, fft = (12, 10, 8), transform((12, 10, 8), (2, 4))
    velocity = fft.decomposition.shard(random_field((3, *shape)))

    def drag(radius, viscosity, speed):
        term = pde.Penalisation(fft, Sphere(radius), viscosity=viscosity, value=(speed, 0.0, 0.0))
        u = term.transform(velocity)
        return jnp.sum((term(0.0, u) * jnp.conj(u)).real) / 1e4 + term.force(u)[0]

    at = (jnp.asarray(0.5), jnp.asarray(0.1), jnp.asarray(0.3))
    both = jax.jit(jax.value_and_grad(drag, (0, 1, 2)))
    _, found = both(*at)
    for i, derivative in enumerate(found):
        above, below = (both(*(x + (i == j) * h for j, x in enumerate(at)))[0] for h in (1e-5, -1e-5))
        assert_close(derivative, (above - below) / 2e-5, 1e-7)


@pytest.mark.parametrize("half", [0.24, pytest.param(0.2637, marks=pytest.mark.sweep)])
def test_flow_between_penalised_walls(half):
    """A layer that is a wall makes the flow that a force drives a parabola, and the force on the wall is the drive.

    With the thickness that follows from the viscosity, halving the spacing reduces the error four times, wherever the
    wall is between two points.
    """
    errors = []
    for n in (20, 40):
        fft = dops.FFT2D(make_mesh((2,)), shape=(4, n), real=True, box=dops.Box((4 / n, 1.0)))
        wall = pde.Penalisation(fft, lambda x, y: half - abs(y - 0.5), viscosity=1.0, width=1.5)

        @jax.jit
        def run(push, fft=fft, wall=wall, time=(1.5 / n / 2.65) ** 2):
            push = wall.transform(push)
            equation = pde.NavierStokes(fft, 1.0, forcing=(wall, lambda t, u, args: push))
            u, _ = pde.ETDRK(equation, time, order=2).rollout(jnp.zeros_like(push), round(0.25 / time))
            return wall.force(u), wall.transform.inverse(u)

        force, flow = run(fft.decomposition.shard(np.stack([np.ones((4, n)), np.zeros((4, n))])))
        assert_close(force, np.array([4 / n, 0.0]), 1e-2)
        y = np.arange(n) / n - 0.5
        flow = fft.decomposition.gather(flow)[0, 0]
        errors.append(abs(flow - (half**2 - y**2) / 2)[abs(y) < 0.2].max() / (half**2 / 2))
    assert errors[0] < 0.1
    assert errors[1] < errors[0] / 3.5


class Stokes(dops.AbstractOperator):
    """Slow flow through a periodic array of bodies, on divergence-free fields: `-∇²u + P (χ u / η)`."""

    fft: dops.FFT
    body: pde.Penalisation

    def __call__(self, u, *, key=None):
        transform = self.body.transform
        drag = transform.inverse(self.body(0.0, transform(u)))
        return -spectral.Laplacian(self.fft)(u) - spectral.LerayProjection(self.fft)(drag)

    decomposition = property(lambda self: self.fft.decomposition)
    in_structure = property(lambda self: self.fft.in_structure)
    result_structure = lambda self, given: given
    local = T = H = None


@pytest.mark.parametrize(("n", "error"), [pytest.param(16, 0.03, marks=pytest.mark.sweep), (24, 0.01)])
def test_drag_on_an_array_of_spheres(n, error):
    """Spheres that fill an eighth of the volume have 4.292 times the drag of one sphere in the same mean flow.

    Source: Zick & Homsy, J. Fluid Mech. 115 (1982), table 2, for a simple cubic array.
    """
    radius = (3 / (4 * np.pi * 8)) ** (1 / 3)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(n,) * 3, real=True, box=dops.Box(1.0))
    sphere = lambda x, y, z: jnp.sqrt((x - 0.5) ** 2 + (y - 0.5) ** 2 + (z - 0.5) ** 2) - radius
    body = pde.Penalisation(fft, sphere, viscosity=1.0)
    push = fft.decomposition.shard(np.stack([np.ones((n,) * 3), *np.zeros((2, n, n, n))]))

    @jax.jit
    def flow(push):
        solver = solve.CG(Stokes(fft, body), spectral.Helmholtz(fft, 100.0), rtol=1e-5, component_axes=1)
        u = solver(push)
        return body.force(body.transform(u)), fft.decomposition.mean(u)[0]

    force, speed = flow(push)
    assert_close(force, np.array([1.0, 0.0, 0.0]), 1e-3)
    assert 1 / (6 * np.pi * radius * speed) == pytest.approx(4.292, rel=error)


def test_errors(plain):
    pde = plain.pde
    fft = plain.FFT2D(make_mesh((1,)), shape=(8, 8), real=True)
    disc = lambda x, y: jnp.hypot(x - 3, y - 3) - 1
    with pytest.raises(ValueError, match="`viscosity` or `time` must be given, and not both; got None and None"):
        pde.Penalisation(fft, disc)
    with pytest.raises(ValueError, match="`time` must be a positive, finite number; got 0"):
        pde.Penalisation(fft, disc, time=0.0)
    with pytest.raises(ValueError, match=r"`value` must be a tuple of 2 numbers, or a function; got \(1.0,\)"):
        pde.Penalisation(fft, disc, time=0.1, value=(1.0,))
    with pytest.raises(ValueError, match="`components` must be one of"):
        pde.Penalisation(fft, disc, time=0.1, components="axial")
    with pytest.raises(ValueError, match=r"`body` must have shape \(\*batch, 12, 12\)"):
        pde.Penalisation(fft, np.zeros((8, 8)), time=0.1, dealiasing=plain.spectral.Pad(3 / 2))
    with pytest.raises(TypeError, match="`body` must be real, a mask between zero and one; got complex128"):
        pde.Penalisation(fft, 1j * np.ones((8, 8)), time=0.1, dealiasing=None)
    for wrong in (None, "disc", plain.finite_volume.Body(disc)):
        with pytest.raises(TypeError, match="`body` must be a function of the coordinates, or a mask; got"):
            pde.Penalisation(fft, wrong, time=0.1)
    for wrong in (
        lambda x, y: None,
        lambda x, y: (x, y),
        lambda x, y: x[:3],
        lambda x, y: x.astype(complex),
        lambda x, y: x < y,
    ):
        with pytest.raises(ValueError, match="`body` must return the signed distance from the boundary, negative ins"):
            pde.Penalisation(fft, wrong, time=0.1).mask()
    body = pde.Penalisation(fft, disc, time=0.1)
    u = body.transform(np.zeros((2, 8, 8)))
    with pytest.raises(ValueError, match=r"`about` must be a tuple of 2 numbers; got \(1.0, 2.0, 3.0\)"):
        body.torque(u, (1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="`Penalisation` and the state u must have the same transform"):
        body.force(u[0])
    for value in (lambda x, y: (x,), lambda x, y: (x, x, x), lambda x, y: 1.0):
        with pytest.raises(ValueError, match="`value` must return a tuple of 2 numbers or arrays; got "):
            pde.Penalisation(fft, disc, time=0.1, value=value).force(u)
    with pytest.raises(ValueError, match="`forcing` must have the `fft` and the `dealiasing` of its equation"):
        pde.NavierStokes(fft, 0.1, forcing=body, dealiasing=None)
