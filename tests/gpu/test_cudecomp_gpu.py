"""Tests of `CuDecomp()` on GPUs. Each rank runs tests/cudecomp/worker.py.

All ranks share one GPU, or each rank has its own GPU. Several ranks on one GPU need NCCL 2.30 or newer. The tests are
skipped without a GPU or without cuDecomp.
"""

from pathlib import Path

import decompops as dops
import pytest

import mpiexec
from helpers import gpus


PROBLEM = mpiexec.PROBLEM or dops.CuDecomp().problem() or (None if gpus() else "there is no GPU here")
pytestmark = [pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM)), pytest.mark.timeout(600)]
WORKER = Path(__file__).parents[1] / "cudecomp" / "worker.py"
# Ranks on one GPU share its memory, so no rank may preallocate it.
VARIABLES = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@pytest.mark.parametrize(
    ("task", "ranks"),
    [
        *(("matrix", ranks) for ranks in (1, 2, 3, 4)),
        *(("grid", 4), ("slabs", 3), ("transformations", 4), ("spectral", 2)),
        *((task, ranks) for task in ("stress", "chosen") for ranks in (1, 2, 4)),
    ],
)
def test_results(task, ranks):
    done = mpiexec.run(WORKER, task, ranks=ranks, **VARIABLES)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"{task} passed") == ranks, done.stdout


def test_job_ends_when_a_rank_raises():
    done = mpiexec.run(WORKER, "raises", ranks=2, limit=120, **VARIABLES)
    assert done.returncode != 0
    assert "ValueError: the victim's own error" in done.stdout
