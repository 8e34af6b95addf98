"""Tests of the start of JAX's coordinator, and of the choice of its address, in one process."""

import socket
import sys
import threading
import types

import jax
import pytest
from decompops._backend.mpi import coordinator, launch, reach


@pytest.mark.parametrize(
    ("problems", "chosen"),
    [
        ([[None, None]], 0),
        ([[None, None], ["unknown", None]], 1),  # Another host does not know the name of rank 0's host.
        ([[None, None, None], [None, "refused", None], [None, "refused", None]], 0),
        ([[None, None, None], ["unknown", "refused", None], ["unknown", None, "refused"]], 1),  # None reaches all.
        ([[None, None], ["unknown", "refused"]], 0),
    ],
)
def test_address_that_most_hosts_reach(problems, chosen):
    assert coordinator.best(problems) == chosen


def test_attempts():
    """Each address is tried on its own, and only the listener that was asked for counts."""
    listener, other = reach.Listener("127.0.0.1", 0, 1), reach.Listener("", 0, 1)
    try:
        names = ["127.0.0.1", "no-such-name.invalid", "::ffff:127.0.0.1"]
        attempts = reach.Attempts(names, listener.port, listener.token)
        attempts.wait()
        assert [problem is None for problem in attempts.problems] == [True, False, True]
        assert "it does not know the name 'no-such-name.invalid'" in str(attempts.problems[1])
        attempts = reach.Attempts(["127.0.0.1"], other.port, listener.token)
        attempts.wait()
        assert attempts.problems == [f"another program answers at '127.0.0.1', port {other.port}"]
    finally:
        listener.close()
        other.close()
    attempts = reach.Attempts(["127.0.0.1"], listener.port, listener.token)
    attempts.wait()
    assert "it cannot connect to '127.0.0.1' ([Errno 111] Connection refused)" in str(attempts.problems[0])


def test_name_server_that_does_not_answer(monkeypatch):
    """An attempt has a time limit, and does not delay the others."""
    look_up, waiting = socket.getaddrinfo, threading.Event()

    def slow(host, *arguments, **options):
        if host == "slow.invalid":
            waiting.wait(20)
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    listener = reach.Listener("", 0, 1)
    attempts = reach.Attempts(["slow.invalid", "127.0.0.1"], listener.port, listener.token)
    attempts.wait(0.5)
    assert attempts.problems == ["'slow.invalid' does not answer within 30 s", None]
    waiting.set()
    attempts.wait()
    listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the addresses")
def test_own_addresses():
    """The addresses include the one from which this host would send to another network, and no loopback address."""
    found = reach.own_addresses()
    assert not [one for one in found if one.startswith(("127.", "fe80:")) or one == "::1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))  # No packet is sent.
        except OSError:
            pytest.skip("this host has no network")
        assert any_socket.getsockname()[0] in found


@pytest.mark.parametrize("wrong", ["localhost:http", "localhost:70000", "[::1:80"])
def test_wrong_address(plain, wrong):
    with pytest.raises(ValueError, match="`coordinator` must be address:port; got "):
        coordinator.check(wrong)


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), OSError("no address")])
def test_a_host_that_does_not_know_its_own_name(monkeypatch, error):
    """XLA's collectives need the name also if all ranks run on one host."""

    def fail():
        raise error

    communicator = types.SimpleNamespace(rank=0, size=2, allgather=lambda own: [own, None])
    coordinator._check_names(communicator, True)
    monkeypatch.setattr(reach, "address_of_own_name", fail)
    with pytest.raises(RuntimeError, match=rf"its own name '{socket.gethostname()}' .*127\.0\.0\.1 will do"):
        coordinator._check_names(communicator, True)


def test_distributed_has_been_started(monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    limits = launch.Limits(timeout=1.0, limit=None, heartbeat=1.0)
    with pytest.raises(RuntimeError, match=r"Remove the call of `jax\.distributed\.initialize`"):
        launch._start_jax(types.SimpleNamespace(size=2), "cpu", limits, None, None)


def test_wrong_type(plain):
    with pytest.raises(TypeError, match=r'`coordinator` must be a string "address:port"; got 8476'):
        coordinator.check(8476)
