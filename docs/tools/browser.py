"""Load the main pages of the built site in headless Chromium, on a telephone's screen and on a desktop's.

    python docs/tools/browser.py site                                   # checks the pages
    python docs/tools/browser.py site --screenshots build/screenshots   # and writes a picture of each

A page must not scroll sideways, and must print no error to the console. On a desktop's screen, no code and no table of
a guide may be cut. From other sites, a page must load nothing except facts about the repository, which the theme loads
from GitHub. The search must find `HaloExchange`. The script needs `playwright` and Chromium (`apt install chromium`).
"""

import argparse
import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, ViewportSize, sync_playwright


WIDTHS = (390, 1280)
# A tab waits until its page has requested nothing for half a second. Meanwhile, other tabs load pages.
TABS = 4
# To read the index of the search takes longer than to show a page. So only the check of the search gets the real one.
INDEX = "**/search_index.json"
EMPTY_INDEX = {"config": {"lang": ["en"], "separator": " ", "pipeline": [], "fields": {}}, "docs": []}
# The code blocks and tables that are wider than their place, as the beginnings of their texts.
CUT = """() => [...document.querySelectorAll(".md-typeset pre > code, .md-typeset table:not([class])")]
    .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText.slice(0, 60))"""
# The theme asks the repository's host for its latest release and its stars.
FACTS = "https://api.github.com/repos/decompops/decompops"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the built site in a real browser.")
    parser.add_argument("site", type=Path, help="the folder that mkdocs has built")
    parser.add_argument("--screenshots", type=Path, help="the folder for screenshots (default: none are made)")
    args = parser.parse_args()
    if args.screenshots:
        args.screenshots.mkdir(parents=True, exist_ok=True)
    paths = sorted(path.parent.relative_to(args.site).as_posix() for path in args.site.rglob("index.html"))
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        sys.exit("docs/tools/browser.py needs Chromium; found none in PATH. Install it: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        address, faults = serve(args.site), []
        tabs = [open_tab(browser, address) for _ in range(TABS)]
        for first in range(0, len(paths), TABS):
            loaded = [(*tab, path) for tab, path in zip(tabs, paths[first:])]
            for page, _, path in loaded:
                page.set_viewport_size(size(WIDTHS[0]))
                page.goto(address + ("" if path == "." else f"{path}/"), wait_until="commit")
            for page, seen, path in loaded:
                page.wait_for_load_state("networkidle")
                faults += check_page(page, seen, path, args.screenshots)
        faults += check_search(*tabs[0], address)
        browser.close()
    print(*faults, f"{len(paths)} pages, {len(WIDTHS)} widths, {len(faults)} faults", sep="\n")
    if args.screenshots:
        print(f"Screenshots: {args.screenshots.resolve()}")
    sys.exit(bool(faults))


def serve(site: Path) -> str:
    """Serve a folder from a thread, and return the address of the server."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            """Print nothing for each request."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def open_tab(browser: Browser, address: str) -> tuple[Page, list[str]]:
    """Return an empty tab of the browser, and the list to which it adds each fault of a page that is loaded in it.

    Each tab shows many pages, one after the other, and loads the scripts and styles that they share only once.
    """
    page, seen = browser.new_page(), []
    page.set_default_timeout(120_000)  # milliseconds: continuous integration may build packages at the same time
    page.route(lambda url: not url.startswith(address), lambda route: answer(route, seen))
    page.route(INDEX, lambda route: route.fulfill(status=200, json=EMPTY_INDEX))
    page.on("console", lambda message: seen.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: seen.append(str(error)))
    return page, seen


def size(width: int) -> ViewportSize:
    return {"width": width, "height": 900}


def check_page(page: Page, seen: list[str], path: str, screenshots: Path | None) -> list[str]:
    """Return the faults of a page at each width."""
    faults: list[str] = []
    for width in WIDTHS:
        page.set_viewport_size(size(width))
        scroll = page.evaluate("document.documentElement.scrollWidth")
        if scroll > width:
            seen.append(f"it is {scroll} pixels wide")
        if width == max(WIDTHS) and not path.startswith(("api/", "gallery/", "evidence/")):
            seen += [f"it cuts {text!r}" for text in page.evaluate(CUT)]
        if screenshots:
            name = "home" if path == "." else path.replace("/", "-")
            page.screenshot(path=screenshots / f"{name}-{width}.png", full_page=True)
        faults += [f"/{path} at {width} pixels: {fault}" for fault in seen]
        seen.clear()
    return faults


def answer(route: Route, faults: list[str]) -> None:
    """Answer a request that leaves the site. Every such request is a fault, except those to `FACTS`."""
    url = route.request.url
    if url == FACTS or url.startswith(f"{FACTS}/"):
        route.fulfill(status=200, json={})
    else:
        faults.append(f"it loads {url}")
        route.abort()


def check_search(page: Page, seen: list[str], address: str) -> list[str]:
    """Return the faults of the search."""
    page.unroute(INDEX)
    page.goto(address, wait_until="networkidle")
    page.click("[data-md-component=search-query]")
    page.type("[data-md-component=search-query]", "HaloExchange", delay=20)
    page.wait_for_selector(".md-search-result__item")
    found = "HaloExchange" in page.inner_text(".md-search-result__list")
    return [*seen, *([] if found else ["the search does not find HaloExchange"])]


if __name__ == "__main__":
    main()
