"""Tests of walls whose velocity or temperature is a function of time, against exact solutions."""

import cmath

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde

from helpers import assert_close, make_mesh


VISCOSITY, RATE, WIDTH = 0.1, 3.0, 2.0
OSCILLATING = lambda t: (jnp.cos(RATE * t), 0.0)


def transform(shape, sizes, kind="auto", width=WIDTH) -> dops.Transform:
    bases = dops.Chebyshev(), *[dops.Fourier()] * (len(shape) - 2), dops.Fourier(half=True)
    box = dops.Box((width, 4.0, 3.0)[: len(shape)])
    axes = None if len(shape) == 3 else "x"
    return dops.Transform(make_mesh(sizes, kind), bases=bases, shape=shape, axes=axes, pad=True, box=box)


def between(x: np.ndarray, t: float, width: float, diffusivity: float) -> np.ndarray:
    """Return the periodic solution of `∂u/∂t = ν ∂²u/∂x²` with `u = cos(ωt)` at x = 0, and zero at x = width."""
    q = cmath.sqrt(1j * RATE / diffusivity)
    return (np.exp(1j * RATE * t) * np.sinh(q * (width - x)) / np.sinh(q * width)).real


def start(equation, profile: np.ndarray, component: int = 1):
    fft = equation.fft
    fields = np.zeros((*equation.in_structure.components, *fft.decomposition.shape))
    fields[component] = profile.reshape(-1, *[1] * (fields.ndim - 2))
    return equation.state(fft.decomposition.shard(fields))


def profile_of(equation, u, component: int = 1) -> np.ndarray:
    return mean_profile(equation.transform.decomposition.gather(equation.fields(u))[component])


def mean_profile(field: np.ndarray) -> np.ndarray:
    means = field.mean(tuple(range(1, field.ndim)), keepdims=True)
    assert_close(field, np.broadcast_to(means, field.shape), 1e-12)
    return means.ravel()


