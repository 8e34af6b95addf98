"""The end of a program that still writes in the background."""

import concurrent.futures.thread  # noqa: F401 - It registers the function that closes pools: see below.
import functools
import os
import threading
import traceback
from collections.abc import Callable

from .._common.say import flush, say


# The functions that wait for what the program still writes.
_UNFINISHED: set[Callable[[], None]] = set()


def begin(wait: Callable[[], None]) -> None:
    """Let the program call `wait` at its end, unless `end(wait)` is called before.

    If `wait` raises an error, the exit status of the program is 1.
    """
    _wait_at_exit()
    _UNFINISHED.add(wait)


def end(wait: Callable[[], None]) -> None:
    """Undo `begin(wait)`."""
    _UNFINISHED.discard(wait)


@functools.cache
def _wait_at_exit() -> None:
    def wait_for_all() -> None:
        failed = False
        for wait in list(_UNFINISHED):
            try:
                wait()
            except Exception:
                say(traceback.format_exc(), end="")
                failed = True
        if failed:
            flush()
            os._exit(1)

    # Functions of `atexit` come too late: Python closes its pools of threads before, and then orbax cannot complete a
    # checkpoint. Python has no public function that comes earlier. Its own pools use this private one, and the function
    # that was registered last is called first.
    threading._register_atexit(wait_for_all)  # type: ignore[attr-defined]
