"""The section that runs the tests in `tests/gpu`. It needs a GPU, a clone of the repository, and pytest."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

from .setting import Setting
from .software import PACKAGE


FOLDER = PACKAGE.parent / "tests" / "gpu"
# A test that compiles for a GPU may take this long until it notices a signal.
_SECONDS_TO_STOP = 20
# A shell starts background jobs with SIGINT ignored, and their children inherit this.
_PYTEST = """
import signal, sys, pytest
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(pytest.main(sys.argv[1:]))
"""
_AGAIN = "`python -m decompops report --sections tests`"


def tests(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """Run the tests, or return why they cannot run here and what to type."""
    if setting.devices[0].platform != "gpu":
        return {"not_run": "JAX has no GPU here"}
    if jax.process_count() > 1:
        return {"not_run": f"the tests need a report of one process: run {_AGAIN} without `srun` and `mpiexec`"}
    if not FOLDER.is_dir():
        clone = "`git clone https://github.com/decompops/decompops`"
        return {"not_run": f"an installed package has no tests: run {clone}, and then {_AGAIN} in its folder"}
    if importlib.util.find_spec("pytest") is None:
        return {"not_run": "pytest is not installed: run `pip install pytest`"}
    return run_tests(on_gpus(FOLDER), setting.clock.left())


def on_gpus(folder: Path) -> list[Path]:
    """Return the files with tests that need a GPU. Tests with several ranks take longest, so they come last."""
    files = [file for file in sorted(folder.glob("test_*.py")) if file.name != "test_on_paper.py"]
    return sorted(files, key=lambda file: "cudecomp" in file.name)


def run_tests(files: list[Path], seconds: float) -> dict[str, Any]:
    """Run pytest on files in a second process. After `seconds`, return the results of the tests that have ended."""
    # Some settings in pyproject.toml need plugins of pytest that may not be installed. These options replace them.
    plain = ["-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    command = [sys.executable, "-c", _PYTEST, "-q", "-rfE", "--tb=line", *plain, *map(str, files)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PACKAGE.parent, env=os.environ
    )
    is_late = False
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        is_late = True
        process.send_signal(signal.SIGINT)  # pytest then ends the test that runs, and says how many have passed.
        try:
            out, errors = process.communicate(timeout=_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"not_run": f"the tests did not end within {seconds:.0f} s"}
    lines = [line for line in out.splitlines() if line.strip()] or errors.splitlines()[-1:] or [""]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1])}
    failed = [
        {"case": words[1], "error": words[2] if len(words) > 2 else words[0]}
        for line in lines
        if line.startswith(("FAILED ", "ERROR ")) and (words := line.split(" ", 2))
    ]
    if is_late:
        return {"counts": counts, "failed": failed, "stopped": f"after {seconds:.0f} s"}
    if process.returncode and not failed:
        failed.append({"case": "pytest", "error": lines[-1]})
    return {"counts": counts, "failed": failed}
