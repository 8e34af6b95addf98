"""`projection`: a field seen along an axis."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from .._box import Box
from .._check import check_axis
from .._grid import GridLike
from .._layout import Field
from ._image import Cut, Limits, Style, draw_cuts
from ._planes import Reduction, drawable_grid


def projection(
    grid: GridLike,
    field: Field,
    axis: str | int = -1,
    reduce: Literal["max", "min", "mean", "sum"] = "max",
    *,
    between: tuple[float | int, float | int] | None = None,
    box: Box = Box(),
    vertical: str | int | None = None,
    limits: Limits = None,
    cmap: str | None = None,
    log: bool = False,
    ax: Any = None,
    title: str | Sequence[str] | None = None,
    label: str | None = None,
) -> Any:
    """Draw a field on a grid of three axes, seen along one of them: the maximum, mean or sum along each line of sight.

    The devices reduce the field first, and only the plane that results is gathered. Of several processes, each one
    makes the call and gets the whole figure.

    !!! example

        ```python
        plot.projection(fft, enstrophy, "z", cmap="magma")
        plot.projection(fft, density, "z", "mean", between=(0, 32), box=dops.Box(256.0), log=True)   # of a slab
        ```

    **Arguments:**

    - `grid`, `field`, `box`: as for `slice`.
    - `axis`: the axis to look along, by its name or number.
    - `reduce`: "max" or "min"; "mean", with the quadrature weights of the basis of the axis; or "sum" over the points.
    - `between`: two coordinates along `axis`; only points between them, or there, count. By default all.
    - `vertical`, `limits`, `cmap`, `log`, `ax`, `title`, `label`: as for `slice`.

    **Returns:** the `Axes`; a list of them if `field` has components.

    **Raises:** as `slice`; `ValueError` for a grid of another number of axes, and where no point is `between`.
    """
    known = drawable_grid(grid, field, box)
    style = Style(vertical, limits, cmap, log, ax, title, label)
    if known.ndim != 3:
        raise ValueError(f"`grid` must have three axes for a projection; got {known.layout.true_shape}.")
    if reduce not in get_args(Literal["max", "min", "mean", "sum"]):
        raise ValueError(f'`reduce` must be "max", "min", "mean" or "sum"; got {reduce!r}.')
    normal = check_axis("axis", axis, 3)
    points = known.points(normal)
    low, high = (-np.inf, np.inf) if between is None else between
    inside = (low <= points) & (points <= high)
    if not inside.any():
        raise ValueError(
            f"`between` must be two increasing coordinates with a point of the grid between them, from {points[0]:g} "
            f"to {points[-1]:g}; got {between!r}."
        )
    weights = inside.astype(float)
    if reduce == "mean":
        widths = known.bases[normal].weights(len(points))
        weights = widths * inside * widths.sum() / widths[inside].sum()
    cut = Cut(f"{reduce} along {known.names[normal]}", weights)
    how: Reduction = "sum" if reduce == "mean" else reduce
    axes = draw_cuts(known, field, normal, [cut], how, style)
    return axes if np.ndim(field) > 3 else axes[0]
