"""What docs/installation.md says about extras, outputs and messages."""

import re
import subprocess
import sys
import tomllib

from pages import ROOT


PAGE = (ROOT / "docs" / "installation.md").read_text()
# These messages come from pip and from Open MPI.
FOREIGN = {"no such option: -C", "There are not enough slots available in the system"}


def rows(heading: str) -> list[list[str]]:
    """The cells of each row of the table under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_extra_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [cells[0].strip("`") for cells in rows("Extras")]
    assert sorted(listed) == sorted(project["optional-dependencies"])


def test_every_message_is_in_the_sources():
    sources = [*(ROOT / "decompops").rglob("*.py"), ROOT / "ffi" / "CMakeLists.txt"]
    text = "\n".join(path.read_text() for path in sources)
    # Join neighbouring strings of Python to one message, and fill in the names of the MPI libraries.
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    text = text.replace("{build()['mpi']}", "Open MPI").replace("{loaded}", "MPICH")
    messages = {found for cells in rows("Troubles and their cures") for found in re.findall(r"`([^`]*)`", cells[0])}
    assert messages > FOREIGN
    assert [message for message in messages - FOREIGN if message not in text] == []


def test_info_prints_the_same_lines():
    (shown,) = re.findall(r"^```text\n(decompops .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    command = [sys.executable, "-m", "decompops", "info"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    names = [[re.split(r"  +", line)[0] for line in text.splitlines() if line[0] != " "] for text in (shown, printed)]
    assert names[0] == names[1]
