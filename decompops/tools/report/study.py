"""The page of a scaling study, which combines several reports."""

from pathlib import Path
from typing import Any

from .files import write_own
from .scaling_page import busy_lines, scaling_lines, with_machine
from .tables import table


def write_study(reports: list[dict[str, Any]], folder: Path, name: str) -> None:
    """Write the page `NAME.md` with the points of all reports, and its plots if matplotlib is installed."""
    points, machines = [], []
    for report in reports:
        sections = report["sections"]
        points += with_machine(sections.get("scaling", {}).get("data", {}).get("rows", []), report)
        hardware = sections.get("hardware", {}).get("data", {})
        names = ("device_kind", "devices", "processes", "nodes")
        machines.append([report["name"], report["date"], *(hardware.get(name) for name in names)])
    shared = any(report["shared"] for report in reports)
    lines = [
        f"# Scaling study: {name}",
        "",
        "`python -m decompops report --from` made this page from these reports:",
        "",
        *table(("report", "date", "device", "devices", "processes", "nodes"), machines),
        *busy_lines(reports),
        *scaling_lines(points, folder, name, shared=shared),
    ]
    write_own(folder / f"{name}.md", ("\n".join(lines).rstrip() + "\n").encode())
