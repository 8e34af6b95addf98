"""Tables, numbers and plots for the pages of reports."""

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from .files import CREATOR, write_own


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table in Markdown. Empty columns are left out."""
    rows = [[cell(value) for value in row] for row in rows]
    if not rows:
        return ["No results.", ""]
    columns = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    lines = [[heads[i] for i in columns], ["---"] * len(columns), *[[row[i] for i in columns] for row in rows]]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def cell(value: Any) -> str:
    """Return the text of a cell, which is empty for `None`."""
    if value is None:
        return ""
    return str(value).replace("|", "\\|").replace("\n", " ")


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def size_of(shape: Sequence[int]) -> str:
    """Format the sizes of a grid or a mesh, such as 64³ or 64×64×32."""
    return f"{shape[0]}³" if len(shape) == 3 and len(set(shape)) == 1 else "×".join(map(str, shape))


def other_grids(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Name the operators whose grid differs from the grid of the first row."""
    shapes = {row["operator"]: row["shape"] for row in rows if row["shape"] != rows[0]["shape"]}
    return [f"The grid of `{name}` is {size_of(shape)}: its blocks must be equal." for name, shape in shapes.items()]


def mib(count: float | None) -> str:
    return "" if count is None else f"{count / 2**20:.4g}"


@contextmanager
def plot(path: Path, columns: int = 1, width: float = 3.4) -> Iterator[Any]:
    """Yield axes to draw on, and save the figure as SVG. If matplotlib is not installed, yield `None` instead."""
    if importlib.util.find_spec("matplotlib") is None:
        yield None
        return
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    # With these settings, the SVG file stores text as text, and the same numbers always give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "decompops", "font.size": 9}):
        figure = figures.Figure(figsize=(1 + width * columns, 3.2), layout="constrained")
        yield figure.subplots(1, columns)
        content = BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": CREATOR})
        write_own(path, content.getvalue())