@pytest.mark.parametrize(
    ("method", "options", "order"),
    [
        pytest.param(pde.SBDF, {"order": 2}, 2, marks=pytest.mark.sweep),
        (pde.SBDF, {"order": 3}, 3),
        (pde.IMEXRK, {}, 2),
    ],
)
def test_flow_beside_an_oscillating_wall_has_the_order_of_the_method(method, options, order):
    """A Runge–Kutta method has a lower order beside walls that move, because the values of its stages do."""
    fft = transform((24, 4), (2,))
    equation = pde.Channel(fft, VISCOSITY, wall_velocity=OSCILLATING)
    x = WIDTH * dops.Chebyshev().points(24)
    u = start(equation, between(x, 0.0, WIDTH, VISCOSITY))
    errors = []

    @jax.jit
    def run(u, dt):
        """Return the fields after 40 and 80 steps."""
        observe = lambda t, u: equation.fields(u)
        return method(equation, dt, **options).rollout(u, 80, every=40, observe=observe)[1]

    for steps in (40, 80):
        last = fft.decomposition.gather(run(u, 1.0 / steps)[steps // 40 - 1])[1]
        errors.append(abs(mean_profile(last) - between(x, 1.0, WIDTH, VISCOSITY)).max())
    assert errors[1] < 3e-4
    assert np.log2(errors[0] / errors[1]) > order - 0.3


@pytest.mark.parametrize(
    ("sizes", "kind"), [pytest.param((1, 1), "auto", marks=pytest.mark.sweep), ((2, 4), "explicit")]
)
def test_the_second_problem_of_stokes(sizes, kind):
    """Far from the other wall, the flow is `exp(-x/δ) cos(ωt - x/δ)`, with `δ = √(2ν/ω)`. Two walls move in y and z."""
    depth = np.sqrt(2 * VISCOSITY / RATE)
    width = 16 * depth
    fft = transform((40, 4, 6), sizes, kind, width=width)
    walls = lambda t: jnp.stack([jnp.stack([jnp.cos(RATE * t), 0 * t]), jnp.stack([0 * t, jnp.cos(RATE * t)])])
    equation = pde.Channel(fft, VISCOSITY, wall_velocity=walls)
    x = width * dops.Chebyshev().points(40)
    flow = lambda t: np.exp(-x / depth) * np.cos(RATE * t - x / depth)
    fields = np.zeros((3, 40, 4, 6))
    first = np.where(x == x.max(), 0, flow(0.0))  # The fluid at the other wall rests.
    fields[1], fields[2] = first[:, None, None], first[::-1, None, None]
    with jax.set_mesh(fft.decomposition.mesh):

        @jax.jit
        def run(fields):
            u, _ = pde.SBDF(equation, 0.01, 3).rollout(equation.state(fields), 100)
            return equation.fields(u), equation.wall_stress(u)

        last, found = run(fft.decomposition.shard(fields))
        last = fft.decomposition.gather(last)
        assert_close(mean_profile(last[1]), flow(1.0), 1e-5)
        assert_close(mean_profile(last[2]), flow(1.0)[::-1], 1e-5)
        stress = VISCOSITY * np.sqrt(2) / depth * -np.cos(RATE + np.pi / 4)
        assert_close(np.asarray(found)[0], stress, 1e-3)


def test_an_oscillating_temperature():
    fft = transform((24, 4), (2,), "explicit", width=1.0)
    equation = pde.RayleighBenard(fft, 1.0, 1.0, bottom=lambda t: jnp.cos(RATE * t) + jnp.zeros(4))
    x = dops.Chebyshev().points(24)
    with jax.set_mesh(fft.decomposition.mesh):
        fields = np.zeros((3, 24, 4))
        fields[2] = between(x, 0.0, 1.0, 1.0)[:, None]

        @jax.jit
        def run(fields):
            u, _ = pde.SBDF(equation, 0.01, 3).rollout(equation.state(fields), 100)
            return u, equation.fields(u), equation.at(jnp.asarray(1.0)).nusselt(u)

        u, last, nusselt = run(fft.decomposition.shard(fields))
        assert_close(mean_profile(fft.decomposition.gather(last)[2]), between(x, 1.0, 1.0, 1.0), 1e-5)
        q = cmath.sqrt(1j * RATE)
        flux = (np.exp(1j * RATE) * q * np.cosh(q) / np.sinh(q)).real / np.cos(RATE)
        assert float(nusselt) == pytest.approx(flux, rel=1e-4)
        with pytest.raises(ValueError, match=r"`bottom` must be constant here.*`equation.at\(t\)`"):
            equation.nusselt(u)


class Wall(eqx.Module):
    """A wall that oscillates with an amplitude."""

    amplitude: jax.Array

    def __call__(self, t):
        return self.amplitude * jnp.cos(RATE * t), 0.0 * t


def test_derivatives_by_the_amplitude_of_a_wall():
    """The flow is linear in the amplitude, so its derivative is the flow for the amplitude one, from rest."""
    fft = transform((12, 4), (2,))

    def flow(amplitude):
        equation = pde.Channel(fft, VISCOSITY, wall_velocity=Wall(amplitude))
        rest = equation.state(jnp.zeros((2, 12, 4)))
        return equation.fields(pde.IMEXRK(equation, 0.05).step(0.3, rest))

    @jax.jit
    def derivatives(amplitude):
        """Return the flow, its derivative, and the derivative of half the sum of its squares."""
        fields, push = jax.linearize(flow, amplitude)
        return fields, push(jnp.ones(())), jax.linear_transpose(push, amplitude)(fields)[0]

    one = np.asarray(derivatives(jnp.asarray(1.0))[0])
    assert abs(one).max() > 0.1
    _, tangent, slope = derivatives(jnp.asarray(0.3))
    assert_close(tangent, one, 1e-12)
    assert_close(slope, 0.3 * np.sum(one**2), 1e-12)


def test_a_run_starts_again_at_the_right_time():
    """The walls have the velocities of the simulated time, also in a second part of a run and with `CFL`."""
    equation = pde.Channel(transform((12, 4), (2,)), VISCOSITY, wall_velocity=OSCILLATING)
    solver, u = pde.IMEXRK(equation, 0.05), start(equation, np.linspace(1, 0, 12))
    whole = pde.simulate(solver, u, 1.0, progress=False).u
    half = pde.simulate(solver, u, 0.5, progress=False).u
    assert_close(pde.simulate(solver, half, 1.0, t=0.5, progress=False).u, whole, 1e-12)
    controlled = pde.simulate(solver, u, 1.0, control=pde.CFL(0.5, largest=0.02), progress=False).u
    assert_close(profile_of(equation, controlled), profile_of(equation, whole), 1e-2)
    moving = np.argmin(dops.Chebyshev().points(12))
    assert profile_of(equation, controlled)[moving] == pytest.approx(np.cos(RATE))


def test_bad_functions_and_initial_states_are_refused(plain):
    bases = plain.Chebyshev(), plain.Fourier(half=True)
    fft = plain.Transform(make_mesh((1,)), bases=bases, shape=(8, 8), axes="x", box=plain.Box((1.0, 1.0)))
    with pytest.raises(ValueError, match=r"`wall_velocity` must be two numbers.*got"):
        plain.pde.Channel(fft, 0.1, wall_velocity=lambda t: t)
    with pytest.raises(ValueError, match=r"`top` must be a real number or a real array of shape \(8,\)"):
        plain.pde.RayleighBenard(fft, 10.0, 1.0, top=lambda t: jnp.zeros(3))
    moving = plain.pde.Channel(fft, 0.1, wall_velocity=OSCILLATING)
    sheared = np.zeros((2, 8, 8))
    sheared[1, 0] = np.cos(RATE * 0.5)
    with pytest.raises(ValueError, match="`fields` must have a velocity at each wall that is zero or"):
        moving.state(sheared)
    u = moving.at(jnp.asarray(0.5)).state(sheared)
    with pytest.raises(ValueError, match=r"`wall_velocity` must be constant here.*`equation.at\(t\)`"):
        moving.resolvent(u, 0.1)
