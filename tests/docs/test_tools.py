"""Tests of the tools that check the built site: the tools must detect faults."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
import yaml
from packaging.requirements import Requirement

from pages import ROOT, tool


TOOLS = ROOT / "docs" / "tools"


def links(folder) -> subprocess.CompletedProcess:
    command = [sys.executable, TOOLS / "links.py", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_links_within_the_site_are_checked_and_others_are_counted(tmp_path):
    page = tmp_path / "index.html"
    page.write_text('<a href="https://x.org/y">x</a> <a href="https://x.org/z">x</a> <a href="#here" id="here">x</a>')
    first = links(tmp_path)
    (line,) = (line for line in first.stdout.splitlines() if line.startswith("NOT CHECKED"))
    page.write_text(page.read_text().replace("z", "y").replace("#here", "#there"))
    second = links(tmp_path).stdout
    assert f"{page}: #here" not in first.stdout
    assert f"{page}: #there" in second
    assert f"NOT CHECKED: {int(line.split()[2]) - 1} external links" in second


@pytest.mark.parametrize(
    ("option", "network", "code", "says"),
    [
        ("--external", True, True, "https://x.org/y: gone"),
        ("--try-external", True, False, "NOT FOUND: https://x.org/y: gone"),
        ("--try-external", False, False, "NOT CHECKED: "),
    ],
)
def test_a_fault_of_another_site_is_printed_and_fails_only_with_external(
    tmp_path, monkeypatch, capsys, option, network, code, says
):
    checker = tool("links")
    (tmp_path / "index.html").write_text('<a href="https://x.org/y">x</a> <a href="https://x.org/z">x</a>')
    unknown = {"https://x.org/y": "gone"} | ({} if network else {checker.PROBE: "no network"})
    monkeypatch.setattr(checker, "_fault", lambda link, timeout=10: unknown.get(link, ""))
    # The test checks no Markdown file of the repository, because these files link to pages of the site.
    monkeypatch.setattr(checker, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["links.py", str(tmp_path), option])
    with pytest.raises(SystemExit) as end:
        checker.main()
    assert end.value.code is code
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(says))
    assert "x.org/z" not in line


def test_a_page_may_ask_for_facts_about_the_repository_only():
    browser = tool("browser")
    answers = {}
    faults = []
    for url in (
        "https://api.github.com/repos/decompops/decompops/releases/latest",
        "https://api.github.com/repos/decompops/decompops",
        "https://api.github.com/repos/decompops/decompopsicle",
        "https://fonts.googleapis.com/css",
    ):
        done = answers[url] = []
        route = SimpleNamespace(
            request=SimpleNamespace(url=url),
            fulfill=lambda done=done, **_: done.append("answered"),
            abort=lambda done=done: done.append("refused"),
        )
        browser.answer(route, faults)
    assert list(answers.values()) == [["answered"], ["answered"], ["refused"], ["refused"]]
    assert faults == [f"it loads {url}" for url in list(answers)[2:]]


def test_the_navigation_lists_each_page_once():
    def pages(part) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [page for inner in (part.values() if isinstance(part, dict) else part) for page in pages(inner)]

    gallery = tool("gallery")
    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if path.parent != docs / "gallery"}
    # The navigation does not list the reports, because the evidence page lists them.
    written = {page for page in written if not page.startswith("evidence/")} | {"evidence/index.md"}
    made = {"gallery/index.md", *(f"gallery/{entry.name}.md" for entry in gallery.ENTRIES)}
    assert sorted(listed) == sorted(written | made)


def test_the_extra_docs_has_what_builds_the_site():
    """The extra has every package that the tools, the hooks of mkdocs and the examples of the gallery import."""
    text = (ROOT / "mkdocs.yml").read_text()
    hooks = {Path(name) for name in re.findall(r"docs/tools/\w+\.py", text.replace("gallery.py", ""))}
    assert len(hooks) == 3
    own = {"pictures", "diagrams", "curves", "fields", "svg", "charts", "scaling", "gallery", "links", "browser"}
    files = [
        *(ROOT / hook for hook in hooks),
        *(TOOLS / f"{name}.py" for name in own),
        *(ROOT / "examples").glob("*.py"),
    ]
    names = set().union(*map(imported, files)) - {path.stem for path in files} - {"decompops"} - sys.stdlib_module_names
    assert {"optax", "scipy", "matplotlib", "jaxdecomp", "playwright"} <= names
    packages = importlib.metadata.packages_distributions()
    needed = {name for name in names if name in packages}
    # A package may be missing here, such as one that has no wheel for this Python.
    assert not names - needed - {"jaxdecomp", "mpi4py", "playwright"}
    available = with_dependencies(requirements("docs"))
    assert {name for name in needed if not {canonical(one) for one in packages[name]} & available} == set()


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


def requirements(extra: str) -> list[Requirement]:
    """Return what an extra of decompops installs, and what decompops itself needs."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    found = [Requirement(line) for line in project["optional-dependencies"][extra]]
    inner = [one for part in found if part.name == "decompops" for name in part.extras for one in requirements(name)]
    others = [part for part in found if part.name != "decompops"]
    return [*(Requirement(line) for line in project["dependencies"]), *others, *inner]


