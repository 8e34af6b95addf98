"""Every page with Python code has a test that runs it, and the commands on the pages have valid options."""

import re

import pytest

from commands import parse, shown
from pages import ROOT, blocks, scripts


GALLERY = ROOT / "docs" / "gallery"  # docs/tools/gallery.py makes these pages.
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if GALLERY not in path.parents
]
# The code of these pages is tested in files that are not named after the page.
ELSEWHERE = {
    ("docs/cluster.md", blocks): "tests/mpi/parts.py",
    ("docs/extending_operators.md", blocks): "tests/examples/test_extending.py",
    ("docs/extending_equations.md", blocks): "tests/examples/test_extending.py",
    ("docs/extending_backends.md", blocks): "tests/examples/test_extending.py",
    ("docs/first_solve.md", scripts): "tests/docs/test_first_solve_on_processes.py",
    ("docs/training_and_sampling.md", blocks): "tests/docs/test_other_libraries.py",
    ("docs/multiprocess.md", scripts): "tests/multiprocess/test_multiprocess.py",
    ("docs/cluster.md", scripts): "tests/mpi/test_mpi.py",
}
# This command names a backend of the package that docs/extending_backends.md describes.
OF_A_PACKAGE = ["decompops", "selftest", "--backend", "ring"]


def test_each_page_with_code_is_tested():
    untested = []
    for page in PAGES:
        for part in (blocks, scripts):
            name = page.removeprefix("docs/").removesuffix(".md").replace("/", "_").lower()
            test = ROOT / ELSEWHERE.get((page, part), f"tests/docs/test_{name}.py")
            if part(page) and not (test.exists() and {page, f"{part.__name__}("} <= words(test.read_text())):
                untested.append(f"{page}: no {part.__name__}(...) in {test}")
    assert untested == []


def words(test: str) -> set[str]:
    """Return the pages that a test names, with `blocks(` and `scripts(` if the test calls these functions."""
    return set(re.findall(r'(?<=")[\w/]+\.md(?=")|\b(?:blocks|scripts)\(', test))


def test_no_code_is_overlooked():
    """`blocks` and `scripts` find every Python block, whatever its indentation or its options."""
    fences = {page: re.findall(r"^[ >]*(?:```+|~~~+) *\{? ?\.?py.*", (ROOT / page).read_text(), re.M) for page in PAGES}
    assert {page: len(blocks(page)) + len(scripts(page)) for page in PAGES} == {p: len(f) for p, f in fences.items()}
    assert sum(map(len, fences.values())) > 100


def test_no_line_of_code_is_cut():
    """A desktop's screen has room for 98 characters (docs/stylesheets/extra.css). Only commands and outputs wrap."""
    code = {page: "".join([*blocks(page), *scripts(page).values()]) for page in PAGES if page.startswith("docs/")}
    assert [(page, line) for page in code for line in code[page].splitlines() if len(line) > 98] == []


def test_commands_on_the_pages_are_valid():
    found = [words for page in PAGES for words in shown((ROOT / page).read_text())]
    for words in found:
        if words != OF_A_PACKAGE:
            parse(words)
    assert OF_A_PACKAGE in found
    assert len(found) > 50
    block = "```sh\npython -m decompops info --csv  # `x`\n```\n"
    text = f"With `mpiexec -n 2 python -m decompops bench\n--shape 8` or:\n\n{block}"
    sentence, line = shown(text)
    assert parse(sentence).shape == [(8,)]
    assert line == ["decompops", "info", "--csv"]
    with pytest.raises(AssertionError):
        parse(line)
