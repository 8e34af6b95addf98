"""Tests of saved simulations: times of steps, damaged checkpoints, late signals, and progress after a restart."""

import errno
import os
import re
import signal
import time
from unittest.mock import Mock

import decompops as dops
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from decompops import io, pde
from decompops.io import _agreement, _checkpoint_folder, _contents, _snapshot
from decompops.pde import _progress

from helpers import assert_close, make_mesh


N, DECAY = 8, 0.3
FFT = dops.FFT3D(make_mesh((2, 2)), shape=(N, N, N), real=True)


def make_solver(dt=0.02):
    return pde.ETDRK(pde.Diffusion(FFT, DECAY), dt)


def wave():
    """Return the state of a wave of wavenumber one, which decays as exp(-DECAY t)."""
    x = 2 * np.pi * np.arange(N) / N
    field = np.broadcast_to(np.cos(x)[:, None, None], (N, N, N))
    return make_solver().equation.state(FFT.decomposition.shard(field))


def largest(t, u):
    return {"t": t, "largest": jnp.abs(u).max(), "half": jnp.abs(u).max().astype("bfloat16")}


def run(t_end, folder=None, **options):
    options = {"interval": 0.1, "observe": largest, "progress": False, **options}
    return pde.simulate(make_solver(), wave(), t_end, checkpoint=folder, **options)


# --- The times of steps ---


@pytest.mark.parametrize(("dt", "interval"), [(jnp.float32(0.01), 0.1), (0.1428571, 1.0)])
def test_rounded_steps_end_exactly(dt, interval):
    """If a step divides the interval only up to rounding, it is changed slightly, so rounding errors do not add up."""
    t_end = 6.0
    result = pde.simulate(make_solver(dt), wave(), t_end, interval=interval, progress=False)
    assert result.t == pytest.approx(t_end, rel=1e-14)
    assert result.steps == round(t_end / float(dt))
    assert_close(result.u, np.exp(-DECAY * t_end) * np.asarray(wave()), 1e-12)


def test_the_step_in_the_error_can_be_typed():
    options = {"t_end": 1.0, "interval": 0.1, "progress": False}
    with pytest.raises(ValueError, match=r"of `solver.dt`, 0.0333333; got 0.1") as caught:
        pde.simulate(make_solver(0.0333333), wave(), **options)
    proposed = float(re.search(r"choose `dt=([0-9.e-]+)`", str(caught.value)).group(1))
    assert pde.simulate(make_solver(proposed), wave(), **options).steps == 30


# --- Restarts ---


def test_the_default_interval_is_the_saved_one(tmp_path):
    for t_end in (0.5, 1.0):
        result = run(t_end, tmp_path, interval=None)
    np.testing.assert_allclose(result.times, [0, 0.5, 1])
    assert_close(result.u, np.exp(-DECAY) * np.asarray(wave()), 1e-12)
    with pytest.raises(ValueError, match=r"`t_end` must be a whole number of .*; got 1.2. The run .* the interval 0.5"):
        run(1.2, tmp_path, interval=None)


@pytest.mark.parametrize("interval", [None, 0.1])
def test_a_run_cannot_end_before_the_saved_time(tmp_path, interval):
    run(0.4, tmp_path)
    with pytest.raises(ValueError, match=r"`t_end` must not be before the time of the run saved in .*, 0.4; got 0.2"):
        run(0.2, tmp_path, interval=interval)


