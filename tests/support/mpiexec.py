"""Helpers that run programs under `mpiexec`, for the tests of compiled kernels."""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import decompops as dops
import pytest

from compiling import FLAGS


HERE = Path(__file__).parent
PROBLEM = dops.MPI().problem() or (None if shutil.which("mpiexec") else "there is no `mpiexec`")
# If the kernels or `mpiexec` are missing, the tests are skipped, or fail if `DECOMPOPS_REQUIRE_MPI` is set.
NEEDED = pytest.mark.skipif(PROBLEM is not None and "DECOMPOPS_REQUIRE_MPI" not in os.environ, reason=str(PROBLEM))
IN_TURN = pytest.mark.xdist_group("mpiexec")  # These tests run one after the other.
MARKS = [NEEDED, IN_TURN, pytest.mark.timeout(600)]


# Now and then, `mpiexec` of Open MPI 5 itself prints this, and starts no rank.
_NOT_STARTED = "The PMIx server's listener thread failed to start"


@functools.cache
def launcher() -> list[str]:
    """Return `mpiexec` with the options that this machine needs."""
    version = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True).stdout
    named_so = "Open MPI" in version or "OpenRTE" in version  # Open MPI before version 5 calls itself "OpenRTE".
    return ["mpiexec", *(["--oversubscribe"] if named_so else [])]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a program on a rank."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    own |= {"PYTHONPATH": str(HERE), "XLA_FLAGS": FLAGS, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", **variables}
    # The empty value turns on Python's buffers. Without buffers, Python writes a line and its end separately.
    own |= {"PYTHONUNBUFFERED": ""}
    return own | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@contextmanager
def in_turn() -> Iterator[None]:
    """Let jobs run one after the other, even without `--dist loadgroup`: a waiting rank polls and so uses a core."""
    with open(Path(tempfile.gettempdir()) / f"decompops-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*command: str | Path, ranks: int, limit: float = 280, **variables: str) -> subprocess.CompletedProcess:
    """Run a Python program on every rank. If it takes longer than `limit`, fail with what the ranks printed."""
    start = functools.partial(
        subprocess.run,
        [*launcher(), "-n", str(ranks), sys.executable, *map(str, command)],
        env=environment(**{"STACKS_AFTER": str(0.9 * limit)} | variables),
        timeout=limit,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with in_turn():
        try:
            done = start()
            return start() if _NOT_STARTED in done.stdout else done
        except subprocess.TimeoutExpired as late:
            printed = (late.output or b"").decode(errors="replace")
            pytest.fail(f"{' '.join(late.cmd)} took more than {limit} s, and printed:\n{printed}", pytrace=False)
