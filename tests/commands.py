"""Runs of `python -m decompops` in a process of its own."""

import json
import os
import subprocess
import sys


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a command. Its output is 80 columns wide unless `COLUMNS` says otherwise."""
    command = [sys.executable, "-m", "decompops", *arguments]
    variables = os.environ | {"COLUMNS": "80"} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=variables)


def run_json(*arguments: str) -> dict:
    """Run the benchmark and return its JSON."""
    done = run("bench", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_fits(text: str, columns: int = 80) -> None:
    """Check that lines fit, except lines that consist of one long word."""
    for line in text.splitlines():
        assert len(line) <= columns or len(line.split()) == 1, line
