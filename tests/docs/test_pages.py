"""Every page with Python code has a test that runs it."""

from pages import ROOT, blocks


# The tests of another folder run the code of these pages.
ELSEWHERE = {"extending": "tests/examples/test_extending.py"}


def test_each_page_with_code_is_tested():
    pages = {path.stem for path in (ROOT / "docs").glob("*.md") if blocks(f"docs/{path.name}")}
    tested = {page for page in pages if (ROOT / ELSEWHERE.get(page, f"tests/docs/test_{page}.py")).exists()}
    assert tested == pages
