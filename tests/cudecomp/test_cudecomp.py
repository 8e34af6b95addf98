"""`CuDecomp()` on CPUs: its kernels over a double of cuDecomp (`double`) that moves host memory. See worker.py.

Nothing here needs a GPU, and nothing here tells how cuDecomp itself behaves, or XLA's GPU runtime.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import mpiexec


HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
pytestmark = mpiexec.MARKS


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> Path:
    """The folder of the kernels, built over the double."""
    build = tmp_path_factory.mktemp("kernels")
    options = ("-DDECOMPOPS_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}")
    target = "cudecomp_double"
    for command in (
        ("cmake", "-S", HERE.parents[1] / "ffi", "-B", build, *options),
        ("cmake", "--build", build, "--parallel", "2", "--target", target),
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
    return build / "double"


@pytest.mark.parametrize(
    ("task", "ranks"), [("grid", 4), ("transformations", 4), ("slabs", 3), ("small", 2), ("spectral", 2)]
)
def test_results(task, ranks, kernels):
    done = mpiexec.run(WORKER, task, kernels, ranks=ranks)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"{task} passed") == ranks, done.stdout
    assert f"double: finalized a handle of {ranks}" in done.stdout  # which it refuses while descriptors are left


def test_job_ends_where_one_rank_does(kernels):
    done = mpiexec.run(WORKER, "raises", kernels, ranks=2, limit=60)
    assert done.returncode != 0
    assert "ValueError: the victim's own error" in done.stdout
