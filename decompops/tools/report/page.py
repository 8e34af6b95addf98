"""The page of a report in Markdown. It is made from nothing but the JSON of the report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..commands.arguments import is_file_name
from .files import write_own
from .run import SCHEMA
from .scaling_page import busy_lines, is_busy, scaling_lines, with_machine
from .speed_page import benchmark_lines, limit_lines, memory_lines
from .tables import other_grids, size_of, table


Results = dict[str, Any]


def read(file: Path) -> Results:
    """Read a report from a JSON file. Raises `ValueError` if the report does not have the schema `SCHEMA`."""
    try:
        report = json.loads(file.read_text())
    except ValueError as error:  # A file that is no text raises `UnicodeDecodeError`.
        raise ValueError(f"{file} must hold JSON; {error}") from error
    found = report.get("schema") if isinstance(report, dict) else None
    if found != SCHEMA:
        raise ValueError(f"{file} must be a report of schema {SCHEMA}; got schema {found}. Make the report again.")
    name = report.get("name")
    if not (isinstance(name, str) and is_file_name(name)):  # It is a part of the names of the files to write.
        raise ValueError(f"{file} must be a report whose `name` is a file name without a folder; got {name!r}.")
    whole = {"date": str, "shared": bool, "note": str, "sections": dict}
    if missing := [key for key, kind in whole.items() if not isinstance(report.get(key), kind)]:
        raise ValueError(f"{file} must be a whole report; it lacks {', '.join(missing)}. Make the report again.")
    return report


def write_page(report: Results, folder: Path) -> None:
    """Write the page `NAME.md`, and its plots if matplotlib is installed."""
    lines = [f"# Report: {report['name']}", "", *_head(report)]
    for name, (title, body) in _PARTS.items():
        if name not in report["sections"]:
            continue
        section = report["sections"][name]
        lines += [f"## {title}", ""]
        if section["error"]:
            lines += [f"This section failed: `{section['error']}`.", ""]
        if section["data"]:
            lines += body(section["data"], report, folder)
        lines += _missing(section["data"])
    text = "\n".join(lines).rstrip() + "\n"
    write_own(folder / f"{report['name']}.md", text.encode())


def _head(report: Results) -> list[str]:
    seconds = sum(section["seconds"] or 0 for section in report["sections"].values())
    lines = [f"`python -m decompops report` made this page on {report['date']}, in {seconds / 60:.1f} minutes.", ""]
    if report["shared"]:
        lines += [
            "**Others used this machine at the same time.** The page therefore shows ratios of times that were",
            "measured in turns, and no absolute times. Repeated runs differ.",
            "",
        ]
    elif is_busy(report):
        load = report["sections"]["hardware"]["data"]["load_average"]
        lines += [
            f"**Others used this machine: the load average before the run was {load}, which is more than the machine",
            "has cores.** Times are longer than on a quiet machine, and repeated runs differ.",
            "",
        ]
    return [*lines, report["note"], ""] if report["note"] else lines


def _missing(data: Results) -> list[str]:
    """List the cases of a section that failed or were left out."""
    lines = [f"- Failed: {one['case']}: `{one['error']}`" for one in data.get("failed", [])]
    if left_out := data.get("left_out"):
        lines.append(f"- Not run, for lack of time: {'; '.join(left_out)}.")
    return [*lines, ""] if lines else []


def _hardware(data: Results, report: Results, folder: Path) -> list[str]:
    del report, folder
    rows = [*data["cpu"].items(), ("cores that this process may use", data["usable cores"])]
    rows += [(f"memory, {name}", value) for name, value in data["memory"].items()]
    for gpu in data["gpus"].get("list", []):
        rows.append(("GPU", ", ".join(f"{name} {value}" for name, value in gpu.items())))
    rows += [("network", link) for link in data["network"]]
    rows.append(("JAX devices", f"{data['devices']} × {data['device_kind']}"))
    rows.append(("processes, nodes", f"{data['processes']}, {data['nodes']}"))
    rows.append(("load average before the run", data["load_average"]))
    lines = table(("", ""), rows)
    if data["kinds_of_cpus"] > 1:
        lines += [f"The nodes have {data['kinds_of_cpus']} kinds of CPUs. The table shows those of process 0.", ""]
    if topology := data["gpus"].get("topology"):
        lines += ["```text", *topology.splitlines(), "```", ""]
    return lines


def _software(data: Results, report: Results, folder: Path) -> list[str]:
    del report, folder
    rows = [*data["versions"].items(), ("backend of this report", f"`{data['backend']}`")]
    rows += [(f"backend `{name}`", found) for name, found in data["backends"].items()]
    rows += [(f"`{name}`", f"`{value}`") for name, value in data["environment"].items()]
    lines = table(("", ""), rows)
    if data["missing_peers"]:
        lines += [f"Peers that are not installed here: {', '.join(data['missing_peers'])}.", ""]
    return lines


def _selftest(data: Results, report: Results, folder: Path) -> list[str]:
    del report, folder
    total = data["passed"] + len(data["failed"])
    meshes = ", ".join("×".join(map(str, mesh)) for mesh in data["meshes"])
    worst = "" if data["largest_error"] is None else f" The largest relative error is {data['largest_error']:.1e}."
    return [f"{data['passed']} of {total} checks passed, on the meshes {meshes}.{worst}", ""]


def _accuracy(data: Results, report: Results, folder: Path) -> list[str]:
    del report, folder
    if not data["rows"]:
        return []
    found = {(row["operator"], row["dtype"]): row for row in data["rows"]}
    first = data["rows"][0]

    def errors(operator: str, dtype: str) -> list[str]:
        row = found.get((operator, dtype))
        return [f"{row['largest_error']:.1e}", f"{row['rms_error']:.1e}"] if row else ["", ""]

    operators = dict.fromkeys(row["operator"] for row in data["rows"])
    heads = ("operator", "float32, largest", "float32, rms", "float64, largest", "float64, rms")
    return [
        f"Relative errors against NumPy and SciPy in float64, on a grid of {size_of(first['shape'])} cells and the "
        f"mesh {size_of(first['mesh'])}. The largest error is relative to the largest value.",
        *other_grids(data["rows"]),
        "",
        *table(heads, ([f"`{name}`", *errors(name, "float32"), *errors(name, "float64")] for name in operators)),
    ]


def _scaling(data: Results, report: Results, folder: Path) -> list[str]:
    lines = scaling_lines(with_machine(data["rows"], report), folder, report["name"], shared=report["shared"])
    lines = [*busy_lines([report]), *lines]
    if too_many := data.get("too_many_devices"):
        why = "the mesh has more devices along an axis than the grid has cells"
        lines += [f"- Not run, because {why}: {'; '.join(too_many)}.", ""]
    return lines


def _tests(data: Results, report: Results, folder: Path) -> list[str]:
    del report, folder
    if "not_run" in data:
        return [f"Not run: {data['not_run']}.", ""]
    counts = ", ".join(f"{number} {word}" for word, number in data["counts"].items())
    stopped = f", stopped {data['stopped']}" if "stopped" in data else ""
    return [f"`pytest tests/gpu`: {counts or 'no result'}{stopped}.", ""]


# The title of each section, and the function that makes its text, in the order of the page.
_PARTS: dict[str, tuple[str, Callable[[Results, Results, Path], list[str]]]] = {
    "hardware": ("Machine", _hardware),
    "software": ("Software", _software),
    "selftest": ("Self-test", _selftest),
    "tests": ("Tests on GPUs", _tests),
    "accuracy": ("Accuracy", _accuracy),
    "benchmarks": ("Benchmarks", benchmark_lines),
    "limits": ("Limits of memory and network", limit_lines),
    "memory": ("Memory", memory_lines),
    "scaling": ("Scaling", _scaling),
}
