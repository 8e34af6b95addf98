"""`projection` draws a field as seen along an axis."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .._common.check import check_axis, check_choice
from .._core.layout import Field
from .._operator.grid import GridLike
from ._arguments import Pair, pair_of
from ._image import Cut, Limits, Style, draw_cuts
from ._planes import ROUNDING, Reduction, drawable_structure


def projection(
    grid: GridLike,
    field: Field,
    axis: str | int = -1,
    reduce: Literal["max", "min", "mean", "sum"] = "max",
    *,
    between: Pair | None = None,
    vertical: str | int | None = None,
    limits: Limits = None,
    cmap: str | None = None,
    log: bool = False,
    ax: Any = None,
    title: str | Sequence[str] | None = None,
    label: str | None = None,
) -> Any:
    """Draw the maximum, minimum, mean or sum of a field along one of the three axes of its grid.

    The devices reduce the field, and only the resulting plane is gathered. Every process must call this function, and
    every process gets the whole figure.

    !!! example

        ```python
        plot.projection(fft, enstrophy, "z", cmap="magma")
        plot.projection(fft, density, "z", "mean", between=(0, 32), log=True)   # of a slab
        ```

    **Arguments:**

    - `grid`, `field`: the same as for `slice`.
    - `axis`: the name or the number of the axis along which the field is reduced.
    - `reduce`: "max", "min", "mean" or "sum". The mean uses the quadrature weights of the basis of the axis; the sum
        counts each point once.
    - `between`: two coordinates along `axis`. Only the points from the first to the second coordinate are used, both
        included. The coordinates may have rounding errors of 32 bits. The default is all points.
    - `vertical`, `limits`, `cmap`, `log`, `ax`, `title`, `label`: the same as for `slice`.

    **Returns:** the `Axes`; a list of `Axes` if `field` has components.

    **Raises:** the errors of `slice`; `ValueError` if the grid does not have three axes, or if no point lies between
    the coordinates in `between`.
    """
    known = drawable_structure(grid, field)
    style = Style(vertical, limits, cmap, log, ax, title, label)
    if known.ndim != 3:
        raise ValueError(f"`grid` must have three axes for a projection; got {known.layout.true_shape}.")
    check_choice("reduce", reduce, ("max", "min", "mean", "sum"))
    normal = check_axis("axis", axis, 3)
    points = known.points(normal)
    low, high = (-np.inf, np.inf) if between is None else pair_of(between)
    slack = np.minimum(ROUNDING * known.lengths[normal], np.diff(known.edges(normal)) / 4)
    inside = (low - slack <= points) & (points <= high + slack)
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
