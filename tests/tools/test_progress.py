"""Tests of progress on stderr: a line every few seconds in a log, one changing line on a terminal, or nothing."""

import io
import os
import pty
import re
import subprocess
import sys
import threading

import pytest
from decompops.tools.commands import progress
from decompops.tools.commands.progress import Progress


class Stream(io.StringIO):
    """A replacement for stderr that sets the event `came` when something has been printed."""

    def __init__(self):
        super().__init__()
        self.came = threading.Event()

    def flush(self):
        super().flush()
        if self.getvalue():
            self.came.set()


def replaced(monkeypatch) -> Stream:
    """Replace stderr by a `Stream`. This is not a fixture, because pytest would undo a replacement in a fixture."""
    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_plain_lines(monkeypatch):
    stderr = replaced(monkeypatch)
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    with Progress("bench", 2) as shown:
        shown.part("fft")
        shown.part("rfft")
        shown.step("compiling")
        shown.clear()
        assert stderr.came.wait(60)
        stderr.truncate(0)
        stderr.came.clear()
        assert stderr.came.wait(60)
    assert stderr.getvalue().strip("\0").splitlines()[-1] == "bench: 2 of 2: rfft: compiling"
    assert not any(thread.name == "decompops progress" for thread in threading.enumerate())


def test_short_commands_print_nothing(monkeypatch):
    stderr = replaced(monkeypatch)
    with Progress("bench", 1) as shown:
        shown.part("fft")
    assert stderr.getvalue() == ""


def test_nothing_where_it_is_unwanted(monkeypatch):
    stderr = replaced(monkeypatch)
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    with Progress("bench", 1, quiet=True) as shown:
        shown.part("fft")
        assert not stderr.came.wait(0.1)
    monkeypatch.setattr(sys, "stderr", None)  # Python sets None if stderr is closed at the start.
    with Progress("bench", 1) as shown:
        shown.part("fft")
        shown.clear()


def test_nobody_reads_stderr(monkeypatch):
    """A command continues without progress if the reader of stderr has ended."""
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    tried = threading.Event()

    class Closed(io.StringIO):
        def write(self, text):
            tried.set()
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    with Progress("bench", 1) as shown:
        shown.part("fft")
        assert tried.wait(60)


PROGRAM = """
from decompops.tools.commands.progress import Progress
with Progress("bench", 2) as shown:
    shown.part("fft [8]")
    shown.clear()
    print("a table", flush=True)
    shown.part("rfft")
    shown.step("compiling")
"""


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_has_one_line(term):
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": term, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=theirs, stderr=theirs, env=environment, timeout=240)
    os.close(theirs)
    with open(ours, "rb", buffering=0) as stream:
        text = re.sub(r"\x1b\[[\d;]*m", "", stream.read(65536).decode())  # Remove colours.
    assert done.returncode == 0, text
    assert "a table" in text
    if term == "dumb":
        assert text.strip() == "a table"
    else:
        assert "0/2 fft [8]" in text
        assert "1/2 rfft: compiling" in text
        assert "\x1b[2K" in text  # This code erases the line.
