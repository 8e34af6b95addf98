"""Ends all ranks of a job together, with a short message, before MPI is finalized."""

import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax

from ..._common.say import flush
from ..native.library import MpiKernels


_SPEAKERS = 4  # If all ranks fail, only this many of them print their errors.
# Seconds between the failure of a rank and the end of the job. In this time, the other ranks cancel their messages, in
# two seconds at most, and then print the operator in which they waited (ffi/mpi/transfer.cc, ffi/mpi/failures.cc).
_LAST_WORDS = 3
# Errors of ffi/mpi/handler.cc begin like this. They name the rank and the operator, so they need no traceback.
_NAMED_ERROR = re.compile(r"decompops: rank \d+: (.*)", re.DOTALL)
# JAX includes the whole traceback in the message of this error.
_CALLBACK_ERROR = re.compile(r".*callback.*: Traceback \(most recent call last\):", re.IGNORECASE)


def end_together(communicator: Any, kernels: MpiKernels | None, traces: bool) -> Callable[[], None]:
    """From now on, end the whole job when any thread of a rank raises an uncaught exception.

    `kernels` report the reason to the other ranks. With `traces`, every rank prints its whole traceback.

    Returns a function to call at the normal end of the process. Register it with `atexit` after JAX has registered its
    own functions. It is then called before JAX's functions.
    """
    process, child_status = os.getpid(), 0
    rank, size = communicator.rank, communicator.size  # After MPI is finalized, it cannot tell these numbers.
    report_exception, report_thread = sys.excepthook, threading.excepthook

    def end(kind: type[BaseException], value: BaseException, trace: TracebackType | None, report: Callable) -> None:
        nonlocal child_status
        if os.getpid() != process:
            child_status = 1
        if os.getpid() != process or size == 1:
            report()
            return
        try:
            tell(kind, value, trace, report)
        finally:  # The job ends, even if nothing can be written.
            # Rank 0 runs JAX's coordinator. If the coordinator ends first, JAX ends the other ranks and prints more
            # errors. Rank 0 therefore waits longer, so that another rank ends the job.
            time.sleep(2 * _LAST_WORDS if rank == 0 and jax.distributed.is_initialized() else _LAST_WORDS)
            _end_job(communicator)

    def tell(kind: type[BaseException], value: BaseException, trace: TracebackType | None, report: Callable) -> None:
        """Tell the other ranks and the user about an error."""
        reason = _reason(kind, value)
        if kernels is not None:
            kernels.give_up(reason)
        if traces:
            silent = False
        elif _NAMED_ERROR.search(str(value)):
            silent = rank >= _SPEAKERS
        else:
            silent = rank > 0 and kernels is not None and _is_repeated(kernels, reason)
        line = None if traces else _line(value, reason, rank)
        kept = None if line is None or silent else _keep(kind, value, trace, rank)
        if kept is not None:
            sys.stderr.write(f"{line}\n  (traceback: {kept})\n")
        elif not silent:
            sys.stderr.write(f"{line or f'decompops: rank {rank} ends the job:'}\n")
            report()
        sys.stdout.flush()
        sys.stderr.flush()

    def on_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        end(kind, value, trace, lambda: report_exception(kind, value, trace))

    def on_thread_exception(args: Any) -> None:
        if args.exc_type is not SystemExit:  # `SystemExit` ends only the thread.
            end(args.exc_type, args.exc_value, args.exc_traceback, lambda: report_thread(args))

    def on_exit() -> None:
        if os.getpid() == process:
            if kernels is not None:
                kernels.call("leave")
            return
        # A forked child has the state of its parent's MPI and JAX, but not their threads. The exit functions of MPI and
        # JAX would wait for these threads, or end the parent's job. So the child ends here, before these functions run.
        # Python does not tell this function the exit status. `end` has set `child_status` to 1 if the child failed.
        flush()
        os._exit(child_status)

    sys.excepthook = on_exception
    threading.excepthook = on_thread_exception
    return on_exit


def _is_repeated(kernels: MpiKernels, reason: str) -> bool:
    """Return whether a lower rank fails for the same reason: an error in the program usually occurs on all ranks."""
    return any(kernels.is_repeated(reason) or time.sleep(0.01) for _ in range(100))


def _line(value: BaseException, reason: str, rank: int) -> str | None:
    """Return the one line to print for an error whose traceback adds nothing; `None` for all other errors."""
    if named := _NAMED_ERROR.search(str(value)):
        return named[0]
    if _CALLBACK_ERROR.match(str(value)):  # JAX has already logged the traceback of the callback.
        return f"decompops: rank {rank} ends the job: {reason}, in a callback of JAX"
    return None


def _reason(kind: type[BaseException], value: BaseException) -> str:
    """Return the error in one line, for the other ranks. If another rank's failure caused it, return that failure."""
    lines = str(value).splitlines() or [""]
    if first := re.search(r".*(rank \d+ gave up: .*)", lines[0]):
        return first[1]
    if named := _NAMED_ERROR.search(lines[0]):
        return named[1]
    if _CALLBACK_ERROR.match(str(value)):
        errors = [line for line in lines[1:] if re.match(r"\w[\w.]*(Error|Exception): ", line)]
        return errors[-1] if errors else lines[0]
    return f"{kind.__name__}: {lines[0]}"


def _keep(kind: type[BaseException], value: BaseException, trace: TracebackType | None, rank: int) -> str | None:
    """Write a traceback to a new file and return its path. The terminal then shows only one line for each rank.

    Return `None` if no file can be written. Other users of the machine may neither read the file nor choose its path.
    """
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"decompops-rank{rank}-", suffix=".txt", delete=False, errors="replace"
        ) as file:
            file.write("".join(traceback.format_exception(kind, value, trace)))
    except OSError:
        return None
    return file.name


def _end_job(communicator: Any) -> None:
    """End this process and the whole job.

    If one process exits with an error, the `mpiexec` of Open MPI and of MPICH end the job. They then print fewer lines
    than after `MPI_Abort`. Other launchers may not end the job, so with these launchers `MPI_Abort` ends it.
    """
    if os.environ.get("PMIX_NAMESPACE", "").startswith("prterun") or "HYDI_CONTROL_FD" in os.environ:
        os._exit(1)
    communicator.Abort(1)
