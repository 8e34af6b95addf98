"""Ranks look for JAX's coordinator, and some of them have no way to it. Run `mpiexec -n 2 python networks.py`."""

import ctypes
import os
import re
import socket
import time
from collections.abc import Callable

import decompops as dops
import jax
import pytest
from decompops._backend.mpi import coordinator, reach
from mpi4py import MPI


WORLD = MPI.COMM_WORLD


def unknown(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def refused(*_, **__):
    raise ConnectionRefusedError(111, "Connection refused")


def connected_to_another(*_, **__):
    """Connect to a program that is not the coordinator."""
    ours, theirs = socket.socketpair()
    theirs.sendall(b"some other program")
    theirs.close()
    return ours


def silent(*_, **__):
    time.sleep(100)


def check(patch: pytest.MonkeyPatch, connect: Callable, pattern: str) -> None:
    """Assert that all ranks raise an error soon if the last rank connects with `connect`."""
    start = time.monotonic()
    if WORLD.rank == WORLD.size - 1:
        patch.setattr(socket, "create_connection", connect)
    with pytest.raises(RuntimeError, match=pattern):
        coordinator.addresses(WORLD)
    assert time.monotonic() - start < 20
    patch.undo()


def listening() -> set[str]:
    """Return the local addresses, in hexadecimal numbers, at which this process listens."""
    own = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            own |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{number}")))
        except OSError:  # The file has been closed.
            continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as lines:
            rows = [line.split() for line in lines][1:]
        addresses |= {row[1] for row in rows if row[3] == "0A" and row[9] in own}
    return addresses


def leave_network() -> bool:
    """Give the last rank a network without connections. Return False if the system does not allow this.

    Open connections stay open, and MPI connects ranks of one host through shared memory.
    """
    new_network = 0x40000000
    left = WORLD.rank < WORLD.size - 1 or ctypes.CDLL(None).unshare(new_network) == 0
    return WORLD.allreduce(left, MPI.LAND)


def main() -> None:
    patch = pytest.MonkeyPatch()
    host = re.escape(repr(socket.gethostname()))
    last = rf"decompops: rank {WORLD.rank}: .* JAX's coordinator.*: host {host} \(rank {WORLD.size - 1}\): it "
    other = ", and no other address"
    of_last = rf"host {host} \(rank {WORLD.size - 1}\): "
    check(patch, unknown, last + rf"does not know the name {host} \(Name or service not known\){other}")
    check(patch, refused, last + rf"cannot connect to {host} \(\[Errno 111\] Connection refused\){other}")
    check(patch, connected_to_another, of_last + f"another program answers at {host}, port")
    patch.setattr(reach, "LONGEST", 1)
    check(patch, silent, of_last + f"{host} does not answer within 1 s")
    patch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:http")
    check(patch, refused, r"\(rank 0\): `JAX_COORDINATOR_ADDRESS` must be address:port; got 'localhost:http'")
    patch.setenv("JAX_COORDINATOR_ADDRESS", "no-such-name.invalid")
    check(patch, refused, r"\(rank 0\): it does not know the name 'no-such-name.invalid'")
    before = listening()
    dops.MPI.initialize()
    jax.devices()
    loopback = re.compile("0100007F:|0{16}FFFF00000100007F:|0{24}01000000:")
    assert all(loopback.match(address) for address in listening() - before), listening() - before
    assert WORLD.rank > 0 or listening() - before
    patch.undo()
    if leave_network():
        with pytest.raises(RuntimeError, match=rf"host {host} \(rank {WORLD.size - 1}\): it "):
            coordinator.addresses(WORLD)
    print("reached", flush=True)


if __name__ == "__main__":
    main()
