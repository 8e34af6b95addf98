"""Tests of the compiled kernels under `mpiexec`. Each rank runs worker.py."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import io
from decompops._backend.native import library

import mpiexec
from checks import UNEVEN, assert_block
from helpers import random_field
from pages import scripts


HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
EXAMPLE = HERE.parents[1] / "examples" / "taylor_green.py"
pytestmark = mpiexec.MARKS


def test_kernels_work():
    assert mpiexec.PROBLEM is None


# One job runs several tasks, because every rank takes seconds to start. In half of the jobs, ranks share no memory, as
# if they were on different nodes.
@pytest.mark.parametrize(
    ("tasks", "ranks", "share"),
    [
        ("operators", 2, "0"),
        pytest.param("operators", 4, "1", marks=pytest.mark.sweep),
        pytest.param("on_top", 2, "1", marks=pytest.mark.sweep),
        ("order,tree,moving_particles", 2, "1"),
        pytest.param("transformations", 2, "1", marks=pytest.mark.sweep),
        ("transformations,order,tree,moving_particles", 4, "0"),
        pytest.param("moving_particles", 1, "1", marks=pytest.mark.sweep),
        pytest.param("moving_particles", 3, "1", marks=pytest.mark.sweep),
        ("uneven", 3, "1"),
        pytest.param("uneven", 5, "1", marks=pytest.mark.sweep),
        ("uneven", 6, "0"),
    ],
)
def test_results(tasks, ranks, share):
    done = mpiexec.run(WORKER, tasks, ranks=ranks, ROUNDS="100" if ranks == 2 else "30", SHARE_MEMORY=share)
    assert done.returncode == 0, done.stdout
    for task in tasks.split(","):
        assert done.stdout.count(f"{task} passed") == ranks, done.stdout


def test_spectral_operators_autotuning_and_files(tmp_path):
    done = mpiexec.run(WORKER, "spectral,systems,tuned,files", ranks=2, FOLDER=str(tmp_path))
    assert done.returncode == 0, done.stdout
    fft = dops.FFT3D(jax.make_mesh((2, 4), ("x", "y")), shape=UNEVEN, pad=True, real=True, backend=dops.XLA())
    like = fft(fft.decomposition.shard(np.zeros(UNEVEN)))
    with io.Checkpoints(tmp_path / "run") as checkpoints:
        restored = checkpoints.restore({"k": like}, {"k": fft.out_structure})["k"]
    for k in (restored, *(io.read(tmp_path / f"k{suffix}", fft).arrays["k"] for suffix in (".zarr", ".h5"))):
        assert_block(k, np.fft.rfftn(random_field(UNEVEN)))


def test_threads():
    done = mpiexec.run(WORKER, "threads", ranks=2)
    assert done.returncode == 0, done.stdout


def test_benchmark():
    operators = ("fft", "rfft+inverse", "fft-gradient", "transpose", "halo", "gradient", "navier-stokes")
    command = ("-m", "decompops", "bench", "--backend", "mpi", "--shape", "16x8x24", "--repeats", "1", "--json")
    done = mpiexec.run(*command, "--mesh", "2x1", "--operator", *operators, ranks=2)
    assert done.returncode == 0, done.stdout
    results = json.loads(done.stdout[done.stdout.index("{\n") : done.stdout.rindex("}") + 1])
    assert results["processes"] == results["devices"] == 2
    for case, messages in zip(results["cases"], (1, 2, 2, 1, 1, 2, 2), strict=True):
        rows = {row["name"]: row for row in case["contestants"]}
        assert {"decompops", "our XLA backend"} < set(rows)
        assert ("our forward" in rows) == (case["operator"] in {"rfft+inverse", "fft-gradient"})
        for row in rows.values():
            if row["failure"] != "not installed":
                assert row["failure"] is None
                assert row["relative_error"] <= 1e-5
                assert 0 < row["min_s"] <= row["median_s"]
        program = case["program"]
        assert program["collectives"] == []
        assert program["kernel_messages"] == messages  # Each rank sends to one other rank.
        assert program["communicated_bytes"] == program["least_communicated_bytes"] > 0


def test_commands_with_another_backend_connect_the_processes():
    """`XLA()` has no launcher of its own, and runs on all processes that a launcher has started. One of them prints."""
    command = ["-m", "decompops", "bench", "--backend", "xla", "--shape", "8", "--operator", "transpose"]
    done = mpiexec.run(*command, ranks=2)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("on 2 x cpu in 2 processes") == 1
    done = mpiexec.run("-m", "decompops", "selftest", "--backend", "native", ranks=2)
    assert done.returncode != 0
    assert "`mesh` must consist of CPU devices of this process for `backend=Native()`" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message", "ranks"),
    [
        (["--mesh", "1x1"], "must use the devices of all 2 processes", 2),
        (["--on-paper"], "add --backend xla", 1),
    ],
)
def test_benchmark_of_bad_arguments(arguments, message, ranks):
    done = mpiexec.run("-m", "decompops", "bench", "--backend", "mpi", *arguments, ranks=ranks)
    assert done.returncode != 0
    assert message in done.stdout


def test_use_without_initialize():
    script = "import decompops as dops, jax; dops.FFT3D(jax.make_mesh((1,), ('x',)), backend=dops.MPI())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "RuntimeError: `MPI.initialize()` must be called before" in done.stderr


def test_kernels_of_other_sources_are_refused(monkeypatch, tmp_path):
    assert library.loading_problem("decompops_mpi") is None
    changed = tmp_path / "ffi"
    shutil.copytree(library.SOURCES, changed)
    monkeypatch.setattr(library, "SOURCES", changed)
    assert library.loading_problem("decompops_mpi") is None
    (changed / "mpi" / "new_stage.cc").write_text("// what the kernels do not know\n")
    message = (
        f"built from other sources than those in {changed}: rebuild them with `python -m pip install -e {tmp_path}`"
    )
    assert message in library.loading_problem("decompops_mpi")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dops.MPI.initialize(timeout=0.0), "`timeout` must be a positive number of seconds; got 0.0"),
        (lambda: dops.MPI.initialize(limit=-1.0), "`limit` must be a positive number of seconds; got -1.0"),
        (lambda: dops.MPI.initialize(heartbeat=np.nan), "`heartbeat` must be a positive number of seconds; got nan"),
        (lambda: dops.MPI.thread("main").__enter__(), '`name` must be a string other than "" and "main"; got \'main\''),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_two_threads_cannot_have_the_same_name():
    taken = pytest.raises(ValueError, match="`name` must not be in use by another thread; 'power' is in use")
    with dops.MPI.thread("power"), taken:
        dops.MPI.thread("power").__enter__()
    with dops.MPI.thread("power"):
        pass


def test_documented_script(tmp_path):
    path = tmp_path / "power.py"
    path.write_text(scripts("docs/cluster.md")["power.py"])
    done = mpiexec.run(path, ranks=4)
    assert done.returncode == 0, done.stdout
    u = np.random.default_rng(0).standard_normal((64, 64, 64))
    (printed,) = re.findall(r"^\d\.\d+e\+\d+$", done.stdout, flags=re.MULTILINE)
    np.testing.assert_allclose(float(printed), np.sum(np.abs(np.fft.rfftn(u)) ** 2), rtol=1e-5)


def test_example():
    options = ("--backend", "mpi", "--n", "24", "--dt", "0.05", "--t-end", "0.2", "--dtype", "float64", "--no-plot")
    done = mpiexec.run(EXAMPLE, *options, ranks=2)
    assert done.returncode == 0, done.stdout
    (energy,) = re.findall(r"E\(0\.1\) = (\S+)", done.stdout)  # Only one rank prints the energy.
    assert float(energy) == pytest.approx(0.124953117517, abs=5e-8)  # The published solution has this energy.


def test_example_refuses_a_mesh_without_all_ranks():
    done = mpiexec.run(EXAMPLE, "--backend", "mpi", "--mesh", "1x1", ranks=2, limit=60)
    assert done.returncode != 0
    assert "argument --mesh: must have 2 to 2 devices; got '1x1'" in done.stdout
