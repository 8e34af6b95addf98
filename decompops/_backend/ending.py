"""How ranks end: together, with few words, and before MPI does."""

import atexit
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any


_SPEAKERS = 4  # so many ranks speak where all fail
# What errors of the compiled kernels begin with (ffi/mpi/handler.cc).
_KERNEL_ERROR = re.compile(r"decompops: rank \d+: .*", re.DOTALL)


def end_together(communicator: Any, give_up: Callable[[str], None], leave: Callable[[], None]) -> None:
    """End the job where a rank raises an exception that nothing catches, in any thread; before the end, `leave`.

    `give_up` tells the other ranks why.
    """
    process, child_status = os.getpid(), 0
    rank, size = communicator.rank, communicator.size  # which MPI does not say any more once it is finalised
    report_exception, report_thread = sys.excepthook, threading.excepthook

    def end(kind: type[BaseException], value: BaseException, trace: TracebackType | None, report: Callable) -> None:
        nonlocal child_status
        if os.getpid() != process:
            child_status = 1
        found = _KERNEL_ERROR.search(str(value))
        if not found or size == 1:
            report()
        elif rank < _SPEAKERS:
            sys.stderr.write(f"{found[0]}\n  (traceback: {_keep(kind, value, trace, rank)})\n")
        if os.getpid() != process or size == 1:
            return
        give_up(f"{kind.__name__}: {_in_one_line(str(value))}")
        sys.stdout.flush()
        sys.stderr.flush()
        # The others need some time to say in which operator they waited for this rank. Rank 0 leaves it to them to end
        # the job, if they do: where JAX's coordinator ends first, JAX ends the others, with many words.
        time.sleep(1 if rank > 0 else 5)
        _end_job(communicator)

    def on_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        end(kind, value, trace, lambda: report_exception(kind, value, trace))

    def on_thread_exception(args: Any) -> None:
        if args.exc_type is not SystemExit:  # which ends the thread alone
            end(args.exc_type, args.exc_value, args.exc_traceback, lambda: report_thread(args))

    def on_exit() -> None:
        if os.getpid() == process:
            leave()
            return
        # A forked child has the MPI and JAX of its parent, but not their threads. What these do at the end of a process
        # would wait for the threads, or end the parent's job. Python does not say which status it is about to end with.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(child_status)

    sys.excepthook = on_exception
    threading.excepthook = on_thread_exception
    atexit.register(on_exit)  # after JAX's own, and so called before


def _in_one_line(text: str) -> str:
    """The text of an error for the other ranks. JAX puts a whole traceback into that of a failed callback."""
    lines = text.splitlines() or [""]
    errors = [line for line in lines[1:] if re.match(r"\w[\w.]*(Error|Exception): ", line)]
    return errors[-1] if errors else lines[0]


def _keep(kind: type[BaseException], value: BaseException, trace: TracebackType | None, rank: int) -> Path:
    """Write a traceback to a file: where all ranks fail for the same reason, one line of each says enough."""
    path = Path(tempfile.gettempdir()) / f"decompops-{os.getpid()}-rank{rank}.txt"
    path.write_text("".join(traceback.format_exception(kind, value, trace)))
    return path


def _end_job(communicator: Any) -> None:
    """End this process, and the job with it.

    `mpiexec` of Open MPI and MPICH end the job where a process ends like this, and say so in fewer lines than of
    `MPI_Abort`. Other launchers may let the other processes go on.
    """
    if os.environ.get("PMIX_NAMESPACE", "").startswith("prterun") or "HYDI_CONTROL_FD" in os.environ:
        os._exit(1)
    communicator.Abort(1)
