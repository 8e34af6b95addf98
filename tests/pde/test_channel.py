"""Tests of channels at a constant flow rate and of moving walls, against exact solutions of flows along the walls."""

import dataclasses

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from decompops import pde

from helpers import assert_close, make_mesh, random_field


VISCOSITY, HALF, BULK = 0.1, 1.0, 2 / 3
BASES = dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True)


def transform(shape, sizes, kind="auto") -> dops.Transform:
    bases, lengths = (BASES, (2.0, 4.0, 3.0)) if len(shape) == 3 else (BASES[::2], (2.0, 3.0))
    axes = None if len(shape) == 3 else "x"
    return dops.Transform(make_mesh(sizes, kind), bases=bases, shape=shape, axes=axes, pad=True, box=dops.Box(lengths))


def heights(n: int, ndim: int) -> np.ndarray:
    """Return the distance from the middle of the channel, from -1 to 1."""
    return 2 * dops.Chebyshev().points(n).reshape(-1, *[1] * (ndim - 1)) - 1


def along_y(profile: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    velocity = np.zeros((len(shape), *shape))
    velocity[1] = profile
    return velocity


def on_grid(equation, u) -> np.ndarray:
    return equation.transform.decomposition.gather(equation.fields(u))


def exact(y: np.ndarray, t: float) -> tuple[np.ndarray, float]:
    """Return a profile with a constant flow rate, and its driving force.

    To Poiseuille flow, a mode `cos(a y) - cos(a)` is added, whose mean is zero as tan(a) = a, and a mode `sin(π y)`.
    They decay at the rates `ν a²` and `ν π²`.
    """
    a = scipy.optimize.brentq(lambda a: np.tan(a) - a, 4.4, 4.6)
    even, odd = (np.exp(-VISCOSITY * rate**2 * t) for rate in (a, np.pi))
    profile = 1.5 * BULK * (1 - y**2) + 0.4 * even * (np.cos(a * y) - np.cos(a)) + 0.3 * odd * np.sin(np.pi * y)
    return profile, 3 * VISCOSITY * BULK / HALF**2 + 0.4 * even * VISCOSITY * a**2 * np.cos(a)


def test_an_unsteady_profile_with_a_constant_flow_rate():
    shape = (25, 6)
    fft, y = transform(shape, (4,), "explicit"), heights(25, 2)
    equation = pde.Channel(fft, VISCOSITY, bulk_velocity=BULK)
    seen = lambda t, u: (equation.volume_means(u)[1], equation.driving_force(t, u))

    @jax.jit
    def run(fields):
        u, found = pde.IMEXRK(equation, 0.02).rollout(equation.state(fields), 50, every=1, observe=seen)
        return equation.fields(u), found

    with jax.set_mesh(fft.decomposition.mesh):
        last, (bulk, force) = run(fft.decomposition.shard(along_y(exact(y, 0.0)[0], shape)))
        profile, expected = exact(y, 1.0)
        assert_close(fft.decomposition.gather(last), along_y(profile, shape), 1e-6)
    assert abs(np.asarray(bulk) - BULK).max() < 1e-13
    assert float(force[-1]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.sweep
def test_every_flow_becomes_poiseuille_flow_at_a_constant_flow_rate():
    shape = (17, 4, 6)
    fft, y = transform(shape, (2, 2)), heights(17, 3)
    equation = pde.Channel(fft, VISCOSITY, bulk_velocity=BULK)
    seen = lambda t, u: (equation.volume_means(u)[1], equation.driving_force(t, u), equation.wall_stress(u))
    noise = 0.3 * random_field((3, *shape)) * (1 - y**2) ** 2
    start = along_y(exact(y, 0.0)[0], shape) + noise
    u = equation.state(fft.decomposition.shard(start))
    u, (bulk, force, stress) = pde.SBDF(equation, 0.15, 3).rollout(u, 400, every=2, observe=seen)
    assert abs(np.asarray(bulk) - BULK).max() < 1e-12
    assert_close(on_grid(equation, u), along_y(1.5 * BULK * (1 - y**2), shape), 1e-6)
    assert float(force[-1]) == pytest.approx(3 * VISCOSITY * BULK / HALF**2, rel=1e-9)
    assert_close(stress[-1], np.full(2, 3 * VISCOSITY * BULK / HALF), 1e-9)


def test_the_flow_rate_of_batches_with_a_force_and_in_single_precision():
    """The driving force balances the mean of the other forces. With constant forces, the flow is the same."""
    fft = transform((17, 4, 6), (2, 2))
    y = heights(17, 3)
    push = pde.state_transform(fft)(along_y(np.full((17, 4, 6), 0.05), (17, 4, 6)))
    force = lambda t, u, args: jnp.broadcast_to(args * push.astype(u.dtype), u.shape)
    equation = pde.Channel(fft, VISCOSITY, bulk_velocity=BULK, forcing=force)
    start = np.stack([along_y(np.broadcast_to(f, (17, 4, 6)), (17, 4, 6)) for f in (exact(y, 0.0)[0], 0 * y)])
    args = jnp.ones((), np.complex64)

    @jax.jit
    def run(start, args):
        u, _ = pde.IMEXRK(equation, 0.3).rollout(equation.state(start), 60, args=args)
        return equation.fields(u), equation.volume_means(u), equation.driving_force(0.0, u, args)

    last, means, force = run(fft.decomposition.shard(start.astype(np.float32)), args)
    last = fft.decomposition.gather(last)
    assert last.dtype == np.float32
    assert_close(np.asarray(means)[:, 1], np.full(2, BULK), 1e-6)
    assert_close(force, np.full(2, 0.2 - 0.05), 1e-4)
    for flow in last:
        assert_close(flow, along_y(1.5 * BULK * (1 - y**2), (17, 4, 6)), 1e-5)


def start_up(s: np.ndarray, t: float, terms: int = 60) -> np.ndarray:
    """Return Couette flow at the time t after the wall at s = 2 has begun to move at the velocity one."""
    n = np.arange(1, terms)
    decay = 2 * (-1.0) ** n / (n * np.pi) * np.exp(-VISCOSITY * (n * np.pi / 2) ** 2 * t)
    return s / 2 + np.sum(decay * np.sin(n * np.pi * s[..., None] / 2), -1)


def test_couette_flow_starts():
    """A wall moves along y, and the other wall along z."""
    shape = (33, 4, 6)
    fft, y = transform(shape, (2, 2), "explicit"), heights(33, 3)
    equation = pde.Channel(fft, VISCOSITY, wall_velocity=((0.0, 0.5), (1.0, 0.0)))
    expected = along_y(start_up(y + 1, 2.0), shape)
    steady = along_y((y + 1) / 2, shape)
    expected[2], steady[2] = 0.5 * start_up(1 - y, 2.0), (1 - y) / 4
    with jax.set_mesh(fft.decomposition.mesh):
        rest = jax.jit(equation.state)(fft.decomposition.shard(np.zeros((3, *shape))))

        @jax.jit
        def run(u, dt):
            u, _ = pde.SBDF(equation, dt, 3).rollout(u, 200)
            return u, equation.fields(u), equation.wall_stress(u), equation.driving_force(0.0, u)

        u, fields, *_ = run(rest, 0.01)
        assert_close(fft.decomposition.gather(fields), expected, 1e-4)
        _, fields, stress, force = run(u, 0.5)
        assert_close(fft.decomposition.gather(fields), steady, 1e-10)
        assert_close(stress, VISCOSITY / 2 * np.array([1, -1]), 1e-10)
        assert float(force) == 0


def test_couette_poiseuille_flow():
    """With a flow rate and moving walls, the profile is the sum of both. Moving walls also shear a layer of heat."""
    shape, y = (16, 6), heights(16, 2)
    fft = transform(shape, (2,))
    equation = pde.Channel(fft, VISCOSITY, bulk_velocity=BULK, wall_velocity=jnp.array([-1.0, 2.0]))
    mean = 0.5 + 1.5 * y
    expected = along_y(mean + 1.5 * (BULK - 0.5) * (1 - y**2), shape)

    @jax.jit
    def run(fields):
        u, _ = pde.IMEXRK(equation, 0.5).rollout(equation.state(fields), 120)
        return equation.fields(u), equation.driving_force(0.0, u)

    fields, force = run(fft.decomposition.shard(along_y(np.broadcast_to(mean, shape), shape)))
    assert_close(fft.decomposition.gather(fields), expected, 1e-9)
    assert float(force) == pytest.approx(3 * VISCOSITY * (BULK - 0.5))
    layer = pde.RayleighBenard(fft.replace(box=dops.Box((1.0, 3.0))), 10.0, 1.0, wall_velocity=(-1.0, 2.0))
    later = jax.jit(lambda fields: layer.fields(pde.IMEXRK(layer, 0.5).rollout(layer.state(fields), 60)[0]))
    last = fft.decomposition.gather(later(fft.decomposition.shard(np.zeros((3, *shape)))))
    assert_close(last, np.stack([0 * mean, mean, (1 - y) / 2]) + np.zeros((3, *shape)), 1e-9)


def test_derivatives_by_the_flow_rate_and_the_velocities_of_the_walls():
    fft = transform((9, 6), (2,))
    fields = fft.decomposition.shard(random_field((2, 9, 6)))

    @jax.value_and_grad
    def loss(options):
        equation = pde.Channel(fft, VISCOSITY, **options)
        u = equation.state(fields)
        u = equation.resolvent(u + 0.1 * equation.nonlinear(0.0, u), 0.1)
        force = equation.driving_force(0.0, u)
        return jnp.sum(equation.fields(u) ** 2) + force**2

    point = {"bulk_velocity": jnp.asarray(0.5), "wall_velocity": jnp.array([0.3, -0.2])}
    direction = {"bulk_velocity": jnp.asarray(0.7), "wall_velocity": jnp.array([-1.0, 0.4])}
    both = jax.jit(lambda point: jax.jvp(loss, (point,), (direction,)))
    moved = lambda by: both(jax.tree.map(lambda x, d: np.asarray(x + by * d), point, direction))[0]
    (_, slope), (_, second) = both(point)
    along = lambda gradient: sum(jax.tree.leaves(jax.tree.map(np.vdot, gradient, direction)))
    assert_close(along(slope), (moved(1e-5)[0] - moved(-1e-5)[0]) / 2e-5, 1e-7)
    expected = along(jax.tree.map(np.subtract, moved(1e-4)[1], moved(-1e-4)[1])) / 2e-4
    assert_close(along(second), expected, 1e-6)


@pytest.mark.parametrize("unit", [3e-17, 1e18])
@pytest.mark.parametrize("shape", [(17, 16), pytest.param((12, 6, 8), marks=pytest.mark.sweep)])
def test_no_unit_of_length_makes_squares_underflow(unit, shape):
    """In single precision, a channel of any size has the flow of a channel of the size two."""
    ndim = len(shape)
    start = 0.1 * random_field((ndim, *shape)) * (1 - heights(shape[0], ndim) ** 2) ** 2

    def later(unit, dtype):
        fft = transform(shape, (1,) * (ndim - 1))
        fft = fft.replace(box=dops.Box(tuple(unit * length for length in fft.box_lengths)))
        equation = pde.Channel(fft, 0.05 * unit, 0.1 / unit)
        u = equation.state(start.astype(dtype))
        return np.asarray(on_grid(equation, pde.SBDF(equation, 0.05 * unit).rollout(u, 3)[0]), float)

    assert_close(later(unit, np.float32), later(1.0, np.float64), 1e-5)


def test_a_run_that_continues(tmp_path):
    fft = transform((12, 6), (2,))
    equation = pde.Channel(fft, VISCOSITY, bulk_velocity=BULK, wall_velocity=(0.0, 1.0))
    solver, y = pde.IMEXRK(equation, 0.05), heights(12, 2)
    u = equation.state(along_y(np.broadcast_to((1 + y) / 2, (12, 6)), (12, 6)))
    observe = lambda t, u: equation.driving_force(t, u)
    run = lambda t_end, folder=None: pde.simulate(
        solver, u, t_end, interval=0.5, observe=observe, checkpoint=folder, progress=False
    )
    run(0.5, tmp_path)
    continued, whole = run(1.0, tmp_path), run(1.0)
    assert_close(continued.u, whole.u, 0)
    np.testing.assert_array_equal(continued.observed, whole.observed)


def test_velocities_at_walls_are_never_lost():
    """A velocity at a wall must be zero, or that of the wall; on the host and on devices."""
    shape = (9, 6)
    fft = transform(shape, (2,))
    couette = along_y(np.broadcast_to(heights(9, 2), shape), shape)
    leak = np.zeros((2, *shape))
    leak[0] = 1e-3
    layer = fft.replace(box=dops.Box((1.0, 3.0)))
    moving = pde.Channel(fft, VISCOSITY, wall_velocity=(-1.0, 1.0))
    warm = np.zeros((3, *shape))
    warm[1] = 1.0
    shard = fft.decomposition.shard
    for place in (np.asarray, shard):
        moving.state(place(couette))
        moving.state(place(0 * couette))
        for equation, fields in (
            (pde.Channel(fft, VISCOSITY), couette),
            (pde.Channel(fft, VISCOSITY, wall_velocity=(1.0, -1.0)), couette),
            (moving, couette + leak),
            (pde.RayleighBenard(layer, 10.0, 1.0), warm),
        ):
            with pytest.raises(ValueError, match=r"`fields` must have a velocity at each wall that is zero or"):
                equation.state(place(fields))


def test_a_force_that_does_not_vanish_at_the_walls():
    """The error of `state` says how to make its spectrum. The flow is that of Womersley, J. Physiol. 127, 1955."""
    shape, rate = (25, 4), 3.0
    fft, y = transform(shape, (2,)), heights(25, 2)
    equation = pde.Channel(fft, VISCOSITY)
    push = along_y(np.ones(shape), shape)
    with pytest.raises(ValueError, match=r"For the spectrum of a force, call `equation.transform\(fields\)`"):
        equation.state(push)
    push = equation.transform(push)
    equation = dataclasses.replace(equation, forcing=lambda t, u, args: jnp.cos(rate * t).astype(push.dtype) * push)

    def flow(t: float) -> np.ndarray:
        q = np.sqrt(1j * rate / VISCOSITY)
        return along_y(((1 - np.cosh(q * y) / np.cosh(q * HALF)) / (1j * rate) * np.exp(1j * rate * t)).real, shape)

    u, _ = pde.SBDF(equation, 0.01, order=3).rollout(equation.state(flow(0.0)), 100)
    assert_close(on_grid(equation, u), flow(1.0), 5e-4)


def test_bad_options_are_refused(plain):
    walls, along = plain.Chebyshev(), plain.Fourier(half=True)
    fft = plain.Transform(make_mesh((1,)), bases=(walls, along), shape=(8, 8), axes="x", box=plain.Box((2.0, 1.0)))
    for options, message in (
        ({"drive": 0.0, "bulk_velocity": 1.0}, "`drive` and `bulk_velocity` must not both be given.*got 0.0 and 1.0"),
        ({"bulk_velocity": np.nan}, "`bulk_velocity` must be finite; got nan"),
        ({"bulk_velocity": (1.0, 2.0)}, "`bulk_velocity` must be one real number"),
        ({"wall_velocity": 1.0}, "`wall_velocity` must be two numbers.*got 1.0"),
        ({"wall_velocity": (1.0, (0.0,))}, "`wall_velocity` must be two numbers"),
        ({"wall_velocity": ((1.0, 0.0), (0.0, 1.0))}, "two tuples of 1 numbers"),
        ({"wall_velocity": (np.inf, 0.0)}, "`wall_velocity` must be finite; got"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            plain.pde.Channel(fft, 0.1, **options)


def test_diagnostics_refuse_other_arrays_than_their_own(plain):
    """Fields, states of another flow, and fields on another grid have other shapes, which must not give a number."""
    n, along = 9, 6
    bases, box = (plain.Chebyshev(), plain.Fourier(half=True)), plain.Box((1.0, 2.0))
    fft = plain.Transform(make_mesh((1,)), bases=bases, shape=(n, along), axes="x", box=box)
    channel, convection = plain.pde.Channel(fft, 0.1), plain.pde.RayleighBenard(fft, 1e4, 1.0)
    fields = jnp.zeros((3, n, along))
    u = convection.state(fields)
    for name in ("wall_stress", "wall_slopes", "volume_means", "gradient_squares", "divergence"):
        for bad in (fields[:2], u):
            with pytest.raises((ValueError, TypeError), match="`u` must be a spectrum"):
                getattr(channel, name)(bad)
    for bad in (fields, u[:2]):
        with pytest.raises((ValueError, TypeError), match="`u` must be a spectrum"):
            convection.nusselt(bad)
    for shape in ((n, along - 1), (n + 4, along + 3)):
        with pytest.raises(ValueError, match=r"`fields` must have shape \(\*batch, 9, 6\)"):
            channel.plane_mean(jnp.ones(shape))
