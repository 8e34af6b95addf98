"""The extras, outputs and messages in docs/installation.md."""

import re
import tomllib

from decompops._backend.native import library

from commands import run
from pages import ROOT


PAGE = (ROOT / "docs" / "installation.md").read_text()
# These messages come from pip and from Open MPI.
FOREIGN = {"no such option: -C", "There are not enough slots available in the system"}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of each row of the table under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_extra_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [cells[0].strip("`") for cells in rows("Extras")]
    assert sorted(listed) == sorted(project["optional-dependencies"])


def shown(first: str) -> str:
    """Return the output block of the page that starts with the given word."""
    (found,) = re.findall(rf"^```text\n({first}.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return found


def labelled(output: str) -> dict[str, str]:
    """Return the lines of `info` as `{label: text}`."""
    lines = re.sub(r"\n +", " ", output).splitlines()
    return dict(re.split(r"  +", line, maxsplit=1) for line in lines)


def test_every_message_is_in_the_sources():
    sources = [*(ROOT / "decompops").rglob("*.py"), *(ROOT / "ffi").rglob("CMakeLists.txt")]
    text = "\n".join(path.read_text() for path in sources)
    # Join adjacent Python strings into one message, and insert the names of the MPI libraries.
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    text = text.replace("{build()['mpi']}", "Open MPI").replace("{loaded}", "MPICH")
    text = text.replace("${compile_again}", library.COMPILE_AGAIN)
    messages = {found for cells in rows("Troubles and their cures") for found in re.findall(r"`([^`]*)`", cells[0])}
    assert messages > FOREIGN
    messages |= set(re.findall("not available: (.*)", "\n".join(labelled(shown("decompops ")).values())))
    assert [message for message in messages - FOREIGN if message not in text] == []


def test_info_prints_the_same_lines():
    """`decompops info` prints the labels that docs/installation.md shows, in the same order.

    In lines that do not depend on the machine, the texts are also equal.
    """
    on_page, printed = labelled(shown("decompops ")), labelled(run("info", DECOMPOPS_BACKEND="").stdout)
    assert list(on_page) == list(printed)
    for label in ("decompops", "platform", "backend xla", "defaults"):
        assert on_page[label] == printed[label]
