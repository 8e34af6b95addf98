"""The pages of docs/api list every public name once."""

import importlib
import inspect
import pkgutil
import re
from collections import Counter
from pathlib import Path

import decompops
import pytest

from pages import ROOT


MODULES = ("decompops", *(f"decompops.{n}" for n in ("extend", "fft", "io", "mpmd", "nn", "pde", "plot", "spectral")))
# A page documents an instance under the name of its class.
SHOWN_AS = {"decompops.config": "decompops._config.Config"}


def public_names(module: str) -> set[str]:
    members = vars(importlib.import_module(module)).items()
    names = {f"{module}.{name}" for name, member in members if name[0] != "_" and not inspect.ismodule(member)}
    return {SHOWN_AS.get(name, name) for name in names}


def names_on(page: Path) -> list[str]:
    """Return the names that a page lists. A module with `members: true` stands for all its public names."""
    names = []
    for name, options in re.findall(r"^::: (\S+)\n((?: +\S.*\n)*)", page.read_text(), re.MULTILINE):
        if name not in MODULES:
            names.append(name)
        elif "members: true" in options:
            names += public_names(name)
    return names


def test_every_public_name_is_under_one_topic():
    listed = Counter(name for page in (ROOT / "docs" / "api").glob("*.md") for name in names_on(page))
    assert set(listed) == {name for module in MODULES for name in public_names(module)}
    assert set(listed.values()) == {1}


@pytest.mark.parametrize("module", ["spectral", "pde"])
def test_a_module_in_parts_is_on_one_page(module):
    names = names_on(ROOT / "docs" / "api" / f"{module}.md")
    assert set(names) == public_names(f"decompops.{module}")


def test_no_public_module_is_left_out():
    public = {f"decompops.{found.name}" for found in pkgutil.iter_modules(decompops.__path__) if found.name[0] != "_"}
    assert {"decompops", *public} - {"decompops.cli"} == set(MODULES)


def test_every_page_is_in_the_table():
    table = re.findall(r"^\| \[.*?\]\((\w+\.md)\)", (ROOT / "docs" / "api" / "index.md").read_text(), re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs" / "api").glob("*.md")} - {"index.md"}
    assert sorted(table) == sorted(pages)