def with_dependencies(parts: list[Requirement]) -> set[str]:
    """Return the names of packages, and of the packages that they install in this environment."""
    found, waiting = set(), list(parts)
    while waiting:
        part = waiting.pop()
        for extra in ("", *part.extras):
            if (key := (canonical(part.name), extra)) in found:
                continue
            found.add(key)
            try:
                lines = importlib.metadata.requires(part.name) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            inner = map(Requirement, lines)
            waiting += [one for one in inner if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_titles_of_the_gallery_fit_its_navigation():
    gallery = tool("gallery")
    titles = [gallery._described(entry.script)[0] for entry in gallery.ENTRIES]
    assert [title for title in titles if len(title) > 64] == []
    examples = {path.stem for path in gallery.EXAMPLES.glob("*.py")} - {"options"}
    assert {entry.name for entry in gallery.ENTRIES} == examples


@pytest.mark.parametrize("built_by_ci", [True, False])
def test_the_page_of_versions_lists_the_versions_of_each_environment(monkeypatch, tmp_path, built_by_ci):
    versions = tool("versions")
    if built_by_ci:
        # The tool runs the Python of this folder, so that the second column equals the first one.
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (tmp_path / "bin" / "python").chmod(0o755)
        monkeypatch.setenv("DECOMPOPS_OLDEST", str(tmp_path))
    else:
        monkeypatch.delenv("DECOMPOPS_OLDEST", raising=False)
    text = (ROOT / "docs" / "versions.md").read_text()
    page = SimpleNamespace(file=SimpleNamespace(src_uri="versions.md"))
    shown = versions.on_page_markdown(text, page=page)
    assert f"| JAX |{f' {jax.__version__} |' * (2 if built_by_ci else 1)}\n" in shown
    assert ("not built by continuous integration" in shown) is not built_by_ci
    assert versions.on_page_markdown("text", page=SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))) == "text"


def test_names_on_pages_link_to_the_api():
    """The first mention in a text is a link: none in code blocks, headings and links, and none for unknown names."""
    references = tool("references")
    text = """# `FFT3D`
Use `spectral.Poisson(fft)`, `dops.FFT3D`, `ETDRK`, `fft.inverse` or [`io.write`](long_runs.md), then `Poisson`.

```python
`pde.simulate`
```

| `pde.simulate(solver, u, 1.0)` | `Unknown` | ``MPI`` |
"""
    found = references.linked(text)
    expected = text.replace("`spectral.Poisson(fft)`", "[`spectral.Poisson(fft)`][decompops.spectral.Poisson]")
    expected = expected.replace("`dops.FFT3D`", "[`dops.FFT3D`][decompops.FFT3D]")
    expected = expected.replace("`ETDRK`", "[`ETDRK`][decompops.pde.ETDRK]")
    call = "`pde.simulate(solver, u, 1.0)`"
    assert found == expected.replace(call, f"[{call}][decompops.pde.simulate]")


def test_guides_link_to_the_api():
    references = tool("references")
    guides = ["spectral_operators", "equations", "integrators", "walls", "neural_layers", "long_runs", "first_solve"]
    for name in (*guides, "gradients", "faq", "coming_from"):
        links = re.findall(r"\]\[(decompops[.\w]+)\]", references.linked((ROOT / "docs" / f"{name}.md").read_text()))
        assert len(links) >= 3, name
