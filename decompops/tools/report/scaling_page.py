"""The part of a page about scaling. Its points may come from one report or from several."""

from itertools import groupby, product
from pathlib import Path
from typing import Any

from .tables import mib, plot, ratio, size_of, table


Results = dict[str, Any]
_TITLES = {
    "strong": "Strong scaling: the same grid on more devices",
    "weak": "Weak scaling: the same block on each device",
}
_STYLES = {"fft": "-", "rfft": "--"}


def with_machine(points: list[Results], report: Results) -> list[Results]:
    """Add the kind of machine and the number of nodes to each point of a report."""
    hardware = report["sections"].get("hardware", {}).get("data", {})
    software = report["sections"].get("software", {}).get("data", {})
    nodes, kind = hardware.get("nodes", 1), hardware.get("device_kind", "devices")
    machine = f"{kind}, {software.get('backend', 'default backend')}"
    if kind == "cpu":
        machine = f"{hardware['cpu'].get('model', 'CPU')}, {software.get('backend', 'default backend')}"
    return [{**point, "nodes": nodes, "machine": machine} for point in points]


def is_busy(report: Results) -> bool:
    """Return whether other programs used the machine during the report.

    This is so if the option `--shared` was given, or if the load average before the run exceeded the number of cores.
    """
    hardware = report["sections"].get("hardware", {}).get("data", {})
    cores = hardware.get("cores") or hardware.get("usable cores") or float("inf")
    return report["shared"] or (hardware.get("load_average") or 0.0) > cores


def busy_lines(reports: list[Results]) -> list[str]:
    """Return a warning if speed-ups were measured while other programs used the machine."""
    busy = [report["name"] for report in reports if is_busy(report)]
    if not busy:
        return []
    where = "this machine" if len(reports) == 1 else f"the machine of {', '.join(busy)}"
    return [
        f"**Others used {where} at the same time, so these speed-ups and efficiencies are no evidence of scaling.**",
        "Measure them again on a quiet machine. The ratios to peers stay useful, because all contestants ran in turns.",
        "",
    ]


def scaling_lines(points: list[Results], folder: Path, stem: str, *, shared: bool) -> list[str]:
    """Make tables and a plot for each kind of machine."""
    lines = []
    points = sorted(points, key=lambda one: (one["machine"], one["kind"], one["operator"], one["devices"], one["mesh"]))
    for number, (machine, group) in enumerate(groupby(points, key=lambda one: one["machine"])):
        mine = list(group)
        lines += [f"On {machine}:", ""]
        file = folder / (f"{stem}-scaling.svg" if number == 0 else f"{stem}-scaling-{number + 1}.svg")
        lines += _drawn(mine, file)
        for kind, title in _TITLES.items():
            rows = [point for point in mine if point["kind"] == kind]
            lines += _tables(kind, title, rows, shared) if rows else []
    return lines or ["No results.", ""]


def _tables(kind: str, title: str, points: list[Results], shared: bool) -> list[str]:
    peers = list(dict.fromkeys(one["name"] for point in points for one in point["contestants"][1:] if one["ratio"]))
    heads = ("operator", "devices", "processes", "nodes", "mesh", "grid", "" if shared else "ms")
    heads += ("speed-up", "efficiency") if kind == "strong" else ("efficiency",)
    heads += (*(f"ours / {name}" for name in peers), "sent, MiB")

    def cells(point: Results) -> list[str]:
        base = _base(points, point["operator"])
        speed_up = _time(base) / _time(point)
        more = point["devices"] / base["devices"]
        efficiency = speed_up / more if kind == "strong" else speed_up
        own = "" if shared else f"{1e3 * _time(point):.3g}"
        found = [point[name] for name in ("devices", "processes", "nodes")]
        ratios = {one["name"]: one["ratio"] for one in point["contestants"]}
        return [
            *(f"`{point['operator']}`", *map(str, found), size_of(point["mesh"]), size_of(point["shape"]), own),
            *([ratio(speed_up)] if kind == "strong" else []),
            *(ratio(efficiency), *(ratio(ratios.get(name)) for name in peers)),
            mib(point["program"]["communicated_bytes"]),
        ]

    timed = [point for point in points if point["contestants"][0]["median_s"]]
    return [
        f"### {title}",
        "",
        "Speed-up and efficiency compare with the fastest mesh of the fewest devices. The last column is what a device",
        "sends in one transform.",
        "",
        *table(heads, map(cells, timed)),
    ]


def _time(point: Results, name: str = "decompops") -> float:
    return next((one["median_s"] for one in point["contestants"] if one["name"] == name), None) or float("inf")


def _base(points: list[Results], operator: str) -> Results:
    """Return the fastest point on the fewest devices."""
    mine = [point for point in points if point["operator"] == operator]
    return min(mine, key=lambda point: (point["devices"], _time(point)))


def _drawn(points: list[Results], file: Path) -> list[str]:
    """Plot the speed of each library on its fastest meshes, divided by decompops's speed on the fewest devices."""
    if len({point["devices"] for point in points}) < 2:
        return []
    names = list(dict.fromkeys(one["name"] for point in points for one in point["contestants"]))
    with plot(file, 2) as axes:
        if axes is None:
            return []
        for ax, kind in zip(axes, _TITLES):
            mine = [point for point in points if point["kind"] == kind]
            counts = sorted({point["devices"] for point in mine})
            for (number, name), (operator, style) in product(enumerate(names), _STYLES.items()):
                if speeds := _speeds([point for point in mine if point["operator"] == operator], name):
                    ax.plot(*zip(*speeds), f"o{style}C{number}", markersize=3, label=f"{name}, {operator}")
            ideal = [count / counts[0] if kind == "strong" else 1.0 for count in counts]
            ax.plot(counts, ideal, ":k", linewidth=0.8, label="ideal")
            ax.set(xscale="log", xlabel="devices", title=f"{kind} scaling", xticks=counts)
            ax.set_xticks([], minor=True)
            ax.set_xticklabels(map(str, counts))
            if kind == "strong":
                ax.set_yscale("log")
                ax.yaxis.set_major_formatter("{x:g}")
                ax.yaxis.set_minor_formatter("{x:g}")
        axes[0].set_ylabel("speed relative to ours on the fewest devices")
        axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return [f"![Scaling]({file.name})", ""]


def _speeds(points: list[Results], name: str) -> list[tuple[int, float]]:
    """Return pairs of a number of devices and the speed of a contestant, for points of one operator."""
    best: dict[int, float] = {}
    for point in points:
        if (seconds := _time(point, name)) < float("inf"):
            best[point["devices"]] = min(seconds, best.get(point["devices"], seconds))
    base = _time(_base(points, points[0]["operator"])) if points else 0.0
    return [(count, base / seconds) for count, seconds in sorted(best.items())]
