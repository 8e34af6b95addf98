"""A hook of mkdocs: lists the versions that continuous integration tests in docs/versions.md.

The first column is the environment that builds the site, in which continuous integration runs all tests. The second is
the environment in the folder that the variable `DECOMPOPS_OLDEST` names (`.ci/oldest`). Without this variable, the page
says that the site was not built by continuous integration.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


MARKER = "<!-- versions -->"
PACKAGES = {
    "JAX": "jax",
    "jaxlib": "jaxlib",
    "Equinox": "equinox",
    "jaxtyping": "jaxtyping",
    "NumPy": "numpy",
    "mpi4py": "mpi4py",
    "h5py": "h5py",
    "orbax": "orbax-checkpoint",
    "tensorstore": "tensorstore",
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the marker of docs/versions.md by the table. mkdocs calls this function for each page."""
    if page.file.src_uri != "versions.md":
        return markdown
    assert MARKER in markdown
    return markdown.replace(MARKER, table(os.environ.get("DECOMPOPS_OLDEST")))


def table(oldest: str | None) -> str:
    """Return the table of versions of this environment and, if it exists, of the one in the folder `oldest`."""
    there = oldest is not None and Path(oldest).exists()
    columns = [_asked(python) for python in [sys.executable, *([f"{oldest}/bin/python"] if there else [])]]
    lines = ["| | all tests |" + " a selection |" * there, "|---|" + "---|" * len(columns)]
    lines += [f"| {name} | " + " | ".join(column[name] for column in columns) + " |" for name in columns[0]]
    if oldest is None:
        lines += ["", "This copy of the site was not built by continuous integration: the table shows its environment."]
    elif not there:
        lines += ["", "The machine did not have the oldest Python, so the selection was not run."]
    return "\n".join(lines)


def _asked(python: str) -> dict[str, str]:
    """Return the versions of an environment, as this script prints them there."""
    return json.loads(subprocess.run([python, __file__], check=True, capture_output=True, text=True).stdout)


def versions() -> dict[str, str]:
    """Return the versions in this environment."""
    import decompops as dops

    python = ".".join(map(str, sys.version_info[:3]))
    found = {"Python": python, **{name: _version(package) for name, package in PACKAGES.items()}}
    found["MPI"] = "none" if dops.MPI().problem() else _mpi()
    # The kernels say "with " and the name of the library.
    kernels = "none" if dops.Native().problem() else dops.Native().missing_features() or "none"
    found["Fourier transforms of the kernels"] = kernels.removeprefix("with ")
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _mpi() -> str:
    from mpi4py import MPI

    name, numbers = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, numbers))}"


if __name__ == "__main__":
    print(json.dumps(versions()))
