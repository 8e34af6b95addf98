"""The parts of a page about memory, benchmarks, and the limits of memory and network."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .tables import mib, other_grids, percent, plot, ratio, size_of, table


Results = dict[str, Any]


def memory_lines(data: Results, report: Results, folder: Path) -> list[str]:
    """Show the memory of each compiled program: arguments, results, scratch, and the least memory that it needs."""
    del report, folder
    if not data["rows"]:
        return []
    first = data["rows"][0]
    names = ("arguments", "least_arguments", "results", "least_results", "scratch")
    heads = ("operator", "arguments", "at least", "results", "at least", "scratch", "all, over the least")

    def cells(row: Results) -> list[str]:
        held = row["arguments"] + row["results"] + row["scratch"]
        least = row["least_arguments"] + row["least_results"]
        return [f"`{row['operator']}`", *(mib(row[name]) for name in names), ratio(held / least)]

    lines = [
        f"MiB that XLA's program holds on one device, on a grid of {size_of(first['shape'])} cells in "
        f"{first['dtype']} and the mesh {size_of(first['mesh'])}.",
        "The least is what arguments and results need without padding.",
        *other_grids(data["rows"]),
        "",
        *table(heads, map(cells, data["rows"])),
    ]
    if workspace := data["workspace_of_all_kernels"]:
        lines += [f"Compiled kernels hold {mib(workspace)} MiB of their own, for all operators so far.", ""]
    return lines


def benchmark_lines(data: Results, report: Results, folder: Path) -> list[str]:
    """Show our time and its ratio to the time of each peer."""
    if not data["rows"]:
        return []
    names = list(dict.fromkeys(one["name"] for row in data["rows"] for one in row["contestants"][1:]))
    timed = [name for name in names if any(one["ratio"] for row in data["rows"] for one in _named(row, name))]
    heads = ("operator", "grid", "mesh", "" if report["shared"] else "ours, ms", *timed)

    def cells(row: Results) -> list[str]:
        own = "" if report["shared"] else f"{1e3 * row['contestants'][0]['median_s']:.3g}"
        case = [f"`{row['operator']}`", size_of(row["shape"]), size_of(row["mesh"]), own]
        return [*case, *(_ratios(row, name) for name in timed)]

    first = data["rows"][0]
    return [
        "Our time over that of each peer: the ratio of the medians / of the fastest runs. Below 1 ours is faster.",
        f"All contestants ran in turns, repeats: {first['repeats']}. The precision is that of {first['dtype']}.",
        "",
        *table(heads, map(cells, data["rows"])),
        *_legend(data["rows"], timed),
        *_drawn(folder / f"{report['name']}-benchmarks.svg", data["rows"], timed),
        *_unusable(data["rows"], names),
    ]


def limit_lines(data: Results, report: Results, folder: Path) -> list[str]:
    """Show the measured bandwidths, and the share of these bandwidths that each benchmark uses."""
    del folder
    exchanges = ("all-to-all of XLA", "all-to-all of MPI")
    if report["shared"]:
        lines = ["Ratios of bandwidths of each device.", ""]
        heads = ("block, MiB", "copy on all devices / on one", *(f"{name} / copy" for name in exchanges))
        values, text = _relative_rates, ratio
    else:
        lines = ["GB/s of each device: read and written in a copy, sent to others in an all-to-all.", ""]
        heads = ("block, MiB", "copy on one device", "copy on all devices", *exchanges)
        values, text = _rates, "{:.3g}".format
    lines += table(heads, ([mib(row["block_bytes"]), *_texts(values(row), text)] for row in data["rows"]))
    if not data["shares"]:
        return lines
    largest = max(row["block_bytes"] for row in data["rows"])
    return [
        *lines,
        "The time that memory and messages need at least, as a share of the time of each benchmark:",
        "",
        *table(("operator", "grid", "mesh", "memory", "network", "sum"), map(_shares, data["shares"])),
        "For the column `memory`, each transform of lines that one device holds reads and writes its block at least",
        "once. An operator without transforms, such as a halo exchange, has no share for memory. The bandwidth of",
        f"memory is that of a copy of the largest block on all devices, {mib(largest)} MiB, because smaller blocks may",
        "stay in a cache. The bandwidth of the network is that of the block nearest in size. A share above 100 % means",
        "that the data stayed in a cache, or that memory and network overlapped.",
        "",
    ]


def _shares(row: Results) -> list[str]:
    parts = row["memory"], row["network"], row["memory"] + row["network"]
    return [f"`{row['operator']}`", size_of(row["shape"]), size_of(row["mesh"]), *map(percent, parts)]


def _named(row: Results, name: str) -> list[Results]:
    return [one for one in row["contestants"] if one["name"] == name]


def _ratios(row: Results, name: str) -> str:
    ours = row["contestants"][0]
    for one in _named(row, name):
        if one["ratio"]:
            return f"{one['ratio']:.2f} / {ours['min_s'] / one['min_s']:.2f}"
    return ""


# Explanations of our own programs. Notes explain the contestants of other libraries.
_LEGEND = {
    "our XLA backend": "the same operator with `backend=dops.XLA()`",
    "memory alone": "as many reads and writes of the data as axes are transformed, without any computation",
    "our forward": "our forward transform alone, beside an operator that also transforms back",
    "its FFTs": "only the FFTs that the solver makes, of as many fields and with the same modes",
    "its FFTs with all modes": "these FFTs, also of the modes that the solver drops",
}


def _legend(rows: list[Results], names: list[str]) -> list[str]:
    """Return lines that explain the columns. Columns with the same explanation share a line."""
    columns: dict[str, list[str]] = {}
    for name in names:
        operators: dict[str, list[str]] = {}
        for row in rows:
            for one in _named(row, name):
                if one["ratio"] and row["operator"] not in operators.setdefault(one["note"], []):
                    operators[one["note"]].append(row["operator"])
        notes = [f"{note} (`{'`, `'.join(of)}`)" for note, of in operators.items() if note]
        if len(operators) == 1:
            notes = [note for note in operators if note]
        columns.setdefault(_LEGEND.get(name) or "; ".join(notes), []).append(name)
    return [*(f"- {', '.join(of)}: {text}." for text, of in columns.items() if text), ""]


def _unusable(rows: list[Results], names: list[str]) -> list[str]:
    """Return lines that explain why peers were not timed, one line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for one in row["contestants"]:
            if one["failure"]:
                cases = reasons.setdefault((one["name"], one["failure"]), [])
                cases.append(f"{row['operator']} {size_of(row['shape'])}")
    absent = [name for name, failure in reasons if failure == "not installed"]
    lines = [f"- Not installed: {', '.join(name for name in names if name in absent)}."] if absent else []
    for (name, failure), cases in reasons.items():
        if failure != "not installed":
            lines.append(f"- {name} did not take part in {', '.join(cases)}: {failure}")
    return [*lines, ""] if lines else []


