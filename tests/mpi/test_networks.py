"""Tests of the way from every rank to JAX's coordinator."""

from pathlib import Path

import mpiexec


WORKER = Path(__file__).parent / "networks.py"
pytestmark = mpiexec.MARKS


def test_ranks_that_cannot_reach_the_coordinator():
    """All ranks raise an error that names the host. Where all ranks run on one host, JAX listens only for this host."""
    done = mpiexec.run(WORKER, ranks=2)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("reached") == 2, done.stdout
