"""Tests of the memory that ranks share: it is shared in every start, and the files of other threads stay open."""

import json
from pathlib import Path

import decompops as dops
import pytest
from decompops._backend.native.library import MpiKernels
from decompops.tools import cli as cli

import mpiexec


WORKER = Path(__file__).parent / "sharing.py"
pytestmark = mpiexec.MARKS


# A single rank starts often, because an accident with a file of another thread is rare.
@pytest.mark.parametrize(("ranks", "starts"), [(1, 300), (3, 4), pytest.param(6, 20, marks=pytest.mark.sweep)])
def test_ranks_share_memory(ranks, starts):
    done = mpiexec.run(WORKER, str(starts), ranks=ranks)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("shared") == ranks, done.stdout


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", range(1, 7))
def test_new_processes_share_memory(ranks):
    for _ in range(20):
        done = mpiexec.run(WORKER, "0", ranks=ranks)
        assert done.returncode == 0, done.stdout


def test_info_says_whether_memory_is_shared(monkeypatch, capsys):
    def features() -> str:
        assert cli.main(["info", "--json"]) == 0
        found = {backend["name"]: backend for backend in json.loads(capsys.readouterr().out)["backends"]}
        return found["mpi"]["features"]

    assert features().endswith(", ranks of a host share memory")
    monkeypatch.setattr(MpiKernels, "sharing", lambda self, number: (0, "memfd_create: no permission"))
    assert features().endswith(", ranks of a host exchange messages (memfd_create: no permission)")
    assert dops.MPI().counters().not_sharing == "memfd_create: no permission"
