"""The benchmark's results as tables."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table


def print_measured(title: str, results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print each result as soon as it is there; returns all."""
    console, printed = _console(), []
    for result in results:
        console.print(f"[bold]{_describe(result)}, {title}[/]", highlight=False)
        table = Table()
        table.add_column("contestant")
        for heading in ("median ms", "min ms", "ours / peer", "rel. error"):
            table.add_column(heading, justify="right")
        table.add_column("note")
        for row in result["contestants"]:
            note = row["failure"] or row["note"] or ""
            error = "" if row["relative_error"] is None else f"{row['relative_error']:.1e}"
            times = [f"{1e3 * row[key]:.2f}" if row[key] is not None else "" for key in ("median_s", "min_s")]
            ratio = "" if row["ratio"] is None or row["name"] == "decompops" else f"{row['ratio']:.2f}"
            table.add_row(row["name"], *times, ratio, error, note)
        console.print(table)
        console.print(*_program_lines(result["program"]), sep="\n", highlight=False)
        console.print()
        printed.append(result)
    return printed


def print_on_paper(title: str, results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print each compiled program as soon as it is there; returns all."""
    console, printed = _console(), []
    for result in results:
        console.print(
            f"[bold]{_describe(result)}, {title}[/], compiled in {result['compile_s']:.1f} s", highlight=False
        )
        console.print(*_program_lines(result["program"]), "", sep="\n", highlight=False)
        printed.append(result)
    return printed


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the exit code to the command line; rich would exit with 1, which says that something failed."""
        raise


def _console() -> Console:
    console = _Console()
    # Into a pipe or a file, rich would cut the lines at 80 columns.
    return console if console.is_terminal else _Console(width=140)


def _describe(result: dict[str, Any]) -> str:
    shape, mesh = ("x".join(map(str, result[key])) for key in ("shape", "mesh"))
    order = {None: "", False: ", natural order", True: ", axis-contiguous order"}[result["axis_contiguous"]]
    return f"{result['operator']} {shape} {result['field_dtype']}, mesh {mesh}{order}"


def _program_lines(program: dict[str, Any]) -> list[str]:
    """What the program communicates and holds, for one device."""
    found = [
        f"{c['count']} {c['kind']}" + ("" if c["kind"] == "collective-permute" else f" (groups of {c['group_size']})")
        for c in program["collectives"]
    ]
    if program["kernel_messages"]:
        found.append(f"{program['kernel_messages']} messages of compiled kernels")
    lines = [f"  collectives   {', '.join(found) or 'none'}"]
    sent, least = program["communicated_bytes"], program["least_communicated_bytes"]
    lines.append(f"  communicated  {_bytes(sent)} per device, at least {_bytes(least)} needed")
    if program["temporary_bytes"] is not None:
        temporary, block = program["temporary_blocks"], program["block_bytes"]
        lines.append(f"  temporaries   {temporary:.2f} blocks of {_bytes(block)}")
        for name, part in program["temporary_bytes_of_parts"].items():
            lines.append(f"  extra memory  {(program['temporary_bytes'] - part) / block:+.2f} blocks over {name}")
    if program["kernel_workspace_bytes"]:
        lines.append(f"  work space    {_bytes(program['kernel_workspace_bytes'])}, for all kernels so far")
    if passes := program["least_bytes_per_fft_pass"]:
        counts = Counter(map(_bytes, passes))
        listed = ", ".join(size if count == 1 else f"{count} x {size}" for size, count in counts.items())
        lines.append(f"  memory        at least {_bytes(sum(passes))} read and written, by FFT pass: {listed}")
    return lines


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
