"""Tests of jobs with several meshes, and of a communicator that is split. Each rank runs parts.py."""

from pathlib import Path

import pytest

import mpiexec


PARTS = Path(__file__).with_name("parts.py")
pytestmark = mpiexec.MARKS


@pytest.mark.parametrize("task", ["meshes", "split"])
def test_parts(task):
    done = mpiexec.run(PARTS, task, ranks=4)
    assert done.returncode == 0, done.stdout
    assert all(f"rank {rank} passed" in done.stdout for rank in range(4)), done.stdout


def test_a_rank_without_a_device_of_the_mesh():
    """Both ranks pass a mesh of the first one. The second one says what is wrong."""
    done = mpiexec.run(PARTS, "stranger", ranks=2, limit=120)
    assert done.returncode != 0
    assert "ValueError: `mesh` must have a device of this process, 1; got Mesh" in done.stdout, done.stdout
