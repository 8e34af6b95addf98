"""Tests on several hosts. Each process runs operators.py."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hosts
import mpiexec


WORKER = Path(__file__).with_name("operators.py")
pytestmark = mpiexec.MARKS


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def two(shared) -> Iterator[hosts.Cluster]:
    hosts.need()
    with mpiexec.in_turn(), hosts.cluster(2, shared) as cluster:
        yield cluster


def test_a_host_is_like_a_machine_of_its_own(two):
    """Each host has its own name, address, `/tmp`, `/dev/shm` and processes, and reaches the other host."""
    for host, other in ((two[0], two[1]), (two[1], two[0])):
        assert host.run("cat /proc/sys/kernel/hostname").strip() == host.name
        host.run("touch /tmp/mine /dev/shm/mine")
        assert re.search(rf"inet {host.address}/24 .*eth0", host.run("ip -oneline address"))
        assert host.run("ls /proc").split().count("1") == 1
        assert (host.folder / "mine").exists()
        assert host.run(f"getent hosts {other.name}").split() == [other.address, other.name]
    assert not (Path("/tmp") / "mine").exists()
    assert not (Path("/dev/shm") / "mine").exists()


def test_mpi(two, shared):
    """Two hosts with two ranks each: the ranks of a host share memory, and all operators and files are right."""
    with two.mpiexec(WORKER, "mpi", shared / "mpi", ranks=2) as job:
        assert job.wait(200) == 0, job.output
        assert job.output.count("operators agree") == 4, job.output
        assert job.output.count("all checks passed") == 4, job.output


def test_xla_over_gloo(two, shared):
    """Two hosts with one process each, and two devices in each process."""
    options = [WORKER, "xla", shared / "xla", "--address", f"{two[0].address}:8476", "--processes", 2, "--devices", 2]
    with two.python(two[0], *options, "--process", 0) as first, two.python(two[1], *options, "--process", 1) as second:
        assert [job.wait(200) for job in (first, second)] == [0, 0], first.output + second.output
        assert "host1, process 0: all checks passed" in first.output
        assert "host2, process 1: all checks passed" in second.output


def test_separate_file_systems(two):
    """Where hosts do not see the same files, snapshots and checkpoints raise an error on every rank."""
    with two.mpiexec(WORKER, "mpi", "/tmp/run", "--separate", ranks=2) as job:
        assert job.wait(100) == 0, job.output
        assert job.output.count("refused") == 4, job.output


def test_report(two, shared):
    """The report of a job on two hosts counts the processes of both."""
    command = ("-m", "decompops", "report", "--backend", "mpi", "--out", shared, "--name", "two")
    command += ("--sections", "hardware", "--minutes", "1", "--devices", "1")
    with two.mpiexec(*command) as job:
        assert job.wait(200) == 0, job.output
    hardware = json.loads((shared / "two.json").read_text())["sections"]["hardware"]["data"]
    assert (hardware["processes"], hardware["nodes"]) == (2, 2)
