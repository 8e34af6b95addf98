"""The axes that figures are drawn on. Only this file makes a figure, and imports matplotlib to do so."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from .._check import check_count


Axes: TypeAlias = Any  # matplotlib.axes.Axes: matplotlib is optional, and imported when something is drawn


def panels(
    rows: int = 1, columns: int = 1, *, size: tuple[float | int, float | int] = (4.2, 3.4), title: str | None = None
) -> np.ndarray:
    """Make a new figure with panels to draw on, side by side.

    `matplotlib.pyplot` does not know the figure: no window opens, and nothing has to be closed. Save the figure by
    `axes.figure.savefig("figure.pdf")`.

    !!! example

        ```python
        left, right = plot.panels(1, 2, title="Decaying turbulence")
        plot.slice(fft, vorticity, "z", ax=left)
        plot.curves(time, {"energy": energy}, ax=right)
        left.figure.savefig("figure.pdf")
        ```

    **Arguments:**

    - `rows`, `columns`: how many panels there are, one below and one beside the other.
    - `size`: the width and the height of one panel, in inches.
    - `title`: a title above all panels.

    **Returns:** an array of matplotlib's `Axes`: of shape `(rows, columns)`, or `(columns,)` for one row.

    **Raises:** `ImportError` without matplotlib; `ValueError` for numbers that are not positive.
    """
    check_count("rows", rows)
    check_count("columns", columns)
    if len(size) != 2 or not min(size) > 0:
        raise ValueError(f"`size` must be two positive numbers, width and height in inches; got {size!r}.")
    make, _ = _classes()
    # Compressed is the constrained layout that also brings images of a fixed aspect ratio and their colour bars
    # together.
    figure = make(figsize=(size[0] * columns, size[1] * rows), layout="compressed")
    if title is not None:
        figure.suptitle(title)
    axes = figure.subplots(rows, columns, squeeze=False)
    return axes[0] if rows == 1 else axes


def axes_for(ax: Any, count: int, size: tuple[float, float] = (4.2, 3.4)) -> list[Axes]:
    """`ax` as a list of `count` axes; a row of new ones for `None`. Raises `TypeError` or `ValueError` for others."""
    if ax is None:
        return list(panels(1, count, size=size))
    _, kind = _classes()
    given = list(np.ravel(ax)) if isinstance(ax, Sequence | np.ndarray) else [ax]
    for axes in given:
        if not isinstance(axes, kind):
            raise TypeError(f"`ax` must be matplotlib's `Axes`, or None for a new figure; got {axes!r}.")
    if len(given) != count:
        raise ValueError(f"`ax` must be {count} axes, one for each panel; got {len(given)}.")
    return given


def titles_for(title: Any, count: int) -> list[str]:
    """`title` as a list of `count` titles. Raises `ValueError` for another number of titles."""
    titles = [title] if isinstance(title, str) else list(title)
    if len(titles) != count or not all(isinstance(text, str) for text in titles):
        raise ValueError(f"`title` must be {count} texts, one for each panel; got {title!r}.")
    return titles


def _classes() -> tuple[Any, Any]:
    """matplotlib's `Figure` and `Axes`. Raises `ImportError` where matplotlib is not installed."""
    try:
        from matplotlib.axes import Axes
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('`decompops.plot` needs matplotlib: pip install "decompops[plot]".') from error
    return Figure, Axes
