"""Tests of `pde.simulate`: results after interruptions on any mesh, adaptive time steps, and errors."""

import functools
import re
import resource
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import io, pde, spectral

from compiling import FLAGS
from helpers import assert_close, make_mesh
from processes import free_port, report, start, wait


RUN = Path(__file__).with_name("simulation.py")
N = 12
# With an array as the tolerance, one compiled program serves every tolerance.
tolerance = lambda rtol: eqx.tree_at(lambda control: control.rtol, pde.ErrorControl(rtol), jnp.asarray(rtol))


def make_solver(sizes=(2, 4), dt=0.02, method=pde.ETDRK, **options):
    fft = dops.FFT3D(make_mesh(sizes), shape=(N, N, N), pad=True, real=True, norm="forward")
    return method(pde.NavierStokes(fft, 0.02), dt, **options)


def vortex(solver):
    """Return the state of the Taylor–Green vortex, whose largest velocity is one."""
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(N) / N] * 3, indexing="ij")
    u = np.stack([np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), 0 * x])
    return solver.equation.state(solver.equation.fft.decomposition.shard(u))


def energy(solver):
    return lambda t, u: {"t": t, "energy": spectral.mean_square(solver.equation.transform, u).sum() / 2}


@pytest.fixture(scope="module")
def solver():
    return make_solver()


@pytest.fixture(scope="module")
def whole(solver):
    """Return the result of a run without interruption."""
    with jax.numpy_rank_promotion("raise"):  # As in tests, because JAX compiles again for another value.
        return pde.simulate(solver, vortex(solver), 1.0, interval=0.2, observe=energy(solver), progress=False)


def test_progress_is_reported_to_a_function(solver):
    seen = []
    pde.simulate(solver, vortex(solver), 0.4, interval=0.2, progress=lambda t, t_end: seen.append((t, t_end)))
    times, ends = zip(*seen)
    assert set(ends) == {0.4}
    assert list(times) == sorted(times)
    assert times[-1] == pytest.approx(0.4)


@pytest.fixture(scope="module")
def fine(solver):
    """Return the state at t = 1 after short steps."""
    return make_solver(dt=0.005).rollout(vortex(solver), 200)[0]


def test_a_run_is_equal_to_a_rollout(solver, whole):
    last, seen = solver.rollout(vortex(solver), 50, every=10, observe=energy(solver))
    assert_close(whole.u, last)
    assert (whole.t, whole.steps) == (1.0, 50)
    np.testing.assert_allclose(whole.times, 0.2 * np.arange(6))
    assert_close(whole.observed["energy"][1:], seen["energy"])
    assert_close(whole.observed["t"], whole.times)
    np.testing.assert_allclose(whole.observed["energy"][0], 0.125)


def test_a_run_continues_from_its_checkpoint(tmp_path, solver, whole, capsys):
    """A run in three parts, each with a later end, equals a run without interruption, and shows where it continues.

    The last part is on another mesh.
    """
    for sizes, t_end in (((2, 4), 0.4), ((2, 4), 0.8), ((1, 2), 1.0)):
        part = make_solver(sizes)
        fields = part.equation.fields
        run = pde.simulate(
            part,
            vortex(part),
            t_end,
            interval=0.2,
            observe=energy(part),
            write=pde.Snapshots(tmp_path / "{:02}.h5", 2, lambda u, fields=fields: {"velocity": fields(u)}),
            checkpoint=tmp_path / "checkpoints",
        )
        assert run.t == pytest.approx(t_end)
        if sizes == (2, 4):
            count = len(run.times)
            np.testing.assert_array_equal(run.observed["energy"], whole.observed["energy"][:count])
    shown = [found[0] for found in re.finditer(r"continues from t = \S+|\bt = (\S+) of \1,", capsys.readouterr().err)]
    assert "; ".join(shown) == (
        "t = 0.4 of 0.4,; continues from t = 0.4.; t = 0.8 of 0.8,; continues from t = 0.8.; t = 1 of 1,"
    )
    np.testing.assert_allclose(run.observed["energy"], whole.observed["energy"], rtol=1e-14)
    assert (run.steps, run.t) == (50, pytest.approx(1.0))
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == ["00.h5", "02.h5", "04.h5"]
    snapshot = io.read(tmp_path / "04.h5")
    assert snapshot.time == pytest.approx(0.8)
    np.testing.assert_allclose(np.mean(snapshot.arrays["velocity"] ** 2) * 3 / 2, whole.observed["energy"][4])


