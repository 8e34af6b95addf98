"""A hook of mkdocs: links the public names on the pages to the API, so that no page needs these links in its source.

The first mention of a name outside headings, links and code blocks becomes a link. For example,
`` `spectral.Poisson(fft)` `` links to `decompops.spectral.Poisson`. Names are those that the pages of `docs/api`
document.
"""

import functools
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import yaml


API = Path(__file__).parents[1] / "api"
# Code blocks, headings, tables' rules and links are kept as they are.
KEPT = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$|^#.*?$|!?\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])|<[^>\n]+>", re.S | re.M)
CODE = re.compile(r"(?<![`\[])`([A-Za-z_][\w.]*)((?:\([^`\n]*)?)`(?![`\]])")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the names on a page. mkdocs calls this function for each page."""
    return markdown if page.file.src_uri.startswith("api/") else linked(markdown)


def linked(markdown: str) -> str:
    seen: set[str] = set()

    def link(code: re.Match) -> str:
        target = names().get(code[1])
        if target is None or target in seen:
            return code[0]
        seen.add(target)
        return f"[{code[0]}][{target}]"

    parts, end = [], 0
    for kept in KEPT.finditer(markdown):
        parts += [CODE.sub(link, markdown[end : kept.start()]), kept[0]]
        end = kept.end()
    return "".join([*parts, CODE.sub(link, markdown[end:])])


@functools.cache
def names() -> dict[str, str]:
    """Return the documented names as pages write them, such as "pde.ETDRK" and "dops.FFT3D", with their full names.

    A class is also known by its last part alone, unless two modules have such a class.
    """
    found: dict[str, str] = {}
    doubtful = set()
    for full in documented():
        short = full.removeprefix("decompops.")
        last = short.rpartition(".")[2]
        found |= {short: full, f"dops.{short}": full} if "." in short or short[0].isupper() else {f"dops.{short}": full}
        if last[0].isupper() and last != short:
            doubtful |= {last} & set(found)
            found[last] = full
    return {name: full for name, full in found.items() if name not in doubtful}


def documented() -> list[str]:
    """Return the full names that the pages of the API document."""
    found = []
    for page in sorted(API.glob("*.md")):
        for name, block in re.findall(r"^::: (\S+)\n((?: +\S.*\n)*)", page.read_text(), re.MULTILINE):
            members = (yaml.safe_load(block) or {}).get("options", {}).get("members")
            if page.name == "extend.md" or members is False:
                continue
            if members is True:
                shown = vars(importlib.import_module(name)).items()
                members = [key for key, value in shown if key[0] != "_" and not inspect.ismodule(value)]
            found += [f"{name}.{member}" for member in members] if members else [name]
    return [name for name in found if "._" not in name]
