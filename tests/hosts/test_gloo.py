"""Tests of faults between two hosts with `XLA()` over Gloo: what JAX prints, and the time to the end of the job."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hosts
import mpiexec


WORKER = Path(__file__).with_name("gloo.py")
HEARTBEAT = 10  # The heartbeat timeout of the processes, in seconds.
pytestmark = [pytest.mark.sweep, mpiexec.IN_TURN]


@pytest.fixture
def two() -> Iterator[hosts.Cluster]:
    hosts.need()
    with mpiexec.in_turn(), hosts.cluster(2) as cluster:
        yield cluster


def run(two: hosts.Cluster, seconds: float, fault: Callable[[], object]) -> tuple[list[int | None], list[str], float]:
    """Let a fault happen while both processes transform. Return statuses, outputs and seconds from the fault."""
    options = [WORKER, f"{two[0].address}:8476", HEARTBEAT, seconds]
    with two.python(two[0], *options, 0) as first, two.python(two[1], *options, 1) as second:
        jobs = (first, second)
        for job in jobs:
            job.wait_for("transforming")
        start = time.monotonic()
        fault()
        statuses = [job.wait(60) for job in jobs]
        return statuses, [job.output for job in jobs], time.monotonic() - start


def test_host_that_dies(two):
    """The other process prints the address of the lost host, and ends after the heartbeat timeout."""
    (status, _), (output, _), seconds = run(two, 100, two[1].die)
    assert status not in (0, None), output
    assert seconds < 3 * HEARTBEAT
    assert re.search(rf"Gloo .* failed: .*{re.escape(two[1].address)}", output), output
    assert "heartbeat timeout" in output, output


def test_link_that_is_cut(two):
    """Both processes end after the heartbeat timeout."""
    statuses, outputs, seconds = run(two, 100, two[1].cut)
    assert not {0, None} & set(statuses), outputs
    assert seconds < 3 * HEARTBEAT
    assert re.search(r"stopped sending heartbeats\):\s+1$", outputs[0], re.MULTILINE), outputs[0]
    assert "distributed service detected fatal errors" in outputs[1]


def test_link_that_is_cut_and_comes_back(two):
    """After less than the heartbeat timeout, the processes continue with right results, and print nothing about it."""

    def fault():
        two[1].cut()
        time.sleep(3)
        two[1].join()

    statuses, outputs, seconds = run(two, 10, fault)
    assert statuses == [0, 0], outputs
    assert seconds < 60
    assert all(output.count("ended") == 1 for output in outputs)
