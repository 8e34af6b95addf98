"""Draw the charts in docs/charts from tables of the pages, above all of docs/benchmarks*.md and docs/performance*.md.

python docs/tools/charts.py            # draw all charts
python docs/tools/charts.py --check    # fail if a chart shows other numbers than its table

Each chart contains its numbers as JSON, in the description of the SVG file. The check compares these numbers with the
table, because the drawing itself changes with the version of matplotlib.
"""

import argparse
import html
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


DOCS = Path(__file__).parents[1]
CHARTS = DOCS / "charts"
GREY = "#808080"  # readable on white and on black
COLOURS = ("#4c90d0", "#e08a3c", "#4aa37c", "#c36bb0", "#b8a13a", "#d0605e")
BELOW_1 = "time relative to the peer (below 1, decompops is faster)"

Data = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Chart:
    """A chart of one table.

    - `name`: the file in docs/charts, without `.svg`.
    - `page`, `section`, `table`: the page, its heading, and the number of the table below this heading, from 0.
    - `keys`: the number of columns, from the left, that name a row.
    - `series`: the number of columns to draw, counted after these `keys`, or their names; `None` for all columns.
    - `label`: the label of the axis of numbers.
    - `reference`: where a line is drawn; `None` for no line.
    - `scale`: the scale of the axis of numbers, "log" or, for numbers that may be zero, "linear" or "symlog", which is
        logarithmic above 0.01.
    """

    name: str
    page: str
    section: str
    table: int = 0
    keys: int = 1
    series: int | tuple[str, ...] | None = None
    label: str = BELOW_1
    reference: float | None = 1.0
    scale: Literal["log", "linear", "symlog"] = "log"


XLA, MPI, MORE, PAPER = "benchmarks_xla", "benchmarks_mpi", "benchmarks_mpi_exchanges", "benchmarks_paper"
SOLVERS, WALLS, FILES, GPU = "benchmarks_solvers", "benchmarks_walls", "benchmarks_files", "benchmarks_gpu"
CELLS = "Planes, batches and cosines beside mpi4py-fft"
HALOS = "Transposes and halo exchanges"
OTHERS = "Other operators beside jaxDecomp"
POISSON = "time relative to the periodic equation"
STAGES = "XLA on CPUs, stage by stage"
PIECES = "Overlap: order and time"
PLAIN = "Which plain layers shard well"
GRADIENTS = ("gradient", "gradient, decompops")
SENT = "what a device sends for the gradient, in blocks of the field"
SCRATCH = "scratch: fields, or three spectra for the last two rows"
ALL = (
    Chart(
        "one-gpu", GPU, "Transforms and steps", keys=2, series=("`jnp.fft`", "memory alone", "its FFTs"), scale="linear"
    ),
    Chart("native", "benchmarks", "One process: `Native()`", keys=2),
    Chart("xla-256", XLA, "256³", keys=3, series=3),
    Chart("xla-192", XLA, "192³", keys=3, series=3),
    Chart("xla-operators", XLA, OTHERS, label="time relative to jaxDecomp (below 1, decompops is faster)"),
    Chart("mpi-transforms", MPI, "Transforms of 256³", keys=2, series=5),
    Chart("mpi-small", MPI, "Small grids", keys=2),
    Chart("mpi-dtfft", MPI, "Beside dtFFT", keys=2),
    Chart("mpi-operators", MORE, HALOS, keys=2),
    Chart("mpi-alone", MORE, HALOS, 2, label="ms", reference=None),
    Chart("mpi4py-fft", MORE, CELLS),
    Chart("gpu-scratch", PAPER, "GPUs", label=SCRATCH, reference=None, scale="linear"),
    Chart("solvers", SOLVERS, "Solvers", 1, keys=2, series=2, label="time relative to its FFTs, or to full FFTs"),
    Chart("solvers-one-device", SOLVERS, "Solvers", 2, label="time relative to its FFTs, or to full FFTs"),
    Chart("exponax", SOLVERS, "Solvers", 3),
    Chart("exponax-loop", SOLVERS, "Solvers", 4),
    Chart("training", SOLVERS, "A training step", keys=2, series=2),
    Chart("walls", WALLS, "Poisson's equation", label=POISSON),
    Chart("convection", WALLS, "Rayleigh–Bénard convection", label="time of a step relative to its transforms"),
    Chart("dedalus", WALLS, "Beside Dedalus", keys=2),
    Chart("groups", FILES, "Groups of devices", keys=2),
    Chart("files", FILES, "Files", label="bandwidth relative to NumPy's (above 1, decompops is faster)"),
    Chart("stages", "performance", STAGES, series=1, label="passes over memory", reference=None, scale="linear"),
    Chart("plain-layers", "plain_layers", PLAIN, 1, series=GRADIENTS, label=SENT, reference=None, scale="symlog"),
    Chart("limits", "performance", "A transform beside its limit", series=2, label="ms", reference=None),
    Chart("networks", "performance_exchanges", "Networks", keys=2, label="time relative to full exchanges"),
    Chart("overlap", "tried_overlap", "Overlap: memory", label="scratch, blocks", reference=None),
    Chart("overlap-devices", "tried_overlap", PIECES, label="time relative to n = 1"),
    Chart("overlap-memory", "tried_overlap", "Overlap: memory", 1, label="MiB", reference=None),
    Chart("overlap-ranks", "tried_overlap", PIECES, 1, label="time relative to n = 1"),
    Chart("fft-libraries", "tried_transforms", "FFTW, MKL and DUCC", label="GFlop/s", reference=None),
    Chart("short-lines", "tried_cosines", "Short lines", keys=2, label="time of the product relative to the FFT"),
    Chart("cosines", "tried_cosines", "Long lines", 1, label="time relative to the real FFT, on 1, 2 and 4 devices"),
    Chart("calls", "performance", "Calls outside of `jax.jit`", label="time relative to a call under jax.jit"),
)
# Tables of docs/benchmarks*.md that have numbers but no chart, as `(page, section, table)`, and the reason.
WITHOUT = {
    (GPU, "A whole simulation", 0): "a picture shows both curves",
    (GPU, "Particles, walls and other operators", 0): "its operators have nothing in common",
    (GPU, "Every operator beside the CPU", 0): "its columns have different units",
    (GPU, "Blocks of 2³¹ cells", 0): "its columns have different units",
    (GPU, "cuDecomp", 0): "its ratios are all between 1 and 1.06",
    (MPI, "Aims", 0): "its numbers are aims, beside text",
    (MORE, HALOS, 1): "what is sent is what is least possible, in every row",
    (PAPER, "On paper: 4096³ on 16×16 devices", 0): "each column has one number or two",
    (PAPER, "GPUs", 1): "its rows have different units",
}


