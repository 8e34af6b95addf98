"""Tests of `CuDecomp()` on CPUs. Each rank runs worker.py, with kernels that call a mock of cuDecomp.

The mock moves host memory, so these tests need no GPU. The tests cover neither cuDecomp itself nor XLA's GPU runtime.
"""

import re
from pathlib import Path

import pytest

import mock_kernels
import mpiexec


HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
pytestmark = mpiexec.MARKS


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> Path:
    """Build the kernels with the mock of cuDecomp, and return their folder."""
    return mock_kernels.build(tmp_path_factory.getbasetemp())


def assert_tuned(printed: str) -> None:
    """Assert that `CuDecompTuner` passed the right options to cuDecomp's autotuner. The mock prints these options.

    Of the process grids that fit, the mock chooses the first in cuDecomp's order. Of the allowed communication backends
    of cuDecomp, the mock chooses the last.
    """
    # These are the storage orders of x-, y- and z-pencils, with the fastest axis first. Each pencil is transformed
    # along its fastest axis.
    orders = "orders 012 120 210"
    for line in (
        f"transposes of 9 x 10 x 6, type 3, 5 trials, {orders}",  # Type 3 is complex64. Here, z has a half spectrum.
        f"transposes of 9 x 10 x 11, type 3, 5 trials, {orders}",
        "halos of 9 x 10 x 11, type 3, 5 trials, orders 210 210 210",
        "halos of 9 x 10 x 11, type 1, 5 trials, orders 210 210 210",
        f"transposes of 3 x 10 x 6, type 3, 7 trials, {orders}",
    ):
        assert f"mock: tuned {line}" in printed, printed


@pytest.mark.parametrize(
    ("tasks", "ranks", "handles"),
    [  # One job runs several tasks, because every rank takes seconds to start. `small` counts grids, so it comes first.
        ("axes,grid,transformations,thin_matrix,tuned", 4, {2, 4}),
        pytest.param("matrix", 4, {4}, marks=pytest.mark.sweep),
        ("slabs,part", 3, {2, 3}),
        pytest.param("matrix", 3, {3}, marks=pytest.mark.sweep),
        ("small,stress,spectral,few_systems", 2, {2}),
        pytest.param("systems", 2, {2}, marks=pytest.mark.sweep),
        ("matrix", 1, set()),
    ],
)
def test_results(tasks, ranks, handles, kernels):
    """Every task passes on every rank, and cuDecomp handles of all sizes in `handles` are finalized.

    The size of a handle is its number of ranks. When the mock finalizes a handle, it prints the size of this handle.
    The mock refuses to finalize a handle that still has descriptors.
    """
    done = mpiexec.run(WORKER, tasks, kernels, ranks=ranks)
    assert done.returncode == 0, done.stdout
    for task in tasks.split(","):
        assert done.stdout.count(f"{task} passed") == ranks, done.stdout
    finalized = re.findall(r"mock: finalized a handle of (\d)", done.stdout)
    assert set(map(int, finalized)) >= handles, done.stdout
    if "tuned" in tasks:
        assert_tuned(done.stdout)


def test_job_ends_when_a_rank_raises(kernels):
    done = mpiexec.run(WORKER, "raises", kernels, ranks=2, limit=60)
    assert done.returncode != 0
    assert "ValueError: the victim's own error" in done.stdout
