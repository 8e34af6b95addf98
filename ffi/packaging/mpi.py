"""Which MPI a build of decompops uses: the one whose `mpicxx` is on the PATH, or else the package `openmpi`.

scikit-build-core calls these functions during a build (pyproject.toml).
"""

import shutil
import sys
from pathlib import Path
from typing import Any


_OPENMPI = "openmpi>=5"


def get_requires_for_dynamic_metadata(settings: Any) -> list[str]:
    """Return the packages that must be installed for a build."""
    del settings
    return _requirements()


def dynamic_metadata(settings: Any, project: Any) -> dict[str, Any]:
    """Return the packages that `pip install "decompops[mpi]"` also installs."""
    del settings, project
    return {"optional-dependencies": {"mpi": _requirements()}}


def _requirements() -> list[str]:
    found = shutil.which("mpicxx")
    return [_OPENMPI] if found is None or _is_of_package(Path(found)) else []


def _is_of_package(wrapper: Path) -> bool:
    """Return whether a compiler wrapper belongs to the package `openmpi`, in its own or the build's environment."""
    roots = {Path(sys.prefix), wrapper.parent.parent}
    folders = [folder for root in roots for folder in root.glob("lib/python*/site-packages/openmpi-*.dist-info")]
    return wrapper.parent.parent in roots and any(folder.is_relative_to(wrapper.parent.parent) for folder in folders)
