"""Tests of the common behaviour of all commands: help, mistyped words, closed pipes and missing packages."""

import importlib.util
import os
import subprocess
import sys

import jax
import pytest
from decompops.tools import cli as cli
from decompops.tools.bench import run as bench
from decompops.tools.commands import output

from commands import assert_fits, run


@pytest.mark.parametrize("arguments", [[], ["--help"], *([name, "--help"] for name in cli.COMMANDS)])
def test_help_fits_80_columns(arguments):
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: decompops")
    assert_fits(done.stdout)
    if len(arguments) < 2:
        assert all(f"    {name} " in done.stdout for name in cli.COMMANDS)


def test_help_breaks_no_name_that_must_be_typed():
    """`bench --help` prints names such as `fft-gradient` on one line, although argparse breaks lines at hyphens."""
    words = run("bench", "--help").stdout.replace(",", " ").replace(";", " ").split()
    assert {*bench.OPERATORS, *bench.SOLVERS, *bench.PARTICLES, bench.RESHARD} <= set(words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "must be one of info, selftest, bench, scaling, report; got 'dance'\n"),
        (["selftset"], "got 'selftset'; did you mean selftest?\n"),
        (["info", "--jsno"], "unknown option --jsno (see decompops info --help); did you mean --json?\n"),
        (["bench", "--shpae=64"], "unknown option --shpae (see decompops bench --help); did you mean --shape?\n"),
        (["bench", "--repaets", "3"], "did you mean --repeats?\n"),
        (["--vresion"], "unknown option --vresion (see decompops --help); did you mean --version?\n"),
        (["info", "everything"], "unknown argument everything (see decompops info --help)\n"),
        (["selftest", "--backend", "natve"], "got 'natve'; did you mean native?\n"),
        (["bench", "--operator", "navier_stokes"], "did you mean navier-stokes?\n"),
        (["scaling", "--latency", "inf"], "argument --latency: must be a positive number; got 'inf'\n"),
        (["scaling", "--block", "8x8"], "argument --block: must be one size or three; got '8x8'\n"),
        (["report", "--sections", "acuracy"], "got 'acuracy'; did you mean accuracy?\n"),
    ],
)
def test_mistakes_are_answered_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.out == ""
    assert captured.err.endswith(message)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["info", "--json"],
        ["selftest"],
        ["bench", "--on-paper", "--shape", "8", "--mesh", "1x1"],
        ["bench", "--on-paper", "--shape", "8", "--mesh", "1x1", "--json"],
    ],
    ids=["info", "info-json", "selftest", "tables", "json"],
)
def test_a_closed_pipe_ends_a_command_quietly(arguments, monkeypatch, capfd):
    """A command prints no error if the program that reads its output ends first, as in `decompops selftest | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
        assert cli.main(arguments) == 141
        stdout.flush()  # Python also flushes stdout at its exit.
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("arguments", "codes"), [(["info"], {141}), (["--help"], {0, 141})])
def test_a_closed_pipe_leaves_the_end_of_the_program_quiet(arguments, codes, monkeypatch):
    """A command prints nothing on stderr if stdout is closed.

    The exit code of `--help` may be 0, because argparse ignores a closed pipe if `PYTHONUNBUFFERED` is set.
    """
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "decompops", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert done.returncode in codes
    assert done.stderr == b""
    monkeypatch.setattr(sys, "stdout", None)  # Python sets None if stdout is closed at the start.
    assert cli.main(["info"]) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is full")
@pytest.mark.parametrize(("argument", "unbuffered"), [("info", ""), ("info", "1"), ("--version", "")])
def test_a_full_disk_is_told_in_one_line(argument, unbuffered):
    command, environment = [sys.executable, "-m", "decompops", argument], os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, env=environment)
    assert done.stderr == b"decompops: cannot write to stdout: [Errno 28] No space left on device\n"
    assert done.returncode == 1


def test_head_reads_one_line():
    command = f"{sys.executable} -m decompops info | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.split()[0], done.stderr) == ("decompops", "")


def test_a_platform_that_does_not_start_is_named(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "smoke")
    for arguments in (["info"], ["bench", "--json", "--on-paper"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert "JAX cannot start on 'smoke'" in line

    def without_cuda(platform):
        raise AssertionError

    monkeypatch.setattr(jax, "devices", without_cuda)
    with pytest.raises(SystemExit, match=r"on 'smoke': AssertionError\(\)\. Install JAX for this platform: https:"):
        cli.main(["info"])


def test_a_variable_of_a_launcher_that_is_no_number_is_named(capsys, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2(x3)")
    with pytest.raises(SystemExit):
        cli.main(["selftest", "--backend", "xla"])
    assert "selftest: `PMI_SIZE` must be the number of processes; got '2(x3)'" in capsys.readouterr().err


def test_missing_packages_are_named(capsys, monkeypatch):
    for absent, said in (
        (("rich",), "rich is not installed; run: pip install rich"),
        (("rich", "scipy"), "scipy and rich are not installed; run: pip install scipy rich"),
    ):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, absent=absent: None if name in absent else name)
        with pytest.raises(SystemExit) as stop:
            cli.main(["bench"])
        assert stop.value.code == 1
        assert capsys.readouterr().err == f"decompops bench: {said}\n"


def test_words_are_never_broken(monkeypatch):
    link = "https://github.com/decompops/decompops/blob/main/docs/multiprocess.md"
    text = f"see {link} for axis-contiguous order, then go on"
    for columns in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = output.labelled([("backend", text), ("all", "1")], indent=2).splitlines()
        words = " ".join(lines).split()
        assert words == ["backend", *text.split(), "all", "1"]
        assert all(len(line) <= columns for line in lines if link not in line)
        assert all(line.startswith(" " * 11) for line in lines[1:-1])