@contextmanager
def small_files():
    """Let this process write only files of at most 1000 bytes, as if the disk were almost full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("write", ["{:02}.zarr", "{:02}.h5", None])
def test_a_run_continues_after_the_disk_was_full(tmp_path, solver, whole, write):
    """A run raises `OSError` if the disk has no space for a snapshot or a checkpoint.

    When there is space again, a new call continues the run.
    """

    def run(t_end):
        options = {"write": write and pde.Snapshots(tmp_path / write), "observe": energy(solver), "progress": False}
        return pde.simulate(solver, vortex(solver), t_end, interval=0.2, checkpoint=tmp_path / "run", **options)

    run(0.4)
    with small_files(), pytest.raises(OSError, match=r"File too large"):
        run(1.0)
    again = run(1.0)
    np.testing.assert_array_equal(again.u, whole.u)
    np.testing.assert_array_equal(again.observed["energy"], whole.observed["energy"])
    if write:
        np.testing.assert_allclose([io.read(tmp_path / write.format(i)).time for i in range(6)], whole.times)


def test_steps_may_change_at_a_checkpoint(tmp_path, solver, whole):
    for dt, t_end in ((0.02, 0.4), (0.01, 1.0)):
        part = make_solver(dt=dt)
        run = pde.simulate(part, vortex(part), t_end, interval=0.2, checkpoint=tmp_path, progress=False)
    assert run.steps == 20 + 60
    assert run.t == pytest.approx(1.0)
    assert_close(run.u, whole.u, 1e-6)


def assert_cfl(solver, u, h, number):
    """Assert that a step has the given Courant number, computed by NumPy."""
    velocity = np.asarray(solver.equation.fields(u))[..., :N, :N, :N]
    np.testing.assert_allclose(h * np.abs(velocity).sum(axis=0).max() / (2 * np.pi / N), number, rtol=1e-6)


def test_cfl(solver, whole):
    control = pde.CFL(0.3)
    u = vortex(solver)
    assert_cfl(solver, u, float(control.limit(solver, u)), 0.3)
    run = pde.simulate(solver, u, 1.0, interval=0.2, observe=energy(solver), control=control, progress=False)
    assert run.t == 1.0
    np.testing.assert_allclose(run.times, whole.times)
    expected = 5 * np.ceil(0.2 / float(control.limit(solver, u)))
    assert abs(run.steps - expected) <= 5
    assert_close(run.observed["energy"], whole.observed["energy"], 1e-6)


def test_cfl_between_walls():
    """Steps have the given Courant number also between walls, where the distance between points varies."""
    shape = (17, 8, 8)
    bases = (dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True))
    fft = dops.Transform(make_mesh((2, 2)), shape=shape, bases=bases, box=dops.Box((2.0, 4.0, 4.0)), pad=True)
    equation = pde.Channel(fft, 0.1, wall_velocity=(0.3, 0.3))
    solver = pde.IMEXRK(equation, 0.1)
    x = 1 - np.cos(np.pi * np.arange(17) / 16)
    u = np.zeros((3, *shape))
    u[0] = (x * (2 - x))[:, None, None] ** 2
    u[1] = 0.3
    gaps = np.diff(x)
    nearest = np.minimum(np.append(gaps, gaps[-1]), np.insert(gaps, 0, gaps[0]))
    rate = np.abs(u[0]) / nearest[:, None, None] + np.abs(u[1]) / 0.5
    got = pde.CFL(0.5).limit(solver, equation.state(fft.decomposition.shard(u)))
    np.testing.assert_allclose(got, 0.5 / rate.max(), rtol=1e-6)


@pytest.mark.parametrize("method", [pde.ETDRK, pde.IMEXRK])
def test_error_control(method, fine):
    """With error control, the error is at most the tolerance times the number of steps.

    A smaller tolerance needs more steps, by the factor that the order of the method predicts.
    """
    solver = make_solver(method=method)
    errors, steps = [], []
    for rtol in (1e-6, 1e-10):
        run = pde.simulate(solver, vortex(solver), 1.0, control=tolerance(rtol), progress=False)
        errors.append(np.linalg.norm(np.asarray(run.u) - fine) / np.linalg.norm(fine))
        steps.append(run.steps)
    assert errors[0] < 1e-6 * steps[0]  # The flow decays, so the errors of earlier steps do not grow.
    assert errors[1] < 1e-10 * steps[1]
    assert steps[1] > 1e4 ** (1 / (solver.order + 1)) / 2 * steps[0]


def test_a_rejected_step_is_tried_again(fine):
    """A run whose first step is far too long for the tolerance takes shorter steps and has the right result."""
    long = make_solver(dt=1.0)
    run = pde.simulate(long, vortex(long), 1.0, control=tolerance(1e-10), progress=False)
    assert run.steps > 10
    assert_close(run.u, fine, 1e-7)


def test_the_last_finite_state_is_kept():
    solver = make_solver(dt=0.5, order=1)
    u = 1000 * vortex(solver)
    with pytest.raises(
        pde.NotFinite, match=r"`u` must stay finite, but it has .* after t = .*Use smaller steps"
    ) as caught:
        pde.simulate(solver, u, 50.0, progress=False)
    error = caught.value
    assert np.isfinite(error.state).all()
    steps = round(error.t / 0.5)
    expected, _ = solver.rollout(u, steps)
    assert_close(error.state, expected, 1e-6)
    assert not np.isfinite(solver.step(error.t, expected)).all()


def test_a_state_that_blows_up_is_not_saved(tmp_path):
    """A state that is not finite is not saved, so the next run continues from the last finite checkpoint."""
    coarse, fine = make_solver(dt=0.5, order=1), make_solver(dt=0.0125, order=1)
    u = 20 * vortex(fine)
    options = {"interval": 0.5, "checkpoint": tmp_path, "progress": False}
    pde.simulate(fine, u, 0.5, **options)
    with pytest.raises(pde.NotFinite, match=r"The next start continues from t = 0.5, the newest checkpoint in "):
        pde.simulate(coarse, u, 50.0, **options)
    with io.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps == [40]
    run = pde.simulate(fine, u, 1.0, **options)
    expected, _ = fine.rollout(u, 80)
    assert_close(run.u, expected)


def test_a_first_state_that_is_not_finite_is_refused(tmp_path, solver):
    u = vortex(solver) * np.nan
    with pytest.raises(ValueError, match=r"`u` must be finite, but it has infinities or NaNs at t = 0"):
        pde.simulate(solver, u, 1.0, write=pde.Snapshots(tmp_path / "{}.zarr"), progress=False)
    assert not list(tmp_path.iterdir())


class Rejecting(pde.AbstractStepControl):
    """Reject all steps."""

    def step(self, solver, t, u, h, most, args):
        return u, jnp.zeros(()), h / 2


def test_steps_that_become_too_short(solver):
    u = vortex(solver)
    with pytest.raises(
        pde.StepTooShort, match=r"`control` must allow steps .* Rejecting\(\) .* after t = 0 "
    ) as caught:
        pde.simulate(solver, u, 1.0, control=Rejecting(), progress=False)
    np.testing.assert_array_equal(caught.value.state, u)


def test_controlled_steps_whose_results_overflow(solver):
    """Error control raises `NotFinite` if the square of the velocity overflows, because shorter steps cannot help."""
    u = 1e200 * vortex(solver)
    with pytest.raises(pde.NotFinite, match=r"after t = 0 \(step 0\)") as caught:
        pde.simulate(solver, u, 1.0, control=tolerance(1e-6), progress=False)
    np.testing.assert_array_equal(caught.value.state, u)


def test_multi_step_methods_keep_their_history(tmp_path):
    solver = make_solver(method=pde.SBDF)
    expected, _ = solver.rollout(vortex(solver), 20)
    signalled = lambda u: signal.raise_signal(signal.SIGUSR1) or {"velocity": solver.equation.fields(u)}
    options = {"interval": 0.1, "checkpoint": tmp_path / "run", "progress": False}
    with pytest.raises(SystemExit, match=str(128 + signal.SIGUSR1)):
        pde.simulate(solver, vortex(solver), 0.4, write=pde.Snapshots(tmp_path / "{}.h5", fields=signalled), **options)
    assert_close(pde.simulate(solver, vortex(solver), 0.4, **options).u, expected)
    other = make_solver(method=pde.SBDF, dt=0.01)
    with pytest.raises(
        ValueError, match=r"`solver.dt` must be as in the run .*, 0.02, for a multi-step method; got 0.01"
    ):
        pde.simulate(other, vortex(other), 0.6, **options)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"t_end": -1.0}, ValueError, "`t_end` must be a finite time not before `t`, 0.0; got -1.0"),
        ({"interval": 0.3}, ValueError, "`interval` must divide the time from 0.0 to 1.0; got 0.3"),
        ({"interval": 0.25}, ValueError, "whole number of steps of `solver.dt`, 0.02; got 0.25. For .* `dt=0.0192"),
        ({"observe": abs}, TypeError, r"`observe` must be a function of \(t, u\) or None; got <built-in function abs>"),
        ({"observe": 3}, TypeError, r"`observe` must be a function of \(t, u\) or None; got 3"),
        ({"control": 0.5}, TypeError, "`control` must be `CFL`, `ErrorControl` or None; got 0.5"),
        ({"write": "run"}, TypeError, "`write` must be a `Snapshots` or None; got 'run'"),
        ({"progress": 3}, TypeError, r"`progress` must be True, False or a function of \(t, t_end\); got 3"),
        ({"minutes": -1}, ValueError, "`minutes` must be a finite number of at least 0"),
        ({"u": np.ones(3)}, TypeError, "`u` must be a spectrum"),
    ],
)
def test_bad_arguments(plain, change, error, message):
    fft = plain.FFT3D(make_mesh((2, 4)), shape=(N, N, N), pad=True, real=True, norm="forward")
    solver = plain.pde.ETDRK(plain.pde.NavierStokes(fft, 0.02), 0.02)
    given = {"u": vortex(solver), "t_end": 1.0, "progress": False, **change}
    with pytest.raises(error, match=message):
        plain.pde.simulate(solver, **given)


def test_bad_arguments_of_parts(plain):
    pde = plain.pde
    with pytest.raises(ValueError, match="`path` must have a placeholder for a number"):
        pde.Snapshots("run.zarr")
    with pytest.raises(ValueError, match="`number` must be a positive, finite number; got 0"):
        pde.CFL(0)
    with pytest.raises(ValueError, match="`rtol` or `atol` must be positive"):
        pde.ErrorControl(0.0)
    fft = plain.FFT3D(make_mesh((2, 4)), shape=(N, N, N), pad=True, real=True)
    scalar = pde.ETDRK(pde.Diffusion(fft, 0.1), 0.1)
    with pytest.raises(ValueError, match="`velocity` must be given for `Diffusion`"):
        pde.CFL().limit(scalar, u := scalar.equation.state(np.ones((N, N, N))))
    write = pde.Snapshots("{}.h5", fields=lambda u: {"u": u})
    with pytest.raises(ValueError, match="`fields` must return fields on the grid; got a state for 'u'"):
        pde.simulate(scalar, u, 0.1, write=write, progress=False)


def test_a_folder_belongs_to_one_run(tmp_path, solver):
    u = vortex(solver)
    pde.simulate(solver, u, 0.2, interval=0.1, observe=energy(solver), checkpoint=tmp_path, progress=False)
    with pytest.raises(
        ValueError, match=r"`t` and `interval` must be as in the run saved in .*, 0.0 and 0.1; got 0.0 and 0.2"
    ):
        pde.simulate(solver, u, 0.4, interval=0.2, observe=energy(solver), checkpoint=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"`observe` must return .* the same types and shapes as in the run saved in"):
        pde.simulate(solver, u, 0.4, interval=0.1, checkpoint=tmp_path, progress=False)


# --- Programs that are interrupted ---


def launch(folder: Path, method: str, processes: int = 1, **options: object) -> list[list]:
    shared = [RUN, folder, method, "--processes", processes, "--port", free_port()]
    shared += [part for name, value in options.items() for part in (f"--{name}", value)]
    return [[*shared, "--rank", rank] for rank in range(processes)]


def finish(folder: Path, method: str) -> dict[str, np.ndarray]:
    with start(folder, launch(folder, method), FLAGS) as ranks:
        wait(ranks, limit=120)
        assert [rank.code for rank in ranks] == [0] * len(ranks), report(ranks)
    with np.load(folder / "last.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return a function that returns the results of a run without interruption."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECOMPOPS_BACKEND", "xla")  # By default, one process and several ones take other backends.
        yield functools.cache(lambda method: finish(tmp_path_factory.mktemp(method), method))


@pytest.mark.parametrize(
    ("method", "stops"),
    [
        ("controlled", [(signal.SIGTERM, 2), (signal.SIGKILL, 1)]),
        *(pytest.param("etdrk", [(signal.SIGTERM, processes)], marks=pytest.mark.sweep) for processes in (1, 2)),
        pytest.param("sbdf", [(signal.SIGUSR1, 1)], marks=pytest.mark.sweep),
    ],
)
def test_an_interrupted_run_has_the_same_results(tmp_path, uninterrupted, method, stops):
    """Results of an interrupted and continued run are bitwise equal to results without interruption.

    Each part ends at its second snapshot. Only one of two processes gets the signal. One process continues the run.
    """
    expected = uninterrupted(method)
    for how, processes in stops:
        with start(tmp_path, launch(tmp_path, method, processes, slow=0.2), FLAGS) as ranks:
            deadline = time.monotonic() + 100
            while ranks[0].output.count("observed") < 2:  # Each snapshot prints this word.
                assert time.monotonic() < deadline, report(ranks)
                assert not ranks[0].has_ended(), report(ranks)
                time.sleep(0.01)
            ranks[-1].process.send_signal(how)
            wait(ranks, limit=60)
            if how != signal.SIGKILL:
                assert [rank.code for rank in ranks] == [128 + how] * processes, report(ranks)
                assert f"Stopped by signal {int(how)} at t = " in ranks[0].output, report(ranks)
        assert not (tmp_path / "last.npz").exists()
    got = finish(tmp_path, method)
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)
    assert sorted(path.name for path in tmp_path.glob("*.zarr")) == [f"{i:03}.zarr" for i in range(0, 16, 3)]
