"""The section that runs the tests in `tests/gpu`. It needs a GPU, a clone of the repository, and pytest."""

import importlib.util
import os
import re
import subprocess
import sys
from typing import Any

import jax

from .setting import Setting
from .software import PACKAGE


FOLDER = PACKAGE.parent / "tests" / "gpu"
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
    return run_tests(str(FOLDER), setting.clock.left())


def run_tests(folder: str, seconds: float) -> dict[str, Any]:
    """Run pytest on a folder in a second process, which is stopped after `seconds`."""
    # Some settings in pyproject.toml need plugins of pytest that may not be installed. These options replace them.
    plain = ["-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=line", *plain, folder]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, cwd=PACKAGE.parent, env=os.environ
        )
    except subprocess.TimeoutExpired:
        return {"not_run": f"the tests did not end within {seconds:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.strip()] or done.stderr.splitlines()[-1:]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1])}
    failed = [
        {"case": words[1], "error": words[2] if len(words) > 2 else words[0]}
        for line in lines
        if line.startswith(("FAILED ", "ERROR ")) and (words := line.split(" ", 2))
    ]
    if done.returncode and not failed:
        failed.append({"case": "pytest", "error": lines[-1]})
    return {"counts": counts, "failed": failed}
