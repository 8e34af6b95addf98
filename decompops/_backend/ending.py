"""How ranks end: together, with few words, and before MPI does."""

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

import jax

from .library import MpiKernels


_SPEAKERS = 4  # so many ranks speak where all fail
# Seconds until a rank that has failed ends the job. The others say in which operator they waited for it once they have
# withdrawn their messages, which takes two seconds at most (ffi/mpi/team_messages.cc).
_LAST_WORDS = 3
# How errors begin that name the rank and the operator, and need no traceback (ffi/mpi/handler.cc).
_NAMED_ERROR = re.compile(r"decompops: rank \d+: (.*)", re.DOTALL)
# JAX puts a whole traceback into the text of this error.
_CALLBACK_ERROR = re.compile(r".*callback.*: Traceback \(most recent call last\):", re.IGNORECASE)


def end_together(communicator: Any, kernels: MpiKernels | None, traces: bool) -> Callable[[], None]:
    """From here on, end the job where a rank raises an exception that nothing catches, in any thread.

    `kernels` tell the other ranks why. With `traces`, every rank prints its whole traceback.

    Returns what ends a process normally. Register it after JAX's own: then it is called before.
    """
    process, child_status = os.getpid(), 0
    rank, size = communicator.rank, communicator.size  # which MPI does not say any more once it is finalised
    report_exception, report_thread = sys.excepthook, threading.excepthook

    def end(kind: type[BaseException], value: BaseException, trace: TracebackType | None, report: Callable) -> None:
        nonlocal child_status
        if os.getpid() != process:
            child_status = 1
        if os.getpid() != process or size == 1:
            report()
            return
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
        if line is not None and not silent:
            sys.stderr.write(f"{line}\n  (traceback: {_keep(kind, value, trace, rank)})\n")
        elif not silent:
            sys.stderr.write(f"decompops: rank {rank} ends the job:\n")
            report()
        sys.stdout.flush()
        sys.stderr.flush()
        # Rank 0 leaves it to the others to end the job, if they do: where JAX's coordinator ends first, JAX ends the
        # others.
        time.sleep(2 * _LAST_WORDS if rank == 0 and jax.distributed.is_initialized() else _LAST_WORDS)
        _end_job(communicator)

    def on_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        end(kind, value, trace, lambda: report_exception(kind, value, trace))

    def on_thread_exception(args: Any) -> None:
        if args.exc_type is not SystemExit:  # which ends the thread alone
            end(args.exc_type, args.exc_value, args.exc_traceback, lambda: report_thread(args))

    def on_exit() -> None:
        if os.getpid() == process:
            if kernels is not None:
                kernels.call("leave")
            return
        # A forked child has the MPI and JAX of its parent, but not their threads. What these do at the end of a process
        # would wait for the threads, or end the parent's job. Python does not say which status it is about to end with.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(child_status)

    sys.excepthook = on_exception
    threading.excepthook = on_thread_exception
    return on_exit


def _is_repeated(kernels: MpiKernels, reason: str) -> bool:
    """Whether a rank below this one fails for the same reason. Programs with an error raise it on all ranks."""
    return any(kernels.is_repeated(reason) or time.sleep(0.01) for _ in range(100))


def _line(value: BaseException, reason: str, rank: int) -> str | None:
    """What the user gets to see of an error whose traceback adds nothing; `None` for another one."""
    if named := _NAMED_ERROR.search(str(value)):
        return named[0]
    if _CALLBACK_ERROR.match(str(value)):  # JAX has logged the traceback within the callback
        return f"decompops: rank {rank} ends the job: {reason}, in a callback of JAX"
    return None


def _reason(kind: type[BaseException], value: BaseException) -> str:
    """An error in one line, for the other ranks. Of a chain of errors it is the first one."""
    lines = str(value).splitlines() or [""]
    if first := re.search(r".*(rank \d+ gave up: .*)", lines[0]):
        return first[1]
    if named := _NAMED_ERROR.search(lines[0]):
        return named[1]
    if _CALLBACK_ERROR.match(str(value)):
        errors = [line for line in lines[1:] if re.match(r"\w[\w.]*(Error|Exception): ", line)]
        return errors[-1] if errors else lines[0]
    return f"{kind.__name__}: {lines[0]}"


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
