"""Memory that ranks share. Run `mpiexec -n N python sharing.py [STARTS]`.

The first to N-th ranks of the job start STARTS times. In the meantime, a Python thread opens files.
"""

import contextlib
import os
import sys
import threading

import decompops as dops
import pytest
from jax.experimental import multihost_utils
from mpi4py import MPI


def open_files(ended: threading.Event, lost: list[str]) -> None:
    """Open and close files until `ended` is set. Store what has become of files that someone else has closed."""
    device = os.stat(os.devnull).st_rdev
    opened: list[int] = []
    while not ended.is_set():
        opened.append(os.open(os.devnull, os.O_RDONLY))
        if len(opened) > 30:
            check(opened.pop(0), device, lost)
    for number in opened:
        check(number, device, lost)


def check(number: int, device: int, lost: list[str]) -> None:
    try:
        if os.fstat(number).st_rdev == device:
            os.close(number)
        else:
            lost.append(f"{number} is {os.readlink(f'/proc/self/fd/{number}')}")
    except OSError as error:
        lost.append(f"{number}: {error}")


@contextlib.contextmanager
def opening_files():
    """Open files in a thread inside a `with` block, and assert that none is lost."""
    ended, lost = threading.Event(), []
    thread = threading.Thread(target=open_files, args=(ended, lost))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert lost == [], lost


def main() -> None:
    world, starts = MPI.COMM_WORLD, int((sys.argv[1:] or ["1"])[0])
    with opening_files():
        dops.MPI.initialize()
        assert_shared("world", world.size)
        for ranks in range(1, world.size + 1):
            part = world.Split(int(world.rank < ranks), world.rank)
            for start in range(starts if world.rank < ranks else 0):
                dops.MPI.initialize(part.Dup(), key=f"{ranks} {start}")
                assert_shared(f"{ranks} {start}", ranks)
            # The other ranks wait without MPI's collectives, which would keep their cores busy.
            multihost_utils.sync_global_devices(str(ranks))
    dops.MPI.initialize(world.Dup(), key="messages", share_memory=False)
    found = dops.MPI("messages").counters()
    assert (found.sharing, found.not_sharing) == (0, "`MPI.initialize(share_memory=False)` was called"), found
    if world.size > 1:
        with pytest.raises(ValueError, match=r"all ranks must pass .* it has `share_memory` True instead of False[.;]"):
            dops.MPI.initialize(world.Dup(), key="different", share_memory=world.rank > 0)
    print("shared", flush=True)


def assert_shared(key: str, ranks: int) -> None:
    found = dops.MPI(key).counters()
    assert (found.sharing, found.not_sharing) == (ranks, ""), (key, found)


if __name__ == "__main__":
    main()
