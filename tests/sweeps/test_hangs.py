"""Programs on several CPU devices of one process end, however many of them are under way."""

import functools
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import decompops as dops
import jax
import pytest
from decompops import pde
from decompops._common.compat import avoid_deadlocks

from catalogue import Entry, operators, transforms
from compiling import WARNINGS
from helpers import mapped, random_field


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess:
    """Run `python` with `arguments`, in an environment in which the tests have not chosen XLA's number of threads."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("PJRT_NPROC")} | variables
    command = [sys.executable, *WARNINGS, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)


def check_task(task: str, backends: str, devices: int, count: int) -> None:
    done = run(Path(__file__).with_name("hangs.py"), task, backends, str(devices), str(count))
    assert done.stdout == "done\n", done.stderr


def test_a_loop_of_steps():
    check_task("steps", "native,xla", 8, 200)


@pytest.mark.sweep
@pytest.mark.timeout(3600)  # One start of Python takes many seconds here.
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


@pytest.fixture
def compiled():
    """Return a list that gets an entry for each program that JAX compiles or reads from its cache."""
    events = []

    def listen(event: str, seconds: float, **options) -> None:
        if event.endswith("backend_compile_duration"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@functools.cache
def catalogued() -> dict[str, Entry]:
    return operators(transforms(jax.make_mesh((2, 4), ("x", "y")), 2), 2)


def programs(compiled: list, function: Callable, x: jax.Array) -> int:
    """Return the number of new programs that an eager call starts."""
    compiled.clear()
    jax.block_until_ready(function(x))
    return len(compiled)


@pytest.mark.parametrize("name", ["Poisson", "Gradient", "Helmholtz", "Helmholtz in polynomials.T"])
def test_an_eager_operator_is_three_programs(name, compiled):
    """An eager call of a spectral operator starts two transforms and one program in between, in every form."""
    entry = catalogued()[name]
    assert programs(compiled, entry.function, entry.layout.shard(entry.field())) <= 3


@pytest.mark.parametrize("make", [pde.ETDRK, pde.IMEXRK, pde.SBDF])
def test_an_eager_step_is_one_program(make, compiled):
    """Another time step or viscosity needs no new program."""
    fft = dops.FFT2D(jax.make_mesh((2, 4), ("x", "y")), shape=(8, 8), real=True)
    for i in range(2):
        solver = make(pde.NavierStokes(fft, 0.1 + i), 0.01 + i)
        u = solver.start(solver.equation.state(fft.decomposition.shard(random_field((2, 8, 8)))))
        assert programs(compiled, lambda u, solver=solver: solver.step(0.0, u), u) == 1 - i
        assert programs(compiled, lambda u, solver=solver: solver.equation(0.0, getattr(u, "state", u)), u) <= 1 - i


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what a process has mapped")
@pytest.mark.parametrize("make", [pde.IMEXRK, pde.SBDF])
def test_eager_steps_with_a_function_of_the_user_leave_no_programs_behind(make):
    """After some ten thousand programs, Linux maps no more memory, and XLA ends Python."""
    fft = dops.FFT2D(jax.make_mesh((2, 4), ("x", "y")), shape=(8, 8), real=True)
    solver = make(pde.NavierStokes(fft, 0.1, forcing=lambda t, u, args: 0.1 * u), 0.01)
    u = solver.start(solver.equation.state(fft.decomposition.shard(random_field((2, 8, 8)))))
    sizes = []
    for _ in range(4):
        u = solver.step(0.0, u)
        gc.collect()
        sizes.append(mapped())
    assert sizes[-1] - sizes[1] < 30, sizes


# XLA starts programs on one device without tasks, so the first operator causes no warning.
LATE = """
import os, jax
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
jax.config.update("jax_num_cpu_devices", 8)
jax.devices()
import decompops as dops
dops.FFT3D(jax.make_mesh((1,), ("x",), devices=jax.devices()[:1]))
print("no warning", flush=True)
dops.FFT3D(jax.make_mesh((4, 2), ("x", "y")))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the number of XLA's threads is not known")
def test_too_few_threads_cause_a_warning():
    """If JAX has started before decompops is imported, an operator warns, and says what to set."""
    done = run("-c", LATE)
    assert done.stdout == "no warning\n"
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
