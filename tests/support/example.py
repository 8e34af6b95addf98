"""Helpers that run examples in fresh processes, because examples choose the devices before JAX starts."""

import importlib
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax
import pytest

import forks
from compiling import FLAGS, WARNINGS
from pages import ROOT, tool


EXAMPLES = ROOT / "examples"
gallery = tool("gallery")

# This script runs the `main` of the example that the first argument names, with many lines of progress.
SHOW_PROGRESS = """
import importlib, sys
import options
options.SECONDS_BETWEEN_LINES = 0.05
importlib.import_module(sys.argv.pop(1)).main(sys.argv[1:])
"""


def load(name: str, folder: str = "") -> ModuleType:
    """Import an example as a module. `folder` is the folder of the example inside `examples`."""
    jax.devices()  # This starts JAX with the devices of the tests, so the example cannot choose other devices.
    if (path := str(EXAMPLES / folder)) not in sys.path:
        sys.path.insert(0, path)
    return importlib.import_module(name)


def assert_refused(module: ModuleType, option: str, value: str, capsys) -> None:
    """Assert that `main` ends at once, with one line that names the option and the value."""
    with pytest.raises(SystemExit) as ended:
        module.main([option, value])
    jax.config.update("jax_enable_x64", True)  # `main` may have chosen single precision.
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert f"argument {option}: " in line
    assert repr(value) in line


def entry(name: str) -> NamedTuple:
    """Return the entry of an example in the gallery."""
    (found,) = (one for one in gallery.ENTRIES if one.name == name)
    return found


def run_for_gallery(name: str, folder: Path) -> str:
    """Run an example with the options `quick` of its entry in the gallery, and return what it prints.

    The run must draw the figure. Continuous integration sets DECOMPOPS_GALLERY, so that the site shows this run.
    """
    found, start = entry(name), time.perf_counter()
    result = run(f"{name}.py", *shlex.split(found.quick), cwd=folder)
    assert result.returncode == 0, result.stderr
    assert_picture(folder / f"{name}.png")
    if "DECOMPOPS_GALLERY" in os.environ:
        gallery.write(found, found.quick, result.stdout, time.perf_counter() - start, folder)
    return result.stdout


def assert_picture(path: Path) -> None:
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 10_000


def run(*command: str, cwd: Path, optimised: bool = False, imported: bool = True) -> subprocess.CompletedProcess:
    """Run `python` with these arguments in the folder `cwd`. The first argument may be the name of an example.

    With `optimised`, it compiles as for users, which takes longer than the programs of tests run. With `optimised`, or
    without `imported`, no package is imported before the program starts.
    """
    if command[0].endswith(".py"):
        command = (str(EXAMPLES / command[0]), *command[1:])
    path = os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    environment["XLA_FLAGS"] = "" if optimised else FLAGS
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0" if optimised else "1"
    if imported and not optimised:
        return forks.run(*command, options=WARNINGS, cwd=cwd, environment=environment)
    return subprocess.run(
        [sys.executable, *WARNINGS, *command],
        cwd=cwd,
        capture_output=True,
        env=environment,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
