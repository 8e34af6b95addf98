"""Records the signals with which a batch system asks a program to end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .._backend.mpi.signals import handled


# A batch system sends SIGTERM when a job must end. Some time before, Slurm sends SIGUSR1 (`--signal=USR1@300`) and LSF
# sends SIGUSR2 (`-wa USR2 -wt 5`).
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Request:
    """The number of the signal that asked this process to end, or zero."""

    number: int = 0


@contextmanager
def listening() -> Iterator[Request]:
    """Store a signal of the batch system in a `Request`. The program ends only when the `with` block is done.

    Outside the main thread, Python allows no signal handlers, so signals keep their usual effect.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, _: FrameType | None) -> None:
        request.number = number

    with handled(note, SIGNALS):
        yield request
    if request.number:  # The signal came after the last exchange of signals between the processes.
        raise SystemExit(128 + request.number)
