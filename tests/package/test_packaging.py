"""Tests that the metadata files of the project agree with the package."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import decompops as dops
import pytest


ROOT = Path(dops.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_everywhere():
    assert "version" in PROJECT["dynamic"]  # The build reads the version from decompops/__init__.py.
    citation = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {dops.__version__}" in citation
    assert f"## [{dops.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    notes = (ROOT / "docs" / "release_notes.md").read_text()
    assert notes.startswith(f"# Release notes: decompops {dops.__version__}\n")
    # The notes are also the text of a release on the code host, where relative links lead nowhere.
    assert [link for link in re.findall(r"\]\((.*?)\)", notes) if not link.startswith("https://")] == []


def test_links_agree():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"url: {PROJECT['urls']['Homepage']}\n" in citation
    assert f"repository-code: {PROJECT['urls']['Repository']}\n" in citation
    site = (ROOT / "mkdocs.yml").read_text()
    assert f"site_url: {PROJECT['urls']['Documentation']}\n" in site
    assert f"repo_url: {PROJECT['urls']['Repository']}\n" in site


def test_extras_of_extras_exist():
    extras = PROJECT["optional-dependencies"]
    for name, requirements in extras.items():
        for requirement in requirements:
            if requirement.startswith("decompops["):
                named = requirement.removeprefix("decompops[").removesuffix("]").split(",")
                assert set(named) <= extras.keys(), name


_WITHOUT_EXTRAS = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import decompops
for module in pkgutil.walk_packages(decompops.__path__, "decompops."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            print(module.name, error)
"""


def test_modules_need_no_extra():
    """Without the packages of the extras, all modules can be imported, but the one that prints tables with rich."""
    named = {re.match(r"[\w-]+", one)[0] for extra in PROJECT["optional-dependencies"].values() for one in extra}
    # JAX needs SciPy itself. The package that the name orbax-checkpoint stands for is called orbax.
    absent = {name.replace("-", "_") for name in named - {"decompops", "scipy"}} | {"orbax"}
    command = [sys.executable, "-c", _WITHOUT_EXTRAS, *absent]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert found == "decompops.tools.bench.tables rich\n"


_SUBPACKAGES = """
import sys
import decompops
found = [name for name in decompops.__all__ if name.islower() and name not in ("autotune", "config")]
assert found and not [name for name in found if f"decompops.{name}" in sys.modules]
decompops.solve
assert "decompops.solve" in sys.modules and "decompops.pde" not in sys.modules
from decompops import *
assert [name for name in found if globals()[name] is sys.modules[f"decompops.{name}"]] == found
print(*found)
"""


def test_subpackages_are_imported_when_they_are_used():
    command = [sys.executable, "-c", _SUBPACKAGES]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    folders = {path.parent.name for path in (ROOT / "decompops").glob("[a-z]*/__init__.py")}
    assert set(found.split()) == folders - {"testing", "tools"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_forms_of_issues_are_complete(path):
    """Issue forms have all required keys. GitHub silently ignores a form without one of these keys."""
    yaml = pytest.importorskip("yaml")
    form = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        assert all({"name", "url", "about"} == link.keys() for link in form["contact_links"])
        return
    assert {"name", "description", "body"} <= form.keys()
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers) > 0
    assert all(field["attributes"]["label"] for field in form["body"])
