"""The example of tracers: its parts against exact solutions and NumPy, and both laws of dispersion in a run."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops.particles import ParticleMesh
from decompops.pde import ETDRK, NavierStokes

import example
from helpers import make_mesh


pytestmark = pytest.mark.promotes_ranks
tracers = example.load("tracers")


@pytest.fixture(autouse=True)
def standard_promotion():
    """Use JAX's default dtype promotion, as users do. Most tests use strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def grid(n: int) -> np.ndarray:
    return 2 * np.pi * np.indices((n, n, n)) / n


def vortices(n: int) -> np.ndarray:
    """Return the velocity of two-dimensional vortices with the stream function sin x sin y, a steady flow."""
    x, y, z = grid(n)
    return np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y), 0 * z])


def flow_of(n: int, velocity: np.ndarray, viscosity: float = 0.0, **options):
    """Return an equation, and the spectrum of a velocity."""
    fft = dops.FFT3D(make_mesh((4, 2), "explicit"), shape=(n,) * 3, real=True)
    equation = NavierStokes(fft, viscosity, **options)
    return equation, equation.state(fft.decomposition.shard(velocity))


@pytest.mark.sweep
def test_tracers_of_a_steady_flow_stay_on_their_streamlines():
    """The error of the time step is of second order: a quarter with half the step. Also beyond the box."""
    n, start = 24, np.random.default_rng(0).uniform(0, 2 * np.pi, (260, 3))
    equation, u = flow_of(n, vortices(n))
    pm = ParticleMesh(equation.fft.decomposition, "pcs")
    p = pm.place(start, id=np.arange(260), capacity=260)
    stream = lambda x: np.sin(x[:, 0]) * np.sin(x[:, 1])
    errors = []
    for steps in (20, 40):
        last, p_last, dispersion = tracers.disperse(ETDRK(equation, 4 / steps), pm, u, p, steps)
        np.testing.assert_allclose(last, u, atol=1e-11)
        found = pm.gather(p_last)
        errors.append(np.sqrt(np.mean((stream(found["positions"]) - stream(start)) ** 2)))
        moved = np.mean(np.sum((found["positions"] - start) ** 2, axis=1))
        assert dispersion.displacement[-1] == pytest.approx(moved, rel=1e-12)
    assert errors[1] < 5e-3
    assert 3 < errors[0] / errors[1] < 5


def test_the_spline_is_accurate_between_the_points():
    n, x = 24, np.random.default_rng(0).uniform(0, 2 * np.pi, (200, 3))
    equation, u = flow_of(n, vortices(n))
    pm = ParticleMesh(equation.fft.decomposition, "pcs")
    p = pm.place(x, id=np.arange(200))
    v = pm.gather(p.replace(v=pm.read(p, tracers.spline(equation, u))))["v"]
    exact = np.stack([np.sin(x[:, 0]) * np.cos(x[:, 1]), -np.cos(x[:, 0]) * np.sin(x[:, 1]), 0 * x[:, 0]], axis=1)
    np.testing.assert_allclose(v, exact, atol=3e-5)  # Of fourth order; without the filter, the error is 2e-2.


def test_a_step_reads_the_velocity_at_points_of_the_grid_exactly():
    """The coordinate of such a point may round to either side of the edge of a cell.

    Once, XLA rounded it to one side for the cells and to the other one for the shares of the cloud, in this program
    only. Then it read the neighbouring cell.
    """
    n = 16
    fft = dops.FFT3D(make_mesh((4, 2), "explicit"), shape=(n,) * 3, real=True)
    equation, pm = NavierStokes(fft, 0.1), ParticleMesh(fft.decomposition, "pcs")
    u = tracers.first_velocity(fft, equation, jax.random.key(0))
    p = pm.place(grid(n).reshape(3, -1).T, id=np.arange(n**3), capacity=2 * n**3 // 8)
    v = pm.read(p, tracers.spline(equation, u))
    _, p, _ = tracers.advance(ETDRK(equation, 0.04), pm, u, p.replace(before=v, start=p.positions), np.int64(1))
    exact = np.asarray(equation.fields(u)).reshape(3, -1).T
    np.testing.assert_allclose(pm.gather(p)["before"], exact, atol=1e-12)


def test_numbers_of_a_flow_against_numpy():
    n, viscosity = 16, 0.1
    velocity = vortices(n)
    equation, u = flow_of(n, velocity, viscosity)
    flow = tracers.measured(equation, u)
    assert flow.speed_squared == pytest.approx(0.5)
    assert flow.dissipation == pytest.approx(viscosity)  # The vorticity is 2 sin x sin y.
    for r, found in zip(tracers.DISTANCES, flow.structure):
        rolled = [np.mean(np.sum((np.roll(velocity, -r, axis) - velocity) ** 2, axis=0)) for axis in (1, 2, 3)]
        assert found == pytest.approx(np.mean(rolled))


def test_the_force_has_power_one():
    n = 16
    x, _, z = grid(n)
    equation, u = flow_of(n, vortices(n) + np.stack([np.cos(5 * z), 0 * x, 0 * x]))
    force = tracers.Stirring(equation.fft)(0.0, u, None)
    force, velocity = (np.asarray(equation.transform.inverse(a)) for a in (force, u))
    assert np.mean(np.sum(force * velocity, axis=0)) == pytest.approx(1)
    np.testing.assert_allclose(force, vortices(n) / 0.5, atol=1e-12)


def test_taylors_formula_for_an_exponential_correlation():
    time = np.linspace(0, 5, 2001)[1:]
    flow = tracers.Turbulence(0.1, 1.0, 3.0, np.ones(4))
    dispersion = tracers.Dispersion(time, time, 3 * np.exp(-time), np.ones((2000, 4)))
    np.testing.assert_allclose(dispersion.taylor(flow), 6 * (time - 1 + np.exp(-time)), rtol=1e-3)


def test_a_run_follows_both_laws(tmp_path):
    """With a tracer at each point of the grid, Batchelor's law is exact in the first step."""
    options = ("--n", "16", "--tracers", "16", "--spin-up", "2", "--t-end", "0.4", "--mesh", "4x2")
    flow, dispersion = tracers.main([*options, "--out", str(tmp_path / "figure.png")])
    ratio = dispersion.over_batchelor(flow)
    np.testing.assert_allclose(ratio[0], 1, rtol=1e-9)
    early = dispersion.time < 0.3 * flow.duration
    assert early.sum() >= 2
    np.testing.assert_allclose(ratio[early], 1, rtol=0.05)
    np.testing.assert_allclose(dispersion.displacement, dispersion.taylor(flow), rtol=0.05)
    assert dispersion.displacement[0] == pytest.approx(flow.speed_squared * dispersion.time[0] ** 2, rel=1e-9)
    example.assert_picture(tmp_path / "figure.png")


@pytest.mark.sweep
def test_too_few_slots_are_said_in_one_line(tmp_path):
    options = ("--n", "16", "--tracers", "4", "--spin-up", "1", "--t-end", "4", "--slots", "1", "--mesh", "4x2")
    with pytest.raises(SystemExit, match=r"^A device has too few slots for its tracers; use a larger --slots\.$"):
        tracers.main([*options, "--out", str(tmp_path / "figure.png")])


@pytest.mark.parametrize(
    ("option", "value"), [("--n", "8"), ("--tracers", "5"), ("--slots", "0"), ("--mesh", "2"), ("--out", "a.txt")]
)
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(tracers, option, value, capsys)
