"""Tests of the limits of step controls: states of zero, very short or many steps, and wrong arguments."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde

from helpers import assert_close, make_mesh


SHAPE = (8, 8)
FFT = dops.FFT2D(make_mesh((2,)), axes="x", shape=SHAPE, real=True)
DECAY = 0.1


def diffusion(dt=0.1, scale=1.0, dtype=np.float32):
    """Return an integrator, and the state of a wave of wavenumber one, which decays as exp(-DECAY t)."""
    solver = pde.ETDRK(pde.Diffusion(FFT, DECAY), dt)
    x = 2 * np.pi * np.arange(8) / 8
    wave = np.broadcast_to(scale * np.cos(x)[:, None], SHAPE).astype(dtype)
    return solver, solver.equation.state(FFT.decomposition.shard(wave))


@pytest.mark.parametrize("control", [pde.ErrorControl(1e-4), pde.ErrorControl(0.0, atol=1e-6), pde.CFL(largest=0.3)])
def test_zero_stays_zero(control):
    solver, u = diffusion(scale=0.0)
    if isinstance(control, pde.CFL):
        velocity = lambda u: jnp.stack([solver.equation.fields(u)] * 2, -3)
        control = pde.CFL(largest=control.largest, velocity=velocity)
    result = pde.simulate(solver, u, 1.0, control=control, progress=False)
    assert result.t == 1.0
    assert not np.asarray(result.u).any()


@pytest.mark.parametrize(("dtype", "power"), [(np.float32, 84), (np.float64, 600)])
def test_states_of_any_size(dtype, power):
    """The squares of these states are zero or infinite."""
    runs = []
    for scale in (1.0, 2.0**-power, 2.0**power):
        solver, u = diffusion(scale=scale, dtype=dtype)
        solver = pde.IMEXRK(solver.equation, 0.1)
        runs.append(pde.simulate(solver, u, 20.0, control=pde.ErrorControl(1e-4), progress=False))
        assert_close(np.asarray(runs[-1].u, complex) / scale, np.exp(-DECAY * 20) * np.asarray(u) / scale, 1e-3)
    assert len({run.steps for run in runs}) == 1


def test_a_first_step_below_the_rounding_error_of_the_end():
    """Near the time zero, a step may be shorter than the rounding error of the last time."""
    solver, u = diffusion(dt=1e-5)
    result = pde.simulate(solver, u, 100.0, control=pde.ErrorControl(1e-4), progress=False)
    assert result.t == 100.0
    assert result.steps < 30
    assert_close(result.u, np.exp(-DECAY * 100) * np.asarray(u), 1e-4)


@pytest.mark.parametrize("make", [pde.CFL, pde.ErrorControl])
def test_time_of_many_short_steps(make):
    """A wave is where its time says: thousands of equal steps in single precision do not add up rounding errors."""
    solver = pde.ETDRK(pde.Advection(FFT, (1.0, 0.0)), 4e-4, order=1)
    rest = {"velocity": lambda u: jnp.zeros((2, *SHAPE), np.float32)} if make is pde.CFL else {}
    x = 2 * np.pi * np.arange(8) / 8
    wave = np.broadcast_to(np.cos(x)[:, None], SHAPE).astype(np.float32)
    u = solver.equation.state(FFT.decomposition.shard(wave))
    run = pde.simulate(solver, u, 5.0, control=make(largest=3.927e-4, **rest), progress=False)
    phase = np.angle(np.fft.fft(solver.equation.fields(run.u)[:, 0])[1] * np.exp(5j))
    assert run.steps > 12000
    assert abs(phase) < 1e-4


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda pde: pde.ErrorControl(largest=-1.0), ValueError, "`largest` must be a positive, finite number; got -1"),
        (lambda pde: pde.ErrorControl(largest="wide"), TypeError, "`largest` must be one real number; got 'wide'"),
        (lambda pde: pde.CFL(largest=0.0), ValueError, "`largest` must be a positive"),
        (lambda pde: pde.CFL(True), TypeError, "`number` must be one real number; got True"),
        (lambda pde: pde.Snapshots("a_{}_{name}.h5"), ValueError, "`path` must have a placeholder for a number"),
        (lambda pde: pde.Snapshots("{:s}.h5"), ValueError, "`path` must have a placeholder for a number"),
    ],
)
def test_bad_arguments(plain, make, error, message):
    with pytest.raises(error, match=message):
        make(plain.pde)


def test_numbers_of_other_types(plain):
    assert plain.pde.CFL(np.float32(0.5), largest=jnp.asarray(2.0)).number == 0.5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"t_end": None}, TypeError, "`t_end` must be one real number; got None"),
        ({"t_end": "1"}, TypeError, "`t_end` must be one real number; got '1'"),
        ({"t": 1j}, TypeError, "`t` must be one real number; got 1j"),
        ({"interval": "wide"}, TypeError, "`interval` must be one real number; got 'wide'"),
        ({"dt": 0.0}, ValueError, r"`solver.dt` must be a positive, finite number; got 0.0"),
        ({"dt": -0.1}, ValueError, r"`solver.dt` must be a positive, finite number; got -0.1"),
    ],
)
def test_bad_arguments_of_simulate(plain, change, error, message):
    _, u = diffusion()
    fft = plain.FFT2D(make_mesh((2,)), axes="x", shape=SHAPE, real=True)
    given = {"t_end": 1.0, "control": plain.pde.ErrorControl(), "progress": False, "dt": 0.1} | change
    solver = plain.pde.ETDRK(plain.pde.Diffusion(fft, DECAY), given.pop("dt"))
    with pytest.raises(error, match=message):
        plain.pde.simulate(solver, u, **given)


def test_a_velocity_without_components(plain):
    solver, u = diffusion()
    control = plain.pde.CFL(velocity=solver.equation.fields)
    with pytest.raises(
        ValueError, match=r"`velocity` must return an array of shape \(\*batch, 2, 8, 8\), .*; got shape \(8, 8\)"
    ):
        control.limit(solver, u)


def test_a_wave_that_stands_still():
    """For c = 0, the height grows by v t. It is an even function of c, so its derivative by c is zero."""
    h, v = np.random.default_rng(3).standard_normal((2, *SHAPE))

    def height(c):
        equation = pde.Wave(FFT, c)
        u, _ = pde.ETDRK(equation, 0.5).rollout(equation.state(FFT.decomposition.shard(np.stack([h, v]))), 2)
        return equation.fields(u)[0]

    value, slope = jax.jit(lambda c: jax.jvp(height, (c,), (1.0,)))(0.0)
    assert_close(value, h + v)
    assert not np.asarray(slope).any()
    _, slope = jax.jit(lambda c: jax.jvp(height, (c,), (1.0,)))(0.3)
    k = np.hypot(*np.meshgrid(*[np.fft.fftfreq(8, 1 / 8)] * 2, indexing="ij"))
    angle, scale = 0.3 * k, np.where(k > 0, 0.3 * k, 1)
    rate = np.where(k > 0, np.cos(angle) / 0.3 - np.sin(angle) / (0.3 * scale), 0)
    exact = np.fft.ifft2(-k * np.sin(angle) * np.fft.fft2(h) + rate * np.fft.fft2(v)).real
    assert_close(slope, exact, 1e-10)
