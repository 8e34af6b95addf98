"""Tests of the links between Markdown files and to their headings. `docs/tools/links.py` checks the built site."""

import re
import tomllib
import unicodedata
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

from pages import ROOT


DOCS = ROOT / "docs"
SITE = "https://decompops.github.io/decompops/"
REPOSITORY = r"https://github\.com/decompops/decompops/(?:blob|tree|raw)/main/"
# `docs/tools/gallery.py` generates a page for each of these examples. The pages are not in the repository.
GALLERY = DOCS / "gallery"
PAGES = sorted(
    path
    for folder in (".", ".github", "docs", "examples")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
    if GALLERY not in path.parents
)


def prose(path: Path) -> str:
    """Return the text of a page without its code."""
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("](", "] ("), text)


def links(path: Path) -> list[str]:
    text = prose(path)
    return re.findall(r"\]\(\s*([^)\s]+)[^)]*\)", text) + re.findall(r'(?:href|src)="([^"]+)"', text)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page. The site makes them for pages in `docs`, and GitHub makes them for other pages."""
    text = prose(path)
    found = set(re.findall(r'\bid="([^"]+)"', text)) | set(re.findall(r"^::: (\S+)", text, re.MULTILINE))
    slug, joint = (on_site, "_") if DOCS in path.parents else (on_host, "-")
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} (.*?)#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        name = slug(plain.strip())
        found.add(f"{name}{joint}{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def on_site(heading: str) -> str:
    """Return the anchor that Python-Markdown makes for a heading."""
    text = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def on_host(heading: str) -> str:
    """Return the anchor that GitHub makes for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def fault(page: Path, link: str) -> str | None:
    """Return why a link is broken, or `None` if the link works. Links to other sites are not checked."""
    target, _, anchor = link.partition("#")
    if target.startswith(SITE):
        file = page_of_site(target.removeprefix(SITE))
    elif re.match(REPOSITORY, target):
        file = ROOT / re.sub(REPOSITORY, "", target)
    elif re.match(r"\w+:", target):
        return None
    else:
        file = (page.parent / unquote(target)).resolve() if target else page
    if file.parent == GALLERY:
        made = file.name == "index.md" or (ROOT / "examples" / f"{file.stem}.py").exists()
        return None if made else "the gallery has no such page"
    if not file.exists():
        return "there is no such file"
    if DOCS in page.parents and file != page and not re.match(r"\w+:", target) and DOCS not in file.parents:
        return "the site has no files outside `docs`"
    if anchor and file.suffix == ".md" and unquote(anchor) not in anchors(file):
        return "the page has no such heading"
    return None


def page_of_site(path: str) -> Path:
    """Return the source of a page of the site, or a file that the site copies."""
    file = DOCS / path
    if not path.endswith("/") and path:
        return file
    page = DOCS / f"{path.strip('/')}.md"
    return page if page.exists() or page.parent == GALLERY else file / "index.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page):
    assert {link: found for link in links(page) if (found := fault(page, link))} == {}


def test_a_package_index_gets_absolute_links():
    """Links of the README work in a clone and on a code host. An index shows the README elsewhere (pyproject.toml)."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        hook = tomllib.load(file)["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    readme = ROOT / hook["fragments"][0]["path"]
    text = readme.read_text()
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    found = re.findall(r"\]\(([^)]*)\)", text)
    assert len(found) > 30
    assert [link for link in found if not link.startswith("https://") or fault(readme, link)] == []


def test_broken_links_are_found():
    page = DOCS / "faq.md"
    good = (
        "cluster.md",
        "cluster.md#what-works-and-what-you-must-keep-to",
        f"{SITE}fft/",
        "#waiting",
        "https://x.org/y",
    )
    assert [link for link in good if fault(page, link)] == []
    bad = (
        "clusters.md",
        "cluster.md#what-you-may-rely-on",
        f"{SITE}ffts/",
        "#sitting",
        "gallery/juggling.md",
        "../ffi",
    )
    assert [link for link in bad if not fault(page, link)] == []
    assert len(PAGES) > 40
    assert sum(len(links(page)) for page in PAGES) > 200
