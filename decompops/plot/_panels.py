"""Makes figures and their axes. Only this file imports matplotlib."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from .._common.check import check_count
from ._arguments import Pair, list_of, pair_of


Axes: TypeAlias = Any  # `matplotlib.axes.Axes`. Matplotlib is optional, so it is imported when a figure is made.


def panels(rows: int = 1, columns: int = 1, *, size: Pair = (4.2, 3.4), title: str | None = None) -> np.ndarray:
    """Make a new figure with rows and columns of panels.

    The figure is not registered with `matplotlib.pyplot`: no window opens, and you need not close the figure. Save it
    with `axes.figure.savefig("figure.pdf")`, where `axes` is one of the panels.

    !!! example

        ```python
        left, right = plot.panels(1, 2, title="Decaying turbulence")
        plot.slice(fft, vorticity, "z", ax=left)
        plot.curves(time, {"energy": energy}, ax=right)
        left.figure.savefig("figure.pdf")
        ```

    **Arguments:**

    - `rows`, `columns`: the number of rows and of columns.
    - `size`: the width and the height of one panel in inches.
    - `title`: a title above all panels.

    **Returns:** an array of matplotlib's `Axes` of shape `(rows, columns)`, or `(columns,)` for one row.

    **Raises:** `ImportError` if matplotlib is not installed; `ValueError` if `rows`, `columns` or `size` is not
    positive.
    """
    check_count("rows", rows)
    check_count("columns", columns)
    width, height = pair_of(size)
    if not (0 < width < np.inf and 0 < height < np.inf):
        raise ValueError(f"`size` must be two positive numbers, width and height in inches; got {size!r}.")
    make, _ = _classes()
    # An image of a fixed aspect ratio may leave a gap to its colour bar. The layout "compressed" removes such gaps.
    figure = make(figsize=(width * columns, height * rows), layout="compressed")
    if title is not None:
        figure.suptitle(title)
    axes = figure.subplots(rows, columns, squeeze=False)
    return axes[0] if rows == 1 else axes


def axes_for(ax: Any, count: int, size: tuple[float, float] = (4.2, 3.4)) -> list[Axes]:
    """Return `ax` as a list of `count` `Axes`, or the panels of a new figure if `ax` is `None`.

    Raises `TypeError` if `ax` is not an `Axes`, and `ValueError` if the number of `Axes` is not `count`.
    """
    if ax is None:
        return list(panels(1, count, size=size))
    _, kind = _classes()
    given = list(np.ravel(ax)) if isinstance(ax, Sequence | np.ndarray) else [ax]
    for axes in given:
        if not isinstance(axes, kind):
            raise TypeError(f"`ax` must be matplotlib's `Axes`, or None for a new figure; got {axes!r}.")
    if len(given) != count:
        raise ValueError(f"`ax` must be {count} `Axes`, one for each panel; got {len(given)}.")
    return given


def titles_for(title: Any, count: int) -> list[str]:
    """Return `title` as a list of `count` titles. Raises `ValueError` unless `title` has `count` strings."""
    titles = list_of(title)
    if len(titles) != count or not all(isinstance(text, str) for text in titles):
        wanted = "one string" if count == 1 else f"{count} strings, one for each panel"
        raise ValueError(f"`title` must be {wanted}; got {title!r}.")
    return titles


def _classes() -> tuple[Any, Any]:
    """Return matplotlib's `Figure` and `Axes`. Raises `ImportError` if matplotlib is not installed."""
    try:
        from matplotlib.axes import Axes
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("`decompops.plot` needs matplotlib: pip install matplotlib.") from error
    return Figure, Axes
