"""Prints what the program can do without. If the disk with the log is full or the terminal is gone, the text is lost.

An error would end a run that has not been saved yet. If only one process raised it, the others would wait.
"""

import sys
from contextlib import suppress
from typing import Any


_LOST = OSError, ValueError, AttributeError  # A closed stream raises `ValueError`. `None` has no attributes.


def say(text: str, end: str = "\n") -> None:
    """Print a text to `sys.stderr`."""
    Said(sys.stderr).write(f"{text}{end}")


def flush() -> None:
    """Write what the program has printed before, because `os._exit` does not."""
    for stream in (sys.stdout, sys.stderr):
        Said(stream).flush()


class Said:
    """A stream like `stream`, whose methods raise no errors. `stream` may be closed, or `None`."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        with suppress(*_LOST):
            return self._stream.isatty()
        return False

    def write(self, text: str) -> int:
        """Write a text at once."""
        with suppress(*_LOST):
            self._stream.write(text)
        self.flush()
        return len(text)

    def flush(self) -> None:
        """Write what is still in memory."""
        with suppress(*_LOST):
            self._stream.flush()