def test_steps_must_divide_the_rest_of_an_interval(tmp_path, monkeypatch):
    """After a restart inside an interval, a step is refused if it does not divide the rest of this interval.

    The run is interrupted after four of the five steps of an interval.
    """
    with monkeypatch.context() as patch:
        patch.setattr(pde._simulate.Saver, "after", lambda self, *rest: (self.save(rest[0], rest[1], rest[3]), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            run(0.1, tmp_path)
    with pytest.raises(ValueError, match=r"from 0.08 to 0.1; got 0.05. The run .* has `dt=0.02`"):
        pde.simulate(make_solver(0.05), wave(), 0.1, interval=0.1, observe=largest, checkpoint=tmp_path)
    options = {"interval": 0.1, "observe": largest, "checkpoint": tmp_path, "progress": False}
    assert pde.simulate(make_solver(0.01), wave(), 0.2, **options).steps == 4 + 2 + 10


def test_observations_continue(tmp_path):
    """After a restart, observations of all types have the same bits as in a run without interruption."""
    for t_end in (0.1, 0.3):
        result = run(t_end, tmp_path)
    expected = run(0.3)
    np.testing.assert_array_equal(result.times, expected.times)
    for name, values in expected.observed.items():
        assert result.observed[name].dtype == values.dtype
        np.testing.assert_array_equal(result.observed[name], values)
    assert result.observed["half"].dtype == jnp.bfloat16


def cut(checkpoint):
    """Damage a checkpoint as a full disk could."""
    next(checkpoint.parent.glob(f"{checkpoint.name}-*/facts/metadata")).write_bytes(b"{")


def test_a_damaged_checkpoint_is_not_used(tmp_path):
    for t_end in (0.1, 0.2):
        run(t_end, tmp_path)
    cut(tmp_path / "10")
    with pytest.warns(UserWarning, match=r"The checkpoint .*10-[0-9a-f]* is damaged. An older checkpoint is used"):
        again = run(0.2, tmp_path)
    assert again.steps == 10
    expected = run(0.4)
    result = run(0.4, tmp_path)  # This run continues from the new checkpoint.
    np.testing.assert_array_equal(result.u, expected.u)
    np.testing.assert_array_equal(result.observed["largest"], expected.observed["largest"])


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no rights"), OSError(errno.EMFILE, "no handles")])
def test_a_checkpoint_that_this_process_cannot_read_is_not_damaged(tmp_path, monkeypatch, error):
    """The older checkpoint is not used: the newest one can be read again as soon as the process may."""
    for t_end in (0.1, 0.2):
        run(t_end, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(ocp.Checkpointer, "restore", Mock(side_effect=FileNotFoundError("no checkpoint")))
        patch.setattr(_contents, "os", Mock(wraps=os, open=Mock(side_effect=error), O_RDONLY=0, O_NONBLOCK=0))
        with pytest.raises(type(error), match=error.strerror):
            run(0.4, tmp_path)
    assert run(0.2, tmp_path).steps == 10


def test_restarts_leave_other_files_alone(tmp_path):
    """Three restarts keep folders whose names are integers, and other look-alikes of checkpoints and snapshots."""
    folder, names = (
        tmp_path / "run",
        ["2023", "5", "10", "7.orbax-checkpoint-tmp", ".000.zarr.old", ".000.zarr.1.partial"],
    )
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "results.csv").write_text(name)
    for t_end in (0.1, 0.2, 0.3):
        result = run(t_end, folder, write=pde.Snapshots(folder / "{:03}.zarr"))
    np.testing.assert_array_equal(result.u, run(0.3).u)
    assert {(folder / name / "results.csv").read_text() for name in names} == set(names)
    own = {path.name.partition("-")[0] for path in folder.iterdir()} - {".decompops", "7.orbax"}
    assert own - set(names) == {"000.zarr", "001.zarr", "002.zarr", "003.zarr", "15"}


@pytest.mark.parametrize("what", ["checkpoint", "write"])
@pytest.mark.parametrize("is_restart", [False, True])
def test_a_folder_that_cannot_be_written_is_told_before_the_first_step(tmp_path, monkeypatch, what, is_restart):
    folder, snapshots = tmp_path / "checkpoints", tmp_path / "snapshots"
    if is_restart:
        run(0.1, folder)
    bad = folder if what == "checkpoint" else snapshots
    check = _agreement.check_writable

    def refuse(path):
        if path == bad:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        check(path)

    monkeypatch.setattr(pde._simulate._Run, "advance", pytest.fail)
    monkeypatch.setattr(_agreement, "check_writable", refuse)
    monkeypatch.setattr(_checkpoint_folder, "check_writable", refuse)
    if what == "write" and not is_restart:
        snapshots.write_text("a file")
    with pytest.raises((PermissionError, NotADirectoryError), match="snapshots" if what == "write" else "checkpoints"):
        run(0.2, folder, write=pde.Snapshots(snapshots / "{}.zarr"))


@pytest.mark.parametrize("before", [None, 0.1])
def test_a_run_continues_from_what_an_earlier_job_saved_until_the_claim(tmp_path, monkeypatch, before):
    """An earlier job may save its last checkpoint while the next job starts."""
    if before is not None:
        run(before, tmp_path)
    claim, steps = io.Checkpoints.claim, []

    def claim_late(checkpoints):
        monkeypatch.undo()
        run(0.2, tmp_path)
        monkeypatch.setattr(pde._simulate._Run, "advance", look)
        claim(checkpoints)

    def look(program, position, most):
        steps.append(position.steps)
        raise KeyboardInterrupt

    monkeypatch.setattr(io.Checkpoints, "claim", claim_late)
    with pytest.raises(KeyboardInterrupt):
        run(0.3, tmp_path)
    assert steps == [10]


def test_a_finished_run_needs_no_claim(tmp_path, monkeypatch):
    expected = run(0.1, tmp_path)

    def refuse(checkpoints):
        raise BlockingIOError(errno.EWOULDBLOCK, "another program saves checkpoints")

    monkeypatch.setattr(io.Checkpoints, "claim", refuse)
    np.testing.assert_array_equal(run(0.1, tmp_path).u, expected.u)
    with pytest.raises(BlockingIOError, match="another program saves checkpoints"):
        run(0.2, tmp_path)


def test_a_run_whose_checkpoints_are_all_damaged(tmp_path):
    run(0.1, tmp_path)
    cut(tmp_path / "5")
    with (
        pytest.warns(UserWarning, match="5-[0-9a-f]* is damaged"),
        pytest.raises(ValueError, match=r"`checkpoint` must have a complete checkpoint, but all checkpoints in .* are"),
    ):
        run(0.2, tmp_path)


def test_checkpoints_wait_for_snapshots(tmp_path, monkeypatch):
    """A checkpoint is saved only after all earlier snapshots are written.

    So a run that continues from a checkpoint does not write earlier snapshots again.
    """
    write, save, seen = _snapshot._Writing.run, io.Checkpoints.save, []

    def write_slowly(writing):
        time.sleep(0.3)
        write(writing)

    def look(checkpoints, step, *rest, **options):
        seen.append((step, len(list(tmp_path.glob("*.zarr")))))
        save(checkpoints, step, *rest, **options)

    monkeypatch.setattr(_snapshot._Writing, "run", write_slowly)
    monkeypatch.setattr(io.Checkpoints, "save", look)
    run(0.3, tmp_path / "checkpoints", write=pde.Snapshots(tmp_path / "{}.zarr"), minutes=0.0)
    assert seen[-1] == (15, 4)
    for step, snapshots in seen:
        assert snapshots == 1 + step // 5


# --- Signals ---


@pytest.mark.parametrize("method", ["save", "close"])
def test_a_signal_at_the_end_of_a_run(tmp_path, monkeypatch, capsys, method):
    """After a signal at the end of a run, the run completes its files and the program ends.

    The signal comes while the last checkpoint is saved, or during `close`, when the processes have already agreed that
    there was no signal. In both cases, the next start returns the result.
    """
    original = getattr(io.Checkpoints, method)

    def interrupted(*args, **options):
        os.kill(os.getpid(), signal.SIGUSR2)
        original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(io.Checkpoints, method, interrupted)
        with pytest.raises(SystemExit) as caught:
            run(0.1, tmp_path)
    assert caught.value.code == 128 + signal.SIGUSR2
    message = f"Stopped by signal {int(signal.SIGUSR2)} at t = 0.1."
    assert (message in capsys.readouterr().err) == (method == "save")
    with io.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps == [5]
    np.testing.assert_array_equal(run(0.1, tmp_path).u, run(0.1).u)


# --- Progress ---


def test_the_remaining_time_after_a_restart(monkeypatch, capsys):
    """After a restart at t = 90, the remaining time is correct. Here, one unit of simulated time takes 80 s."""
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with _progress.progress(True, 0.0, 90.0, 100.0) as report:
        for now[0], t in ((20.0, 90.5), (60.0, 91.0), (100.0, 91.5)):
            report(t, round(100 * t))
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "The run continues from t = 90."
    # The first line has no remaining time, because the time of the first program includes compilation.
    assert [line.rpartition(", ")[2] for line in lines] == ["9050 steps", "12 min left", "11.3 min left"]


def test_a_restart_says_where_it_continues(tmp_path, capsys):
    run(0.1, tmp_path, progress=True)
    assert "continues" not in capsys.readouterr().err
    run(0.2, tmp_path, progress=True)
    assert "The run continues from t = 0.1." in capsys.readouterr().err
