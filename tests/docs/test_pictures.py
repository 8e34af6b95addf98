"""The pictures in docs/pictures show the shards of the arrays that decompops makes now."""

import re
import subprocess
import sys

from decompops import pde

from pages import ROOT


def test_the_committed_pictures_are_those_that_the_script_draws():
    command = [sys.executable, "docs/tools/pictures.py", "--check"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert run.returncode == 0, run.stderr


def test_each_device_holds_one_block_of_three_visible_faces():
    text = (ROOT / "docs" / "pictures" / "shards.svg").read_text()
    assert text.count("<polygon") == 3 * 8
    assert sorted(re.findall(r">(\d)</text>", text)) == list("01234567")


def test_every_halo_cell_has_the_colour_of_its_periodic_neighbour():
    text = (ROOT / "docs" / "pictures" / "halo.svg").read_text()
    pale = re.findall(r'<path d="([^"]*)" fill="(#\w+)" fill-opacity="0.5"', text)
    counts = {}
    for path, colour in pale:
        counts[colour] = counts.get(colour, 0) + path.count("M")
    # A block sends 4 cells to each of its 2 neighbours along y. Along x, the mesh has only two devices. So one device
    # is the neighbour on both sides, and gets 2 x 4 cells. The four corners of a block go to the diagonal neighbours.
    assert len(counts) == 8
    assert set(counts.values()) == {2 * 4 + 2 * 4 + 4}


def test_the_equations_of_the_diagram_exist_and_are_in_the_table():
    names = set(
        re.findall(r'font-style="normal">([A-Z]\w+)</text>', (ROOT / "docs/pictures/equations.svg").read_text())
    )
    assert len(names) == 23
    assert names <= set(re.findall(r"^\| `(\w+)\(", (ROOT / "docs/equations.md").read_text(), re.MULTILINE))
    assert all(issubclass(getattr(pde, name), pde.AbstractSplitEquation) for name in names)
