"""The common behaviour of the examples: progress on stderr, and the end of an unstable simulation."""

import io
import re
import time

import jax
import numpy as np
import pytest
from rich.console import Console

import example


options = example.load("options")


def wait_for(text: str, capsys) -> str:
    """Wait until stderr contains `text`, and return its contents. Fail after a minute."""
    printed, end = "", time.monotonic() + 60
    while text not in printed:
        assert time.monotonic() < end, printed
        printed += capsys.readouterr().err
        time.sleep(0.01)
    return printed


def test_a_long_task_prints_lines(monkeypatch, capsys):
    monkeypatch.setattr(options, "SECONDS_BETWEEN_LINES", 0.02)
    with options.progress("training", 40) as report:
        wait_for("training: 0 of 40 done", capsys)
        report(jax.numpy.int32(7))
        wait_for("training: 7 of 40 done", capsys)
        report(40)
        printed = wait_for("training: 40 of 40 done", capsys)
    assert re.fullmatch(r"(training: \d+ of 40 done after \d+ s\n)+", printed)
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr() == ("", "")  # Progress lines end when the task ends.


def test_lines_end_when_a_task_fails(monkeypatch, capsys):
    monkeypatch.setattr(options, "SECONDS_BETWEEN_LINES", 0.02)
    with pytest.raises(ZeroDivisionError), options.progress("training", 40):
        raise ZeroDivisionError
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_short_task_prints_nothing(capsys):
    with options.progress("training", 2) as report:
        report(2)
    assert capsys.readouterr() == ("", "")


def test_other_processes_print_nothing(monkeypatch, capsys):
    monkeypatch.setattr(options, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with options.progress("training", 2) as report:
        time.sleep(0.1)
        report(1)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=terminal, force_terminal=True, width=80))
    with options.progress("training", 40) as report:
        report(np.int64(7))
    assert "training" in terminal.getvalue()
    assert " 7/40" in terminal.getvalue()


def test_description_is_the_first_line():
    assert options.Parser("A title.\n\nMore text.").description == "A title."
    assert options.Parser(None).description == ""
