"""The benchmark's results as text."""

from collections import Counter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


LEGEND = "ratio: the median time of decompops divided by the median time in this row. Below 1, decompops is faster."


def title_of(result: dict[str, Any]) -> str:
    """Return a line that names the operator, the grid and the mesh of a result."""
    shape, mesh = ("x".join(map(str, result[key])) for key in ("shape", "mesh"))
    order = {None: "", False: ", natural order", True: ", axis-contiguous order"}[result["axis_contiguous"]]
    compiled = f", compiled in {result['compile_s']:.1f} s" if "compile_s" in result else ""
    return f"{result['operator']} {shape} {result['field_dtype']}, mesh {mesh}{order}{compiled}"


def print_times(result: dict[str, Any]) -> None:
    """Print a table with a row for each contestant."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("contestant", no_wrap=True)
    for heading in ("median\nms", "fastest\nms", "ratio", "relative\nerror"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note")
    for row in result["contestants"]:
        note = row["note"] or ("failed" if _has_failed(row) else row["failure"]) or ""
        error = "" if row["relative_error"] is None else f"{row['relative_error']:.1e}"
        times = [f"{1e3 * row[key]:.2f}" if row[key] is not None else "" for key in ("median_s", "min_s")]
        ratio = "" if row["ratio"] is None or row["name"] == "decompops" else f"{row['ratio']:.2f}"
        table.add_row(row["name"], *times, ratio, error, note)
    _Console().print(table)


def failure_lines(result: dict[str, Any]) -> list[str]:
    """Return a line for each contestant that failed, with the reason, which would be too long for the table."""
    return [f"{row['name']} failed: {row['failure']}" for row in result["contestants"] if _has_failed(row)]


def _has_failed(row: dict[str, Any]) -> bool:
    return row["failure"] not in (None, "not installed")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the `BrokenPipeError` again for the command line to handle.

        By default, rich would end the process with exit code 1, as if a contestant had failed.
        """
        raise


def program_lines(program: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the communication and the memory of one device, as pairs of a label and a text."""
    found = [
        f"{c['count']} {c['kind']}" + ("" if c["kind"] == "collective-permute" else f" (groups of {c['group_size']})")
        for c in program["collectives"]
    ]
    if program["kernel_messages"]:
        found.append(f"{program['kernel_messages']} messages of compiled kernels")
    lines = [("collectives", ", ".join(found) or "none")]
    sent = program["communicated_bytes"]
    counted = "not counted" if sent is None else f"{_bytes(sent)} per device"
    lines.append(("communicated", f"{counted}, at least {_bytes(program['least_communicated_bytes'])} needed"))
    if program["temporary_bytes"] is not None:
        temporary, block = program["temporary_blocks"], program["block_bytes"]
        lines.append(("temporaries", f"{temporary:.2f} blocks of {_bytes(block)}"))
        for name, part in program["temporary_bytes_of_parts"].items():
            lines.append(("extra memory", f"{(program['temporary_bytes'] - part) / block:+.2f} blocks over {name}"))
    if program["kernel_workspace_bytes"]:
        lines.append(("workspace", f"{_bytes(program['kernel_workspace_bytes'])}, for all kernels so far"))
    if passes := program["least_bytes_per_fft_pass"]:
        counts = Counter(map(_bytes, passes))
        listed = ", ".join(size if count == 1 else f"{count} x {size}" for size, count in counts.items())
        lines.append(("memory", f"at least {_bytes(sum(passes))} read and written, by FFT pass: {listed}"))
    return lines


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
