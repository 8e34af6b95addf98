"""Lets Python functions and the kernels over MPI handle the same signals."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from ..native.library import MpiKernels


_watching: list[MpiKernels] = []  # The kernels that print a line when a signal ends this rank.


def watch(kernels: MpiKernels) -> None:
    """From now on, let `kernels` say in which operator this rank is when a signal ends it."""
    _watching.append(kernels)
    kernels.call("watch_signals")


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None], numbers: tuple[int, ...]) -> Iterator[None]:
    """Let a Python function handle signals inside a `with` block.

    Python's own functions replace the handler of the kernels, so the kernels put it back in front of Python's. It calls
    the handler that was there before.
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    _watch_again()
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        _watch_again()


def _watch_again() -> None:
    for kernels in _watching:
        kernels.call("watch_sigterm")
