"""Programs on several CPU devices of one process end, however many of them are under way."""

import os
import subprocess
import sys
from pathlib import Path

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import spectral
from decompops._compat import avoid_deadlocks


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess:
    """Run `python` with `arguments`, in an environment in which the tests have not chosen XLA's number of threads."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("PJRT_NPROC")} | variables
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def check_task(task: str, backend: str, devices: int, count: int) -> None:
    done = run(Path(__file__).with_name("hangs.py"), task, backend, str(devices), str(count))
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("backend", ["native", "xla"])
def test_a_loop_of_steps(backend):
    check_task("steps", backend, 8, 200)


@pytest.mark.sweep
@pytest.mark.parametrize("devices", [8, 16])
@pytest.mark.parametrize("backend", ["native", "xla"])
@pytest.mark.parametrize(("task", "count"), [("steps", 1000), ("small", 1000), ("eager", 5), ("threads", 200)])
def test_many_programs(task, count, backend, devices):
    """Start many programs beside other processes, which keep all cores busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for _ in range(25 if task == "eager" else 1):
            check_task(task, backend, devices, count)
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize("name", ["Poisson", "Gradient", "Divergence", "Curl"])
def test_an_eager_operator_is_three_programs(name):
    """An eager call of a spectral operator starts two transforms and one program in between, in every form."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    operator = getattr(spectral, name)(dops.FFT3D(mesh, shape=(8, 16, 24), real=True))
    for form in (operator, operator.T, operator.H):
        u = operator.decomposition.shard(np.ones((*(form.in_structure.components or ()), 8, 16, 24)))
        compiled.clear()
        jax.block_until_ready(form(u))
        assert len(compiled) <= 3


LATE = """
import os, jax
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
jax.config.update("jax_num_cpu_devices", 8)
jax.devices()
import decompops as dops
dops.FFT3D(jax.make_mesh((4, 2), ("x", "y")))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the number of XLA's threads is not known")
def test_too_few_threads_cause_a_warning():
    """If JAX has started before decompops is imported, an operator warns, and says what to set."""
    done = run("-c", LATE)
    assert "JAX may deadlock" in done.stderr, done.stderr
    assert "XLA has 8 threads and needs 16. Set `PJRT_NPROC=32`" in done.stderr
    assert run("-c", LATE, PJRT_NPROC="16").returncode == 0


@pytest.mark.parametrize(
    ("devices", "cores", "environment", "threads"),
    [
        (-1, 2, {}, "32"),  # The user may still choose a number of devices.
        (-1, 32, {}, None),
        (-1, 2, {"XLA_FLAGS": "--xla_force_host_platform_device_count=16"}, "64"),
        (-1, 2, {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}, None),
        (16, 2, {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}, "64"),
        (1, 2, {}, None),
        (8, 2, {"PJRT_NPROC": "4"}, "4"),
        (8, 2, {"NPROC": "4"}, None),
        (8, 2, {"OMPI_COMM_WORLD_SIZE": "2"}, None),
        (8, 2, {"SLURM_STEP_NUM_TASKS": "1"}, "32"),
        (16, 2, {"PJRT_NPROC": "32", "DECOMPOPS_PJRT_NPROC": "32"}, "64"),
        (1, 2, {"PJRT_NPROC": "32", "DECOMPOPS_PJRT_NPROC": "32"}, None),
        (8, 2, {"PJRT_NPROC": "5", "DECOMPOPS_PJRT_NPROC": "32"}, "5"),
    ],
)
def test_number_of_threads(monkeypatch, devices, cores, environment, threads):
    """XLA gets four threads for each device, unless the user has chosen a number or each process has one device."""
    monkeypatch.setattr(type(jax.config), "jax_num_cpu_devices", devices, raising=False)
    avoid_deadlocks(cores, environment)
    assert environment.get("PJRT_NPROC") == threads