def _drawn(file: Path, rows: list[Results], names: list[str]) -> list[str]:
    """For each case, plot the ratios of our time to the times of the peers."""
    peers = [name for name in names if name in _PEERS]
    if not peers:
        return []
    with plot(file, width=6.8) as ax:
        if ax is None:
            return []
        labels = [f"{row['operator']} {size_of(row['shape'])}" for row in rows]
        for name in peers:
            found = [(i, one["ratio"]) for i, row in enumerate(rows) for one in _named(row, name) if one["ratio"]]
            ax.plot(*zip(*found), "o", label=name, markersize=4)
        ax.axhline(1, color="black", linewidth=0.8)
        ax.set(yscale="log", ylabel="our time / the peer's", xticks=range(len(labels)))
        ax.set_xticklabels(labels, rotation=90)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return [f"![Our time over each peer's]({file.name})", ""]


# The contestants that are other libraries.
_PEERS = ("SciPy", "FFTW", "MKL", "jnp.fft", "jaxDecomp", "mpi4py-fft", "dtFFT", "exponax")


def _rates(row: Results) -> list[float | None]:
    names = ("copy_one", "copy_all", "all_to_all", "mpi_all_to_all")
    return [row[name] / 1e9 if name in row else None for name in names]


def _relative_rates(row: Results) -> list[float | None]:
    copy, *exchanges = _rates(row)[1:]
    relative = [row["copy_all"] / row["copy_one"]]
    return [*relative, *(rate and copy and rate / copy for rate in exchanges)]


def _texts(values: list[float | None], text: Callable[[float], str]) -> list[str]:
    return ["" if value is None else text(value) for value in values]
