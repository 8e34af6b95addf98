"""How the system asks a program to end, and how its processes agree on it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


# What a queue sends: when a job must end, and some time before that (Slurm's `--signal=USR1@300`).
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Request:
    """Whether this process was asked to end, and by which signal."""

    number: int = 0


@contextmanager
def listening() -> Iterator[Request]:
    """Note a signal of the queue, instead of ending at once.

    Does nothing outside of the main thread, where Python allows no handlers.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, _: FrameType | None) -> None:
        request.number = number

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
