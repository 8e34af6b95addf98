"""The parts of a page on memory, benchmarks and limits."""

from pathlib import Path
from typing import Any

from .tables import mib, percent, plot, ratio, size_of, table


Results = dict[str, Any]


def memory_lines(data: Results, report: Results, folder: Path) -> list[str]:
    """Arguments, results and scratch of each compiled program, beside the least."""
    del report, folder
    if not data["rows"]:
        return []
    first = data["rows"][0]
    heads = ("operator", "arguments", "at least", "results", "at least", "scratch", "all, over the least")

    def cells(row: Results) -> list[str]:
        held = row["arguments"] + row["results"] + row["scratch"]
        least = row["least_arguments"] + row["least_results"]
        names = ("arguments", "least_arguments", "results", "least_results", "scratch")
        return [f"`{row['operator']}`", *(mib(row[name]) for name in names), ratio(held / least)]

    lines = [
        f"What XLA's program holds on one device in MiB, on a grid of {size_of(first['shape'])} cells in {first['dtype']} and the "
        f"mesh {size_of(first['mesh'])}. The least is what arguments and results need without padding.",
        "",
        *table(heads, map(cells, data["rows"])),
    ]
    if data["workspace_of_all_kernels"]:
        lines += [
            f"Compiled kernels hold {mib(data['workspace_of_all_kernels'])} MiB of their own, for all operators so far.",
            "",
        ]
    return lines


def benchmark_lines(data: Results, report: Results, folder: Path) -> list[str]:
    """Our time and its ratio to each peer's."""
    if not data["rows"]:
        return []
    names = list(dict.fromkeys(one["name"] for row in data["rows"] for one in row["contestants"][1:]))
    timed = [name for name in names if any(one["ratio"] for row in data["rows"] for one in _named(row, name))]
    heads = ("operator", "grid", "mesh", "" if report["shared"] else "ours, ms", *timed)

    def cells(row: Results) -> list[str]:
        ours = row["contestants"][0]
        own = None if report["shared"] else f"{1e3 * ours['median_s']:.3g}"
        return [
            f"`{row['operator']}`",
            size_of(row["shape"]),
            size_of(row["mesh"]),
            own or "",
            *(_ratios(row, name) for name in timed),
        ]

    file = folder / f"{report['name']}-benchmarks.svg"
    return [
        "Our time over that of each peer: the ratio of the medians / of the fastest runs. Below 1 ours is faster.",
        f"All contestants ran in turns, {data['rows'][0]['repeats']} times each, in {data['rows'][0]['dtype']} or the complex type of that precision.",
        "",
        *table(heads, map(cells, data["rows"])),
        *_drawn(file, data["rows"], timed),
        *_unusable(data["rows"], names),
    ]


def limit_lines(data: Results, report: Results, folder: Path) -> list[str]:
    """The bandwidths, and the share of them that the benchmarks use."""
    del folder
    lines = []
    if not report["shared"]:
        heads = ("block, MiB", "copy on one device", "copy on all devices", "all-to-all of XLA", "all-to-all of MPI")
        names = ("copy_one", "copy_all", "all_to_all", "mpi_all_to_all")
        rows = ([mib(row["block_bytes"]), *(_rate(row.get(name)) for name in names)] for row in data["rows"])
        lines += [
            "GB/s for each device: read and written in a copy, sent to others in an all-to-all.",
            "",
            *table(heads, rows),
        ]
    else:
        heads = (
            "block, MiB",
            "copy on all devices at once / on one",
            "all-to-all of XLA / copy",
            "all-to-all of MPI / copy",
        )
        rows = ([mib(row["block_bytes"]), *(ratio(value) for value in _relative_rates(row))] for row in data["rows"])
        lines += ["Ratios of bandwidths of each device.", "", *table(heads, rows)]
    if data["shares"]:
        heads = ("operator", "grid", "mesh", "memory", "network", "sum")
        rows = (
            [
                f"`{row['operator']}`",
                *map(size_of, (row["shape"], row["mesh"])),
                percent(row["memory"]),
                percent(row["network"]),
            ]
            + [percent(row["memory"] + row["network"])]
            for row in data["shares"]
        )
        lines += [
            "The time that a benchmark needs at least for its memory and its messages, as a share of the time that it took. Each transform",
            "of local lines must read and write its block once. The bandwidths are those of blocks of about the same size. The time",
            "of a benchmark with no transform, such as a halo exchange, has no share for memory.",
            "",
            *table(heads, rows),
        ]
    return lines


def _named(row: Results, name: str) -> list[Results]:
    return [one for one in row["contestants"] if one["name"] == name]


def _ratios(row: Results, name: str) -> str:
    ours = row["contestants"][0]
    for one in _named(row, name):
        if one["ratio"]:
            return f"{one['ratio']:.2f} / {ours['min_s'] / one['min_s']:.2f}"
    return ""


def _unusable(rows: list[Results], names: list[str]) -> list[str]:
    """Why peers have no time, one line for each reason."""
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
    """The ratios to all peers, drawn for each case."""
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
        ax.legend(fontsize=7, ncols=2)
    return [f"![Our time over each peer's]({file.name})", ""]


# Contestants that are other libraries; the others are parts of ours, and limits.
_PEERS = ("SciPy", "FFTW", "MKL", "jnp.fft", "jaxDecomp", "mpi4py-fft", "dtFFT", "exponax")


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:.3g}"


def _relative_rates(row: Results) -> list[float | None]:
    exchange, by_mpi = row.get("all_to_all"), row.get("mpi_all_to_all")
    copy = row["copy_all"]
    return [copy / row["copy_one"], exchange and exchange / copy, by_mpi and by_mpi / copy]
