"""Draw docs/pictures/scaling.svg and print the tables of docs/scaling.md, from the model of `decompops scaling`.

python docs/tools/scaling.py            # print the tables, and draw the picture
python docs/tools/scaling.py --check    # fail if the page has other tables, or the picture other numbers
"""

import argparse
import html
import json
import re
import sys
from pathlib import Path

from decompops.tools.bench.model import OPERATORS, Machine, Seconds, near_square, strong, weak


DOCS = Path(__file__).parents[1]
PAGE, PICTURE = DOCS / "scaling.md", DOCS / "pictures" / "scaling.svg"
GREY = "#808080"  # readable on white and on black
COLOURS = dict(zip(OPERATORS, ("#4c90d0", "#e08a3c", "#4aa37c")))
# Links, the exchange within a node and the memory of GPUs: data sheets. A core: as measured (docs/scaling.md), with its
# share of the memory's rate. A GPU reads and writes at 2.7 TB/s: a transform passes three times over its complex field,
# a stencil once over a real field, and updates and sums read and write a field 14 times.
_BYTES = 2.7e12
MACHINES = {
    "CPU": (
        Machine(
            operations=9e9, stencils=2e8, updates=4e7, memory=6e9, overhead=3e-7, latency=2e-6, link=25e9, ranks=64
        ),
        (128, 128, 128),
        [64 * 4**i for i in range(5)],
    ),
    "GPU": (
        Machine(
            *(_BYTES / (3 * 16) * 5 * 27, _BYTES / 8, _BYTES / (14 * 4), _BYTES),
            overhead=1e-6,
            latency=5e-6,
            link=400e9,
            ranks=8,
            inside=450e9,
        ),
        (512, 512, 512),
        [8 * 2**i for i in range(10)],
    ),
}
Curves = dict[str, dict[str, list[Seconds]]]


def curves(name: str) -> Curves:
    """Return the predicted times of each operator, for weak and for strong scaling."""
    machine, block, sizes = MACHINES[name]
    rows, columns = near_square(sizes[0])
    grid = block[0] * rows, block[1] * columns, block[2]
    return {
        operator: {"weak": weak(operator, block, sizes, machine), "strong": strong(operator, grid, sizes, machine)}
        for operator in OPERATORS
    }


def table(name: str) -> str:
    """Return the table of a machine in Markdown: milliseconds, and the share of the network."""
    found = curves(name)
    columns = {f"{operator}, {kind}": times for operator, kinds in found.items() for kind, times in kinds.items()}
    lines = [f"| {name}s | nodes | " + " | ".join(columns) + " |", "|---" * (2 + len(columns)) + "|"]
    machine, _, sizes = MACHINES[name]
    for i, size in enumerate(sizes):
        cells = (f"{1e3 * times[i].total:.3g} ({times[i].network / times[i].total:.0%})" for times in columns.values())
        lines.append(f"| {size:,} | {size // machine.ranks} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def numbers() -> dict[str, dict[str, list[float]]]:
    """Return what the picture shows: the speed-up of strong scaling and the efficiency of weak scaling."""
    shown: dict[str, dict[str, list[float]]] = {}
    for name in MACHINES:
        for operator, kinds in curves(name).items():
            for kind, times in kinds.items():
                ratios = [round(times[0].total / one.total, 3) for one in times]
                shown.setdefault(f"{name}, {kind}", {})[operator] = ratios
    return shown


def draw(shown: dict[str, dict[str, list[float]]]) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "scaling", "svg.fonttype": "none", "font.size": 9}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY)
    with mpl.rc_context(style):
        figure = Figure(figsize=(8, 6), layout="constrained")
        for axes, (title, lines) in zip(figure.subplots(2, 2).T.flat, shown.items()):
            name, kind = title.split(", ")
            sizes = MACHINES[name][2]
            for operator, ratios in lines.items():
                axes.plot(sizes, ratios, "o-", color=COLOURS[operator], markersize=3, linewidth=1.2, label=operator)
            ideal = [size / sizes[0] if kind == "strong" else 1.0 for size in sizes]
            axes.plot(sizes, ideal, ":", color=GREY, linewidth=1, label="ideal")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlabel(f"{name}s" if name == "GPU" else "cores")
            if kind == "strong":
                axes.set_yscale("log", base=2)
                axes.yaxis.set_major_formatter("{x:g}")
            else:
                axes.set_ylim(0, 1.05)
            axes.set_ylabel("speed-up" if kind == "strong" else "efficiency")
            axes.set_title(f"{kind} scaling")
            axes.grid(color=GREY, alpha=0.2)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
        metadata = {"Date": None, "Creator": None, "Description": json.dumps(shown)}
        figure.savefig(PICTURE, transparent=True, metadata=metadata)


def problems() -> list[str]:
    page = PAGE.read_text()
    found = [f"docs/scaling.md has another table of {name}s" for name in MACHINES if table(name) not in page]
    drawn = re.findall(r"<dc:description>(.*?)</dc:description>", PICTURE.read_text(), re.DOTALL)
    if json.loads(html.unescape(drawn[0])) != numbers():
        found.append(f"{PICTURE.name} shows other numbers than the model")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the page and the picture with the model")
    if parser.parse_args().check:
        found = problems()
        sys.exit("\n".join([*found, "Run `python docs/tools/scaling.py`."]) if found else 0)
    print(*map(table, MACHINES), sep="\n\n")
    draw(numbers())


if __name__ == "__main__":
    main()
