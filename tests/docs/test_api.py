"""The pages of docs/api list every public name once."""

import importlib
import inspect
import pkgutil
import re
import runpy
from collections import Counter
from enum import Enum
from pathlib import Path

import decompops
import griffe
import pytest
import yaml

from pages import ROOT


MODULES = (
    "decompops",
    *(f"decompops.{n}" for n in ("extend", "fft", "finite_volume", "io", "mpmd", "nn", "particles", "pde", "plot")),
    *(f"decompops.{n}" for n in ("solve", "spectral", "testing")),
)
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
EXTEND = ROOT / "docs" / "api" / "extend.md"
# A page documents an instance under the name of its class.
SHOWN_AS = {"decompops.config": "decompops._core.config.Config"}


def public_names(module: str) -> set[str]:
    members = vars(importlib.import_module(module)).items()
    names = {f"{module}.{name}" for name, member in members if name[0] != "_" and not inspect.ismodule(member)}
    return {SHOWN_AS.get(name, name) for name in names}


def names_on(page: Path) -> list[str]:
    """Return the names that a page documents. A module with `members: true` stands for all its public names."""
    names = []
    for name, block in re.findall(r"^::: (\S+)\n((?: +\S.*\n)*)", page.read_text(), re.MULTILINE):
        members = (yaml.safe_load(block) or {}).get("options", {}).get("members")
        if name not in MODULES:
            names.append(name)
        elif members:
            names += public_names(name) if members is True else [f"{name}.{member}" for member in members]
    return names


def member(name: str) -> object:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def test_every_public_name_is_under_one_topic():
    """Every public name is documented once. The page of `dops.extend` only links to names that it repeats."""
    listed = Counter(name for page in PAGES for name in names_on(page))
    linked = dict(re.findall(r"\[`(\w+)`\]\[(decompops[.\w]+)\]", EXTEND.read_text()))
    repeated = {f"decompops.extend.{name}" for name in linked}
    assert set(listed) | repeated == {name for module in MODULES for name in public_names(module)}
    assert set(listed.values()) == {1}
    assert not repeated & set(listed)
    assert set(linked.values()) <= set(listed)
    assert all(member(f"decompops.extend.{name}") is member(page) for name, page in linked.items())


def test_no_class_and_no_function_is_documented_twice():
    names = [name for page in PAGES for name in names_on(page)]
    times = Counter(found for name in names if inspect.isroutine(found := member(name)) or inspect.isclass(found))
    assert [found for found, number in times.items() if number > 1] == []
    assert len(times) > 150


@pytest.mark.parametrize("module", ["spectral", "pde"])
def test_a_module_in_parts_is_on_one_page(module):
    names = names_on(ROOT / "docs" / "api" / f"{module}.md")
    assert set(names) == public_names(f"decompops.{module}")


def test_no_public_module_is_left_out():
    public = {f"decompops.{found.name}" for found in pkgutil.iter_modules(decompops.__path__) if found.name[0] != "_"}
    assert {"decompops", *public} - {"decompops.tools"} == set(MODULES)


def test_every_page_is_in_the_table():
    table = re.findall(r"^\| \[.*?\]\((\w+\.md)\)", (ROOT / "docs" / "api" / "index.md").read_text(), re.MULTILINE)
    assert sorted(table) == [page.name for page in PAGES if page.name != "index.md"]


def test_signatures_on_the_pages_are_those_of_python():
    extension = runpy.run_path(str(ROOT / "docs/tools/signatures.py"))["Signatures"]
    package = griffe.load("decompops", search_paths=[ROOT], extensions=griffe.load_extensions(extension))
    different, names = [], [name for page in PAGES for name in names_on(page) if name not in SHOWN_AS.values()]
    for name in names:
        found = member(name)
        # Abstract classes have no constructor to show. Griffe does not know the constructors of exceptions, of named
        # tuples and of enumerations.
        if not (
            inspect.isroutine(found) or (inspect.isclass(found) and not issubclass(found, Exception | tuple | Enum))
        ):
            continue
        if name.rpartition(".")[2].startswith("Abstract"):
            continue
        shown = package[name.removeprefix("decompops.")].parameters
        shown = [(p.kind.value == "keyword-only", p.name) for p in shown if p.name != "self"]
        true = [(p.kind == p.KEYWORD_ONLY, p.name) for p in inspect.signature(found).parameters.values()]
        # The order of keyword-only arguments does not matter.
        if sorted(shown, key=by_position) != sorted(true, key=by_position):
            different.append(f"{name}: {shown}, not {true}")
    assert different == []


def by_position(parameter: tuple[bool, str]) -> tuple[bool, str]:
    by_keyword, name = parameter
    return by_keyword, name if by_keyword else ""
