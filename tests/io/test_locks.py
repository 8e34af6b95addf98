"""Tests that a lock on a folder belongs to one thread of one process."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from decompops import io
from decompops._common.ownership import locked


def test_two_threads_do_not_save_in_one_folder(tmp_path):
    """A thread is refused while another thread saves in the folder. A thread that has ended does not block it."""
    with ThreadPoolExecutor(1) as pool:
        checkpoints = pool.submit(io.Checkpoints, tmp_path).result()
        pool.submit(checkpoints.save, 1, {"i": 1}).result()
        checkpoints.save(2, {"i": 2})  # Threads may share one object.
        checkpoints.wait()
        with io.Checkpoints(tmp_path) as other:
            assert other.restore({"i": 0}) == {"i": 2}
            with pytest.raises(BlockingIOError, match="`folder` must be used by one thread at a time"):
                other.save(3, {"i": 3})
    with checkpoints, io.Checkpoints(tmp_path) as other:
        other.save(3, {"i": 3})


FORKING = """
import os, sys
from pathlib import Path
from decompops import io
from decompops._common.ownership import locked, mark, new_identity
folder = Path(sys.argv[1])
if sys.argv[2] == "checkpoints":
    checkpoints = io.Checkpoints(folder)
    checkpoints.claim()
else:
    mark(folder, "a snapshot", new_identity())
    lock = locked(folder, alone=False)
if os.fork():
    print("forked", flush=True)
sys.stdin.readline()
os._exit(0)
"""


@pytest.mark.parametrize("what", ["checkpoints", "snapshot"])
def test_a_forked_child_does_not_keep_a_lock(tmp_path, what):
    """A killed program does not block the folder, although its child lives on."""
    command = [sys.executable, "-W", "ignore", "-c", FORKING, tmp_path, what]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as parent:
        assert parent.stdout.readline() == "forked\n"
        with pytest.raises(BlockingIOError):
            locked(tmp_path, alone=True)
        parent.kill()
        parent.wait()
        locked(tmp_path, alone=True).close()
        parent.stdin.close()  # The child ends.
