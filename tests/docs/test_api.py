"""The pages of docs/api list every public name once."""

import importlib
import inspect
import re
from collections import Counter

import pytest

from pages import ROOT


def names_on(page: str) -> list[str]:
    return re.findall(r"^::: (\S+)", (ROOT / "docs" / "api" / page).read_text(), re.MULTILINE)


@pytest.mark.parametrize("module", ["spectral", "pde"])
def test_every_name_of_a_module_is_under_one_topic(module):
    members = vars(importlib.import_module(f"decompops.{module}")).items()
    public = {name for name, member in members if name[0] != "_" and not inspect.ismodule(member)}
    listed = Counter(names_on(f"{module}.md"))
    assert set(listed) == {f"decompops.{module}", *(f"decompops.{module}.{name}" for name in public)}
    assert set(listed.values()) == {1}


def test_every_page_is_in_the_table():
    table = re.findall(r"^\| \[.*?\]\((\w+\.md)\)", (ROOT / "docs" / "api" / "index.md").read_text(), re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs" / "api").glob("*.md")} - {"index.md"}
    assert sorted(table) == sorted(pages)
