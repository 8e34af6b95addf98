"""Helpers that run `python -m decompops` in its own process, or parse the commands that the documentation shows."""

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from decompops.tools import cli as cli

import forks


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a command. Its output is 80 columns wide, unless `environment` sets `COLUMNS`."""
    return forks.run("-m", "decompops", *arguments, environment=os.environ | {"COLUMNS": "80"} | environment)


def run_json(*arguments: str) -> dict:
    """Run the command `bench` and return its JSON."""
    done = run("bench", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_fits(text: str, columns: int = 80) -> None:
    """Assert that every line has at most `columns` characters. A line that is a single word may be longer."""
    for line in text.splitlines():
        assert len(line) <= columns or len(line.split()) == 1, line


def shown(text: str) -> list[list[str]]:
    """Return the words after `python -m` of each command of decompops in a Markdown page or a shell script."""
    text = re.sub(r"\\\n\s*", " ", text)  # A backslash at the end of a line continues the line.
    fence = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
    prose = fence.sub("", text)
    lines = "\n".join(block[0] for block in fence.finditer(text)).splitlines()
    lines += [line for line in prose.splitlines() if "`" not in line]
    code = [*re.findall(r"`([^`]+)`", prose), *lines]
    found = [re.search(r"python -m (decompops.*)", part, re.DOTALL) for part in code]
    return [shlex.split(command[1], comments=True) for command in found if command]


class Parsed(Exception):
    """An exception that ends a command as soon as its arguments are parsed."""


def parse(words: list[str]) -> argparse.Namespace | None:
    """Parse the words after `python -m` with the parser of the command, and run nothing.

    Returns the options, or `None` if an option such as `--version` ends the command.
    """

    def and_stop(function: Callable) -> Callable:
        def stopped(*arguments: Any) -> None:
            raise Parsed(function(*arguments))

        return stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        patch.setattr(cli, "parse", and_stop(cli.parse))
        patch.setattr(argparse.ArgumentParser, "parse_args", and_stop(argparse.ArgumentParser.parse_args))
        try:
            importlib.import_module("decompops.tools.cli" if words[0] == "decompops" else words[0]).main()
        except Parsed as end:
            return end.args[0]
        except SystemExit as end:
            code = end.code
    assert code == 0, words
    return None
