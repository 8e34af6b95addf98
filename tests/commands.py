"""Helpers that run `python -m decompops` in its own process."""

import json
import os
import subprocess
import sys


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a command with output of 80 columns, or of `COLUMNS` if it is given."""
    command = [sys.executable, "-m", "decompops", *arguments]
    variables = os.environ | {"COLUMNS": "80"} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=variables)


def run_json(*arguments: str) -> dict:
    """Run the command `bench` and return its JSON."""
    done = run("bench", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_fits(text: str, columns: int = 80) -> None:
    """Assert that every line fits into the width, unless it is a single long word."""
    for line in text.splitlines():
        assert len(line) <= columns or len(line.split()) == 1, line
