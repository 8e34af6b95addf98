"""Tests of faults between two hosts (docs/cluster_hosts.md): what the ranks print, and when the job ends."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hosts
import mpiexec


WORKER = Path(__file__).with_name("faulty.py")
WAITED = r"decompops: rank 0 has waited \d+ s in FFT3D .* for rank 1 on host2 \("
# Open MPI's launcher then notices within ten seconds that it does not reach a host. Its default is many minutes.
NOTICES = {f"PRTE_MCA_oob_tcp_keepalive_{name}": value for name, value in zip(("time", "intvl", "probes"), "313")}
pytestmark = mpiexec.MARKS


@pytest.fixture
def two() -> Iterator[hosts.Cluster]:
    hosts.need()
    with mpiexec.in_turn(), hosts.cluster(2) as cluster:
        yield cluster


def test_host_whose_name_the_others_do_not_know(two):
    """The coordinator then gets the address of an interface, not of one that leads nowhere."""
    two[0].run("ip link add other type bridge", "ip addr add 10.66.0.1/24 dev other", "ip link set other up")
    two[1].know({"host2": two[1].address})
    two[1].run("ip route add 10.66.0.0/24 via 10.77.0.99")  # Nobody has this address, so nobody answers.
    with two.mpiexec(WORKER, "choose") as job:
        assert job.wait(100) == 0, job.output
        assert "rank 1 started on host2" in job.output


def test_host_whose_own_name_is_a_loopback_address(two):
    """All ranks raise an error that names the host and the address."""
    two[0].know({"host1": "127.0.1.1"})
    with two.mpiexec(WORKER, "start") as job:
        assert job.wait(100) not in (0, None), job.output
        line = r"^decompops: rank {}: the name of each host must .*: host 'host2' \(rank 1\): it cannot connect to "
        line += r"'127\.0\.1\.1' \(\[Errno 111\] .*\), which the name 'host1' stands for on host 'host1'\. Correct "
        for rank in (0, 1):
            assert re.search(line.format(rank), job.output, re.MULTILINE), job.output
        assert "started" not in job.output


def test_link_that_is_cut_and_comes_back_and_is_slow(two):
    """The ranks print for whom they wait, and then continue with right results."""
    with two.mpiexec(WORKER, "transform", SECONDS="8", LIMIT="60") as job:
        job.wait_for("transforming")
        two[1].cut()
        job.wait_for("has waited")
        two[1].join()
        two[1].limit("20mbit")
        assert job.wait(100) == 0, job.output
        assert re.search(WAITED, job.output), job.output
        assert job.output.count("ended") == 2


def test_link_that_is_cut(two):
    """The rank that still has a network prints for which rank and host it waits, and the launcher ends the job."""
    with two.mpiexec(WORKER, "transform", SECONDS="100", LIMIT="60", **NOTICES) as job:
        job.wait_for("transforming")
        two[1].cut()
        assert job.wait(50) is not None, job.output
        assert re.search(WAITED, job.output), job.output
        assert "host2" in job.output.partition("PRTE has lost")[2], job.output


def test_rank_that_gives_up(two):
    """After `limit`, the rank that still has a network raises an error that says where to look."""
    with two.mpiexec(WORKER, "transform", SECONDS="100", LIMIT="3") as job:
        job.wait_for("transforming")
        two[1].cut()
        job.wait_for("gave up", limit=30)
        line = (
            r"rank 0: .*: gave up after \d+ s of waiting for rank 1 on host2; .*look whether this host and its network"
        )
        assert re.search(line, job.output), job.output


@pytest.mark.sweep
def test_full_shared_memory(two):
    """Open MPI then moves data without its files in `/dev/shm`, and names the host."""
    for host in two.hosts:
        host.run("mount -o remount,size=4k /dev/shm")
    with two.mpiexec(WORKER, "transform", ranks=2, SECONDS="1", LIMIT="60") as job:
        assert job.wait(100) == 0, job.output
        assert job.output.count("ended") == 4
        assert re.search(r"Local host: +host[12]", job.output), job.output


def test_host_that_dies(two):
    """The launcher names the host, and ends the job."""
    with two.mpiexec(WORKER, "transform", SECONDS="100", LIMIT="60") as job:
        job.wait_for("transforming")
        two[1].die()
        assert job.wait(60) is not None, job.output
        assert "host2" in job.output.partition("transforming")[2], job.output
