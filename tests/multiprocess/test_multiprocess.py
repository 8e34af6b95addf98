"""Tests with several processes under `jax.distributed`, with Gloo collectives. Each process runs worker.py."""

import re
import signal
from itertools import product
from pathlib import Path

import pytest

from compiling import FLAGS
from helpers import thinned
from pages import ROOT, scripts
from processes import Rank, free_port, report, start, wait, worker


WORKER = Path(__file__).with_name("worker.py")
PAGE = "docs/multiprocess.md"
TIMEOUT = 4  # JAX's heartbeat timeout in seconds, which limits the wait for a dead rank.


def time_of_death(victim: Rank) -> float | None:
    found = re.search(r"victim at (\S+)", victim.output)
    return float(found[1]) if found else None


@pytest.mark.parametrize(
    ("processes", "devices", "options"),
    [(2, 2, ()), *(pytest.param(*one, ("--everything",), marks=pytest.mark.sweep) for one in ((2, 2), (4, 1)))],
)
def test_operators(tmp_path, processes, devices, options):
    commands = worker(WORKER, "checks", processes, devices, "--folder", tmp_path, *options)
    with start(tmp_path, commands, FLAGS) as ranks:
        wait(ranks, limit=200)
        assert [rank.code for rank in ranks] == [0] * processes, report(ranks)
        assert all("all checks passed" in rank.output for rank in ranks), report(ranks)


@pytest.mark.parametrize(("processes", "devices"), [pytest.param(2, 2, marks=pytest.mark.sweep), (4, 1)])
def test_groups(tmp_path, processes, devices):
    with start(tmp_path, worker(WORKER, "groups", processes, devices), FLAGS) as ranks:
        wait(ranks, limit=200)
        assert [rank.code for rank in ranks] == [0] * processes, report(ranks)
        assert all("all checks passed" in rank.output for rank in ranks), report(ranks)


@pytest.mark.parametrize(
    ("death", "victim"), thinned(product(("exit", "stop"), (0, 1)), lambda death, victim: (death == "exit") == victim)
)
def test_survivor_of_a_dead_rank_ends_with_an_error(tmp_path, death, victim):
    """If one rank dies, JAX aborts the other rank within a limited time.

    With `exit`, the connections of the dead rank are closed. With `stop`, the connections stay open, but the rank sends
    no more heartbeats. Rank 0 is JAX's coordinator.
    """
    with start(
        tmp_path, worker(WORKER, "loop", 2, 1, "--timeout", TIMEOUT, "--death", death, "--victim", victim)
    ) as ranks:
        survivor = ranks[1 - victim]
        wait([survivor], limit=100)
        died = time_of_death(ranks[victim])
        assert died is not None, report(ranks)
        assert survivor.code == -signal.SIGABRT, report(ranks)
        assert "This most likely indicates that another task died" in survivor.output, report(ranks)
        assert survivor.ended < died + 4 * TIMEOUT, report(ranks)


def test_rank_that_is_alive_but_stuck(tmp_path):
    """The time limit of collectives ends the wait for a stuck rank that still sends heartbeats."""
    limit = 2 * TIMEOUT
    commands = worker(WORKER, "loop", 2, 1, "--death", "stuck", "--victim", 1)
    with start(tmp_path, commands, f"--xla_cpu_collective_timeout_seconds={limit}") as ranks:
        wait(ranks, limit=100)
        stuck = time_of_death(ranks[1])
        assert stuck is not None, report(ranks)
        assert re.search(r"Gloo all-to-all failed: .* Timed out waiting", ranks[0].output), report(ranks)
        # Rank 0 is JAX's coordinator. When the coordinator ends, JAX aborts the other rank.
        assert [rank.code for rank in ranks] == [1, -signal.SIGABRT], report(ranks)
        assert max(rank.ended for rank in ranks) < stuck + 2 * limit, report(ranks)


@pytest.mark.parametrize("devices", [2, 3], ids=["as it is", "on a mesh that does not divide the grid"])
def test_documented_script(tmp_path, devices):
    after = (ROOT / PAGE).read_text().partition('title="power.py"')[2]
    printed = re.findall(r"^```text\n(.*?)^```", after, re.DOTALL | re.MULTILINE)[0]
    path = tmp_path / "script.py"
    path.write_text(scripts(PAGE)["power.py"].replace('"jax_num_cpu_devices", 2', f'"jax_num_cpu_devices", {devices}'))
    printed = printed.replace("4 devices", f"{2 * devices} devices")
    address = f"127.0.0.1:{free_port()}"
    with start(tmp_path, [[path, address, 2, rank] for rank in range(2)]) as ranks:
        wait(ranks, limit=100)
        assert [rank.code for rank in ranks] == [0, 0], report(ranks)
        assert printed in ranks[0].output, report(ranks)
