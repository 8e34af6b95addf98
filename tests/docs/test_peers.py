"""The tables that compare decompops with other libraries, in README.md, docs/peers.md and docs/peers_cells.md."""

import re

import pytest

from pages import ROOT


PAGE = (ROOT / "docs/peers.md").read_text()
FOUND = (ROOT / "docs/peers_cells.md").read_text()
README = (ROOT / "README.md").read_text()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]


def comparison(text: str) -> dict[str, dict[str, str]]:
    """Return the table of a page as `{row: {library and version: cell}}`."""
    (table,) = re.findall(r"^\| \| decompops.*?\n(?=\n)", text, re.DOTALL | re.MULTILINE)
    head, _, *rows = table.splitlines()
    libraries = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell) for cell in cells(head)[1:]]
    return {label: dict(zip(libraries, row, strict=True)) for label, *row in map(cells, rows)}


TABLE, SHORT = comparison(PAGE), comparison(README)
LIBRARIES = list(TABLE["halo exchange"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_page_says_how_each_cell_was_found(library):
    name, version = library.split()
    (section,) = re.findall(rf"^\*\*{name}\*\* (.*?)(?=^\*\*|\Z)", FOUND, re.DOTALL | re.MULTILINE)
    assert version in section.partition("\n")[0]
    rows = [cells(line) for line in section.splitlines() if line.startswith("| ")][1:]
    labels = [label for names, _ in rows for label in names.split("; ")]
    assert len(labels) == len(set(labels))
    assert not set(TABLE) - set(labels)
    if name == "decompops":
        assert not [path for path in re.findall(r"`((?:tests|decompops)/.*?)`", section) if not (ROOT / path).exists()]


def test_the_readme_has_a_part_of_the_table():
    assert not set(SHORT) - set(TABLE)
    for label, row in SHORT.items():
        for short, library in zip(row, LIBRARIES, strict=True):
            assert library.startswith(short)  # The README may leave out the last part of a version.
            short_cell, cell = row[short].strip("*"), TABLE[label][library].strip("*")
            assert short_cell.startswith("no") == cell.startswith("no"), (label, library)
            assert ("wrong" in short_cell) == ("wrong" in cell), (label, library)
