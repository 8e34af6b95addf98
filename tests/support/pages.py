"""Helpers that run the Python code of the documentation as a reader would run it."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import forks
from compiling import WARNINGS


ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    """Return, in order, the Python code blocks without a title on a page, such as `"docs/fft.md"`."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@functools.cache
def tool(name: str) -> ModuleType:
    """Import a script of docs/tools as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scripts(page: str) -> dict[str, str]:
    """Return the Python code blocks with a title, as `{title: code}`."""
    found = re.findall(r'^```python title="(.*?)"\n(.*?)^```', (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return dict(found)


def errors(page: str, calls: dict[str, str]) -> str:
    """Return code that checks the errors quoted on a page. `calls` is `{text on the page: call that raises it}`."""
    text = (ROOT / page).read_text()
    assert not [quoted for quoted in calls if quoted not in text]
    return f"""
different = []
for quoted, call in {calls!r}.items():
    try:
        exec(call)
    except Exception as error:
        if quoted not in str(error):
            different.append(f"{{call}} raises {{error}}")
    else:
        different.append(f"{{call}} raises no error")
assert not different, different
"""


def check(script: str, *, folder: Path | None = None, imported: bool = True) -> None:
    """Run a script in its own process in `folder`, with the default backend as readers do. A warning is an error.

    Programs are not optimised, because optimisation by LLVM takes most of the time of a short program. Without
    `imported`, no package is imported before the script runs: it may set variables that packages read at their import.
    """
    environment = {name: value for name, value in os.environ.items() if name != "DECOMPOPS_BACKEND"}
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    script += '\nprint("checked")\n'
    if imported:
        run = forks.run("-c", script, options=WARNINGS, cwd=folder or ROOT, environment=environment)
    else:
        command = [sys.executable, *WARNINGS, "-c", script]
        run = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder or ROOT, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("checked\n")
