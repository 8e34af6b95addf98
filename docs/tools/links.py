"""Check every link of the built site, and of the Markdown files that are not on the site.

python docs/tools/links.py site                   # links within the site and the repository
python docs/tools/links.py site --external        # also links to other sites, which needs a network
python docs/tools/links.py site --try-external    # like --external if there is a network, but only prints the faults
"""

import argparse
import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit


ROOT = Path(__file__).parents[2]
SITE = "https://decompops.github.io/decompops/"
REPOSITORY = "https://github.com/decompops/decompops"
PROBE = "https://github.com/"  # There is a network if this page answers.


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if not (tag == "link" and values.get("rel") in ("canonical", "edit")):
            self.links |= {values[key] for key in ("href", "src") if values.get(key)}
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Check every link of the built site.")
    parser.add_argument("site", type=Path, help="the folder that mkdocs has built")
    parser.add_argument("--external", action="store_true", help="check links to other sites too")
    parser.add_argument(
        "--try-external", action="store_true", help="the same if there is a network, but print faults and do not fail"
    )
    args = parser.parse_args()
    pages = {path.resolve(): Page(path.read_text()) for path in args.site.rglob("*.html")}
    found = {(path, link) for path, page in pages.items() if path.name != "404.html" for link in page.links}
    files = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found |= {(file, link) for file in files for link in re.findall(r"\]\((.*?)\)", file.read_text())}
    external = {link for _, link in found if _is_external(link)}
    broken = [
        f"{path}: {link}"
        for path, link in sorted(found - {(p, link) for p, link in found if _is_external(link)})
        if not _exists(path, link, args.site.resolve(), pages)
    ]
    if external and (args.external or (args.try_external and not _fault(PROBE, timeout=5))):
        with ThreadPoolExecutor(8) as pool:
            faults = zip(sorted(external), pool.map(_fault, sorted(external)))
        faults = [f"{link}: {fault}" for link, fault in faults if fault]
        if args.external:
            broken += faults
        else:  # A fault of another site must not fail continuous integration.
            print(*(f"NOT FOUND: {fault}" for fault in faults), f"{len(external)} external links checked", sep="\n")
    elif external:
        print(f"NOT CHECKED: {len(external)} external links (add --external where there is a network)")
    print(*broken, f"{len(found)} links on {len(pages)} pages, {len(broken)} broken", sep="\n")
    sys.exit(bool(broken))


def _is_external(link: str) -> bool:
    return urlsplit(link).scheme in ("http", "https") and not link.startswith((SITE, REPOSITORY))


def _exists(path: Path, link: str, site: Path, pages: dict[Path, Page]) -> bool:
    """Return whether the site or the repository has the file of a link, and the anchor if the link names one."""
    if urlsplit(link).scheme in ("mailto", "data"):
        return True
    if link.startswith(REPOSITORY):
        return _is_in_repository(link)
    target, anchor = urldefrag(link)
    if target.startswith(SITE):
        file = site / target.removeprefix(SITE)
    elif not target:
        file = path
    else:
        file = Path(unquote(urlsplit(urljoin(path.as_uri(), target)).path))
    # In the repository, a link may name a folder.
    file = (file / "index.html" if file.is_dir() and file.is_relative_to(site) else file).resolve()
    if not file.exists():
        return False
    return not anchor or file not in pages or unquote(anchor) in pages[file].anchors


def _is_in_repository(link: str) -> bool:
    """Return whether a link to the repository names a file of this tree, or a page of GitHub such as the issues."""
    kind, _, rest = urldefrag(link.removeprefix(REPOSITORY).strip("/"))[0].partition("/")
    if kind in ("", "issues", "releases", "discussions", "actions", "pulls", "security"):
        return True
    return kind in ("blob", "tree", "raw", "edit") and (ROOT / rest.partition("/")[2]).exists()


def _fault(link: str, timeout: float = 10) -> str:
    """Return why a page does not answer, or an empty text if it does."""
    request = urllib.request.Request(link, headers={"User-Agent": "Mozilla/5.0"})
    try:
        with urllib.request.urlopen(request, timeout=timeout):
            return ""
    except urllib.error.HTTPError as error:
        # Some publishers answer every program with 403 or 429.
        return "" if error.code in (403, 429) else str(error)
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    main()
