"""Tests of reports that end early: their time is up, or the disk is full."""

import errno
from unittest.mock import Mock

import pytest
from decompops.tools import cli as cli
from decompops.tools.report import run as running
from decompops.tools.report.page import read
from decompops.tools.report.run import Report, end_after


FULL = Mock(side_effect=OSError(errno.ENOSPC, "no space"))


def test_a_report_that_hangs_is_ended(monkeypatch, tmp_path, capsys):
    codes = []
    monkeypatch.setattr(running.os, "_exit", codes.append)
    made = Report("late", tmp_path / "late.json", shared=False, note="")
    end_after(0.01, made).join()
    assert codes == [1]
    assert read(tmp_path / "late.json")["name"] == "late"
    monkeypatch.setattr(running, "write_own", FULL)
    end_after(0.01, made).join()
    assert codes == [1, 1]
    assert "its last results were not written: OSError: [Errno 28] no space" in capsys.readouterr().err


def test_a_full_disk_is_told_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(running, "write_own", FULL)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # The command sets it.
    with pytest.raises(SystemExit, match=r"^1$"):
        cli.main(["report", "--sections", "software", "--out", str(tmp_path), "--quiet"])
    assert capsys.readouterr().err.endswith("decompops report: the report was not written: [Errno 28] no space\n")
