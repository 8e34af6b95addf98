"""Tests that the charts show the numbers of the tables on the pages, and one table the numbers of the reports."""

import json
import re
import runpy
import shutil
import subprocess
import sys

import pytest

from pages import ROOT


SCRIPT = ROOT / "docs/tools/charts.py"
CHARTS = runpy.run_path(str(SCRIPT))
PAGE = """
## Another section

| a | b |
|---|---|
| not | 7.0 |

## One

Text.

| operator | mesh | `MPI()` | XLA¹ | scratch |
|---|---|---|---|---|
| forward¹ | 2×1 | 0.89 / 0.69 | 1.5, 1.25 | 3.0 |
| | 1×2 | 0.08 to 0.1 | – | 4.0 |
"""


def test_the_charts_show_the_tables():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_table_is_read():
    chart = CHARTS["Chart"]("name", "page", "One", keys=2, series=2)
    assert CHARTS["read"](chart, PAGE) == {
        "MPI()": {"forward, 2×1": [0.89, 0.69], "forward, 1×2": [0.08, 0.1]},
        "XLA": {"forward, 2×1": [1.5, 1.25]},
    }
    assert CHARTS["read"](CHARTS["Chart"]("name", "page", "One", series=("scratch",)), PAGE) == {
        "scratch": {"forward": [4.0]}
    }
    with pytest.raises(ValueError, match="two columns have the same name"):
        CHARTS["read"](chart, PAGE.replace("XLA¹", "MPI()"))


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("1.00 (1.12)", [1.0, 1.12]),
        ("17.72 (7.9 GiB)", [17.72]),
        ("2.01¹", [2.01]),
        ("0", [0.0]),
        ("1.25 GiB", []),
        ("1.22 P + 0.09 R", [1.31]),
        ("< 0.01", [0.01]),
    ],
)
def test_a_cell_is_read(cell, found):
    assert CHARTS["numbers"](cell) == found


def test_a_changed_number_and_a_table_without_a_chart_are_noticed(tmp_path):
    """In a copy of the pages, one number is changed and a table is added. The check of the charts reports both."""
    copy = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", copy)
    page = copy / "benchmarks.md"
    table = "\n## A section\n\n| a | b |\n|---|---|\n| c | 7 |\n"
    page.write_text(page.read_text().replace("| 0.89 / 0.69 |", "| 0.88 / 0.69 |") + table)
    done = subprocess.run([sys.executable, copy / "tools/charts.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "native.svg shows other numbers than its table in docs/benchmarks.md",
        'table 0 of "A section" in docs/benchmarks.md has no chart: add one to `ALL`, or a reason to `WITHOUT`',
        "Run `python docs/tools/charts.py`.",
    ]


def test_every_series_has_numbers():
    for chart in CHARTS["ALL"]:
        text = (ROOT / f"docs/{chart.page}.md").read_text()
        assert all(CHARTS["read"](chart, text).values()), chart.name


def test_the_table_of_limits_shows_the_reports():
    """docs/performance.md shows the fastest and the median times of 256³ that the two reports hold."""
    text = (ROOT / "docs/performance.md").read_text()
    header, *body = CHARTS["tables"](text, "A transform beside its limit")[0]
    shown = {
        (re.sub(r"decompops, |`|\(\)", "", name), column): cell
        for name, *row in body
        for column, cell in zip(header[1:], row)
    }
    found = {}
    for machine, report in (("AMD EPYC", "amd-epyc-2-cores"), ("Intel Xeon", "intel-xeon-2-cores")):
        rows = json.loads((ROOT / f"docs/evidence/{report}.json").read_text())["sections"]["benchmarks"]["data"]["rows"]
        for row in rows:
            kind = {"fft": "complex", "rfft": "real"}.get(row["operator"])
            if kind and row["shape"] == [256] * 3:
                for one in row["contestants"]:
                    name = {"decompops": "Native", "our XLA backend": "XLA"}.get(one["name"], one["name"])
                    times = [one["min_s"], one["median_s"]]
                    cell = " / ".join(f"{1e3 * time:.3g}" for time in times) if all(times) else ""
                    found[name, f"{machine}, {kind}"] = cell
    assert len(found) == 32
    assert shown == found
