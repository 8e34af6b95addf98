"""Load the main pages of the built site in headless Chromium, on a telephone's screen and on a desktop's.

    python docs/tools/browser.py site --screenshots build/screenshots

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
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route, sync_playwright


WIDTHS = (390, 1280)
# The code blocks and tables that are wider than their place, as the beginnings of their texts.
CUT = """() => [...document.querySelectorAll(".md-typeset pre > code, .md-typeset table:not([class])")]
    .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText.slice(0, 60))"""
# The theme asks the repository's host for its latest release and its stars.
FACTS = "https://api.github.com/repos/decompops/decompops"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the built site in a real browser.")
    parser.add_argument("site", type=Path, help="the folder that mkdocs has built")
    parser.add_argument("--screenshots", type=Path, required=True, help="the folder for screenshots")
    args = parser.parse_args()
    args.screenshots.mkdir(parents=True, exist_ok=True)
    paths = sorted(path.parent.relative_to(args.site).as_posix() for path in args.site.rglob("index.html"))
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        sys.exit("docs/tools/browser.py needs Chromium; found none in PATH. Install it: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        address = serve(args.site)
        faults = [fault for path in paths for fault in check_page(browser, address, path, args.screenshots)]
        faults += check_search(browser, address)
        browser.close()
    print(*faults, f"{len(paths)} pages, {len(WIDTHS)} widths, {len(faults)} faults", sep="\n")
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


def check_page(browser: Browser, address: str, path: str, screenshots: Path) -> list[str]:
    """Return the faults of a page at each width."""
    faults = []
    for width in WIDTHS:
        page, seen = open_page(browser, address + ("" if path == "." else f"{path}/"), width)
        scroll = page.evaluate("document.documentElement.scrollWidth")
        if scroll > width:
            seen.append(f"it is {scroll} pixels wide")
        if width == max(WIDTHS) and not path.startswith(("api/", "gallery/", "evidence/")):
            seen += [f"it cuts {text!r}" for text in page.evaluate(CUT)]
        name = "home" if path == "." else path.replace("/", "-")
        page.screenshot(path=screenshots / f"{name}-{width}.png", full_page=True)
        page.close()
        faults += [f"/{path} at {width} pixels: {fault}" for fault in seen]
    return faults


def answer(route: Route, faults: list[str]) -> None:
    """Answer a request that leaves the site. Every such request is a fault, except those to `FACTS`."""
    url = route.request.url
    if url == FACTS or url.startswith(f"{FACTS}/"):
        route.fulfill(status=200, json={})
    else:
        faults.append(f"it loads {url}")
        route.abort()


def open_page(browser: Browser, url: str, width: int) -> tuple[Page, list[str]]:
    """Return a loaded page, and a list to which the browser adds faults."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(120_000)  # milliseconds: continuous integration may build packages at the same time
    faults: list[str] = []
    site = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
    page.route(lambda url: not url.startswith(site), lambda route: answer(route, faults))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(url, wait_until="networkidle")
    return page, faults


def check_search(browser: Browser, address: str) -> list[str]:
    """Return the faults of the search."""
    page, faults = open_page(browser, address, 1280)
    page.click("[data-md-component=search-query]")
    page.type("[data-md-component=search-query]", "HaloExchange", delay=20)
    page.wait_for_selector(".md-search-result__item")
    if "HaloExchange" not in page.inner_text(".md-search-result__list"):
        faults.append("the search does not find HaloExchange")
    page.close()
    return faults


if __name__ == "__main__":
    main()