def tables(text: str, section: str) -> list[list[list[str]]]:
    """Return the tables of a section of a page: a list of rows for each table, without the line of dashes."""
    (part,) = re.findall(rf"^#+ {re.escape(section)}\n(.*?)(?=^##? |^#+ |\Z)", text, re.DOTALL | re.MULTILINE)
    found = re.findall(r"(?:^\|.*\n?)+", part, re.MULTILINE)
    rows = [[[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()] for table in found]
    return [[header, *body] for header, _, *body in rows]


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell such as `0.89 / 0.69`, `0.44, 0.45`, `0.08 to 0.1` or `1.00 (1.12)`.

    A footnote mark, and a size such as `(1.5 GiB)`, are left out. Amounts such as `1.22 P + 0.09 R` are added, and of
    `< 0.01` the limit is taken.
    """
    cell = re.sub(r" \([\d.]+ GiB\)$|¹$", "", cell)
    cell = re.sub(r" \(([\d.]+)\)$", r" / \1", cell)
    if re.fullmatch(r"[\d.]+ [A-Z](?: \+ [\d.]+ [A-Z])*", cell):
        return [round(sum(float(number) for number in re.findall(r"[\d.]+", cell)), 2)]
    cell = cell.removeprefix("< ")
    if not re.fullmatch(r"[\d.]+(?:(?: / |, |; | to )[\d.]+)*", cell):
        return []  # The cell is empty or contains text.
    return [float(number) for number in re.findall(r"[\d.]+", cell)]


def read(chart: Chart, text: str) -> Data:
    """Return the numbers of a chart: for each series, the numbers of each row."""
    header, *body = tables(text, chart.section)[chart.table]
    if isinstance(chart.series, tuple):
        columns = [header.index(name) for name in chart.series]
    else:
        columns = list(range(chart.keys, len(header) if chart.series is None else chart.keys + chart.series))
    data: Data = {_plain(header[column]): {} for column in columns}
    if len(data) < len(columns):
        raise ValueError(f"two columns have the same name: {header}")
    first = ""
    for row in body:
        first = row[0] or first  # An empty cell repeats the cell above.
        name = _plain(", ".join(filter(None, (first, *row[1 : chart.keys]))))
        for series, column in zip(data, columns):
            if found := numbers(row[column]):
                data[series][name] = found
    return data


def _plain(text: str) -> str:
    return re.sub("[`¹]", "", text).strip() or "time"


def draw(chart: Chart, data: Data) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for rows in data.values() for name in rows))
    style = {"svg.hashsalt": chart.name, "svg.fonttype": "none", "font.size": 9}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY)
    with mpl.rc_context(style):
        figure = Figure(figsize=(8, 1.3 + 0.1 * len(names) * (1 + len(data))), layout="constrained")
        axes = figure.subplots()
        for i, (series, rows) in enumerate(data.items()):
            shift = 0.8 * ((i + 0.5) / len(data) - 0.5)
            heights = [names.index(name) + shift for name in rows]
            axes.plot(
                [values[0] for values in rows.values()], heights, "o", color=COLOURS[i], markersize=4.5, label=series
            )
            # NaN separates the lines of the rows.
            x = [number for values in rows.values() for number in (*values, math.nan)]
            y = [height for values, height in zip(rows.values(), heights) for height in [height] * (len(values) + 1)]
            axes.plot(x, y, "-|", color=COLOURS[i], linewidth=1.2, markersize=4.5)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        if chart.scale == "symlog":
            axes.set_xscale("symlog", linthresh=0.01)
            axes.set_xlim(-0.003, 2 * axes.get_xlim()[1])
        else:
            axes.set_xscale(chart.scale)
        axes.xaxis.set_major_formatter("{x:g}")
        if chart.scale == "log":
            low, high = axes.get_xlim()
            axes.xaxis.set_minor_formatter(_few if high > 4 * low else "{x:g}")  # On a short axis all ticks have room.
        axes.set_xlabel(chart.label)
        axes.grid(axis="x", which="both", color=GREY, alpha=0.2)
        for y in range(1, len(names)):
            axes.axhline(y - 0.5, color=GREY, alpha=0.2, linewidth=0.6)
        if chart.reference is not None:
            axes.axvline(chart.reference, color=GREY, linewidth=1)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        metadata = {"Date": None, "Creator": None, "Description": json.dumps(data, ensure_ascii=False)}
        figure.savefig(_path(chart), transparent=True, metadata=metadata)


def _few(value: float, position: int) -> str:
    """Label only the ticks at 2 and 5 between powers of ten."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _path(chart: Chart) -> Path:
    return CHARTS / f"{chart.name}.svg"


def drawn(svg: str) -> Data:
    """Return the numbers in the description of a chart."""
    (description,) = re.findall(r"<dc:description>(.*?)</dc:description>", svg, re.DOTALL)
    return json.loads(html.unescape(description))


def problems() -> list[str]:
    """Return a line for each chart that is missing, that is unused, or whose numbers differ from its table."""
    names = {chart.name for chart in ALL}
    found = [f"{path.name} belongs to no table" for path in CHARTS.glob("*.svg") if path.stem not in names]
    for chart in ALL:
        text = (DOCS / f"{chart.page}.md").read_text()
        if not _path(chart).exists():
            found.append(f"{chart.name}.svg is missing")
        elif drawn(_path(chart).read_text()) != read(chart, text):
            found.append(f"{chart.name}.svg shows other numbers than its table in docs/{chart.page}.md")
        if not re.search(rf"!\[[^\]]+\]\(charts/{chart.name}\.svg\)", text):
            found.append(f"docs/{chart.page}.md does not show {chart.name}.svg with an alternative text")
    drawn_tables = {(chart.page, chart.section, chart.table) for chart in ALL}
    numeric = {
        (path.stem, section, table)
        for path in DOCS.glob("benchmarks*.md")
        for section, table in _tables_with_numbers(path.read_text())
    }
    found += [
        f'table {table} of "{section}" in docs/{page}.md has no chart: add one to `ALL`, or a reason to `WITHOUT`'
        for page, section, table in sorted(numeric - drawn_tables - set(WITHOUT))
    ]
    found += [
        f'`WITHOUT` names table {table} of "{section}" in docs/{page}.md, which has a chart or no numbers'
        for page, section, table in set(WITHOUT) - (numeric - drawn_tables)
    ]
    return found


def _tables_with_numbers(text: str) -> set[tuple[str, int]]:
    """Return the section and number of each table in which a cell after the first column starts with a digit."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {
        (heading, i)
        for heading in headings
        for i, (_, *body) in enumerate(tables(text, heading))
        if any(re.match(r"\d", cell) for row in body for cell in row[1:])
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the charts with the tables, and draw nothing")
    if not parser.parse_args().check:
        for chart in ALL:
            draw(chart, read(chart, (DOCS / f"{chart.page}.md").read_text()))
    if found := problems():
        sys.exit("\n".join([*found, "Run `python docs/tools/charts.py`."]))


if __name__ == "__main__":
    main()
