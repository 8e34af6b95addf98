"""Progress on stderr: what a command is doing while it compiles or times programs."""

import importlib.util
import sys
import threading
from types import TracebackType
from typing import Any, Protocol


# Seconds between two plain lines.
INTERVAL = 10.0


class _Display(Protocol):
    def show(self, done: int, text: str) -> None: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...


class Progress:
    """Show on stderr what a command is doing, and how many of its parts are done.

    If rich is installed, a terminal shows a single line. This line changes only when a method below is called, because
    a moving display would disturb the programs that are timed. Without rich, and in pipes and files, a new line is
    printed every ten seconds, so a short command prints no line.

    **Arguments:**

    - `command`: the name of the command, at the start of plain lines.
    - `total`: the number of parts.
    - `quiet`: whether to show nothing.
    """

    def __init__(self, command: str, total: int, *, quiet: bool = False):
        self._command, self._total, self._quiet = command, total, quiet
        self._done, self._part = -1, ""
        self._display: _Display | None = None

    def __enter__(self) -> "Progress":
        if not self._quiet and sys.stderr is not None:
            self._display = _terminal(self._total) or _Lines(self._command, self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.close()

    def part(self, text: str) -> None:
        """Start the next part."""
        self._done, self._part = self._done + 1, text
        self._show(text)

    def step(self, text: str) -> None:
        """Start a step of the current part."""
        self._show(f"{self._part}: {text}" if self._part else text)

    def clear(self) -> None:
        """Remove the line from the terminal, before other text is printed."""
        if self._display is not None:
            self._display.clear()

    def _show(self, text: str) -> None:
        if self._display is not None:
            self._display.show(max(self._done, 0), text)


class _Lines:
    """Plain lines at intervals. A separate thread prints the lines, even while a program compiles for minutes."""

    def __init__(self, command: str, total: int):
        self._command, self._total = command, total
        self._text = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._print, name="decompops progress", daemon=True)
        self._thread.start()

    def show(self, done: int, text: str) -> None:
        self._text = f"{self._command}: {done + 1} of {self._total}: {text}"

    def clear(self) -> None:
        """Do nothing: plain lines stay."""

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _print(self) -> None:
        while not self._closed.wait(INTERVAL):
            try:
                if self._text:
                    print(self._text, file=sys.stderr, flush=True)
            except (OSError, ValueError):  # The reader of stderr has ended, or stderr is closed.
                return


def _terminal(total: int) -> _Display | None:
    """Return a display for the terminal, or `None` if stderr is not a terminal or rich is not installed."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return None if console.is_dumb_terminal else _Bar(console, total)


class _Bar:
    """A display of one line, drawn by rich: a bar, the number of parts, and a text."""

    def __init__(self, console: Any, total: int):
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn

        self._escape = escape
        text = TextColumn("{task.description}")
        self._bar = Bar(BarColumn(16), MofNCompleteColumn(), text, console=console, auto_refresh=False, transient=True)
        self._task = self._bar.add_task("", total=total)

    def show(self, done: int, text: str) -> None:
        self._bar.start()
        self._bar.update(self._task, completed=done, description=self._escape(text), refresh=True)

    def clear(self) -> None:
        self._bar.stop()

    def close(self) -> None:
        self._bar.stop()
