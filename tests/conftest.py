"""The setup of all tests: eight virtual CPU devices, float64, strict dtype promotion, and type checks by beartype."""

import atexit
import ctypes
import gc
import inspect
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from annotations import checked
from compiling import FLAGS


# Most tests inspect programs of the XLA backend. tests/native tests the compiled kernels, the default on CPUs.
os.environ.setdefault("DECOMPOPS_BACKEND", "xla")

# LLVM's optimisations would take most of the time, here and in the processes that tests start.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# No test needs to know from where in the code an instruction of a program comes.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
# The threads of NumPy's linear algebra wait by polling, on cores that other processes need.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# A warning about something that JAX will remove is an error in the processes that tests start, too.
os.environ["PYTHONWARNINGS"] = "error::DeprecationWarning,error::FutureWarning"
# Without files of bytecode, each of the hundreds of processes that tests start would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Many tests compile the same programs. So all workers, and the processes that they start, share one cache of compiled
# programs. It finds a program only for the same flags of XLA, so the first process adds our flags, and no other one.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs = tempfile.mkdtemp(prefix="decompops-programs-")
    atexit.register(shutil.rmtree, programs, ignore_errors=True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax


jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

import decompops as unchecked  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


inspect.getmembers(unchecked)  # imports the subpackages, too
for name in [name for name in sys.modules if name.split(".")[0] == "decompops"]:
    del sys.modules[name]
with checked("decompops"):
    import decompops

    inspect.getmembers(decompops)


# The tests in these folders run with the default backend, whose programs compile in less time than those of `XLA()`,
# except tests with the marker `xla`.
WITH_DEFAULT_BACKEND = ("examples", "finite_volume", "nn", "pde", "solve", "spectral")
MOST_MEMORY = 3e9  # In bytes, for one worker.
MOST_MAPS = 20_000  # XLA maps each program into memory in several parts, and crashes beyond 65,530 of them.


@pytest.fixture
def plain():
    """Return decompops without type checks, as users import it. Then bad input raises decompops' own errors."""
    return unchecked


@pytest.fixture(autouse=True, scope="module")
def default_backend(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in WITH_DEFAULT_BACKEND:
            patch.delenv("DECOMPOPS_BACKEND")
        yield


@pytest.fixture(autouse=True)
def xla_backend(request, monkeypatch):
    if request.node.get_closest_marker("xla") is not None:
        monkeypatch.setenv("DECOMPOPS_BACKEND", "xla")


@pytest.fixture(autouse=True)
def no_rank_promotion(request):
    """Let JAX raise an error where arrays of different ranks are combined, except in tests marked `promotes_ranks`.

    In these tests, the test itself or an example combines such arrays, as most users do.
    """
    promotes = request.node.get_closest_marker("promotes_ranks") is not None
    with jax.numpy_rank_promotion("allow" if promotes else "raise"):
        yield


@pytest.fixture(autouse=True)
def double_precision():
    """Let each test begin in double precision, also if an example has chosen single precision in the same process."""
    if not jax.config.jax_enable_x64:
        jax.config.update("jax_enable_x64", True)


@pytest.fixture(autouse=True)
def no_ambient_mesh():
    """Let each test begin without an ambient mesh, also if an earlier test of the same process has left one behind."""
    if not (jax.sharding.get_mesh().empty and jax.sharding.get_abstract_mesh().empty):
        jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()))


@pytest.fixture(autouse=True)
def _bounded_memory():
    """After each test, free the compiled programs if they take much memory or many maps of it.

    Without this, a worker that runs half of all tests takes nine gigabytes. glibc returns memory only when it is asked.
    """
    begin = time.perf_counter()
    yield
    if (
        sys.platform != "linux"
        or (size := int(Path("/proc/self/statm").read_text().split()[1]) * 4096) < MOST_MEMORY / 3
    ):
        return
    # To count the maps takes about 10 ms. A short test makes few.
    is_long = time.perf_counter() - begin > 0.1
    if size > MOST_MEMORY or (is_long and Path("/proc/self/maps").read_bytes().count(b"\n") > MOST_MAPS):
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


@pytest.hookimpl(tryfirst=True)  # This hook must run before pytest-xdist reads the groups.
def pytest_collection_modifyitems(config, items):
    """Let one worker run all tests of a file, so that these tests share fixtures and compiled programs."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(config.rootpath).as_posix()))


def pytest_collection_finish():
    """Make Python's garbage collector run less often, because JAX makes millions of short-lived objects.

    The collector also skips all objects that exist at this time, because imported modules keep them alive anyway.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
