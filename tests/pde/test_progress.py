"""Tests of the progress of a simulation, on a terminal and in a log."""

import io
from types import SimpleNamespace

import jax
import pytest
from decompops.pde import _progress
from rich.console import Console


class Stream(io.StringIO):
    """A stream that is a terminal or a log file."""

    def __init__(self, terminal: bool):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that the test sets."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(_progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_log_has_a_line_after_five_seconds_and_then_every_half_a_minute(clock, monkeypatch):
    """The first step of 0.5 takes two seconds, with compilation. Each later step, up to t = 100, takes one second."""
    stream = Stream(terminal=False)
    monkeypatch.setattr("sys.stderr", stream)
    printed = {}
    with _progress.progress(True, 0.0, 0.0, 100.0) as report:
        for steps in range(1, 201):
            clock.now, length = 1001.0 + steps, len(stream.getvalue())
            report(0.5 * steps, steps)
            if line := stream.getvalue()[length:]:
                printed[clock.now - 1000] = line
    assert printed == {
        5: "t = 2 of 100, 4 steps, 1e+03 ms each, 3.27 min left\n",
        35: "t = 17 of 100, 34 steps, 1e+03 ms each, 2.77 min left\n",
        65: "t = 32 of 100, 64 steps, 1e+03 ms each, 2.27 min left\n",
        95: "t = 47 of 100, 94 steps, 1e+03 ms each, 1.77 min left\n",
        125: "t = 62 of 100, 124 steps, 1e+03 ms each, 1.27 min left\n",
        155: "t = 77 of 100, 154 steps, 1e+03 ms each, 0.767 min left\n",
        185: "t = 92 of 100, 184 steps, 1e+03 ms each, 0.267 min left\n",
        201: "t = 100 of 100, 200 steps, 1e+03 ms each\n",
    }


def test_a_terminal_shows_a_bar(clock, monkeypatch):
    """The bar of a run from t = 10 to 90 has 40 characters: 10 are filled at t = 30, and 30 at t = 70."""
    stream = Stream(terminal=True)
    options = {"file": stream, "force_terminal": True, "color_system": None, "width": 100}
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(**options))
    with _progress.progress(True, 10.0, 30.0, 90.0) as report:
        for now, t, steps in ((1002.0, 30.0, 10), (1003.0, 50.0, 20), (1004.0, 70.0, 30)):
            clock.now = now
            report(t, steps)
    continues, *bars = stream.getvalue().splitlines()
    assert continues == "The run continues from t = 30."
    first, *_, last = (text for line in bars for text in line.split("\r") if " of 90 " in text)
    assert "t = 30 of 90 " in first
    assert first.count("━") == 10
    assert "t = 70 of 90 " in last
    assert "30 steps, 100 ms each" in last
    assert last.count("━") == 30


@pytest.mark.parametrize(("show", "process"), [(False, 0), (True, 1)])
def test_nothing_is_shown(show, process, monkeypatch, capsys):
    """Neither a run without progress nor the second process shows anything."""
    monkeypatch.setattr(jax, "process_index", lambda: process)
    with _progress.progress(show, 0.0, 0.5, 1.0) as report:
        report(1.0, 10)
    assert capsys.readouterr() == ("", "")


class Lost(Stream):
    """A stream on a full disk, or to a terminal whose window has been closed."""

    def write(self, text):
        raise OSError(text)

    def flush(self):
        raise OSError("flush")


@pytest.mark.parametrize("stream", [Lost(terminal=True), Lost(terminal=False), None], ids=["terminal", "log", "none"])
def test_a_run_does_not_end_because_its_progress_cannot_be_shown(clock, monkeypatch, stream):
    """Otherwise the run would lose what it has not saved, and other processes would wait for the first one."""
    monkeypatch.setattr("sys.stderr", stream)
    with _progress.progress(True, 0.0, 0.5, 2.0) as report:
        for t in (1.0, 1.5, 2.0):
            clock.now += 10
            report(t, 1)
