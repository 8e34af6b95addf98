"""`slice`: planes of a field."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._box import Box
from .._check import check_axis
from .._grid import Grid, GridLike
from .._layout import Field
from ._image import Cut, Limits, Style, draw_cuts
from ._planes import drawable_grid


def slice(
    grid: GridLike,
    field: Field,
    axis: str | int | None = None,
    *,
    index: int | Sequence[int] | np.ndarray | None = None,
    at: float | int | Sequence[float | int] | np.ndarray | None = None,
    box: Box = Box(),
    vertical: str | int | None = None,
    limits: Limits = None,
    cmap: str | None = None,
    log: bool = False,
    ax: Any = None,
    title: str | Sequence[str] | None = None,
    label: str | None = None,
) -> Any:
    """Draw a plane of a field, or several planes or components in a row.

    Only the plane is gathered. A grid of two axes is drawn as it is. Of several processes, each one makes the call and
    gets the whole figure.

    !!! example

        ```python
        plot.slice(fft, u, "z", at=0.5, box=dops.Box(1.0), label="velocity [m/s]")
        plot.slice(fft, velocity, "z", title=("u", "v", "w"))   # three components
        plot.slice(fft, u, "z", index=(0, 8, 16))               # three planes
        ```

    **Arguments:**

    - `grid`: the transform of the field, whose bases say where the points are. Or the field's `Decomposition` or
        `Layout`, of equally spaced points.
    - `field`: a real field, padded or not, of shape `(nx, ny, nz)` or `(components, nx, ny, nz)`; on a grid of two axes
        `(nx, ny)` or `(components, nx, ny)`.
    - `axis`: the axis across the plane, by its name or number; by default the last one. Not for a grid of two axes.
    - `index`: the number of the plane along `axis`, or several numbers. By default the plane in the middle.
    - `at`: instead of `index`, the coordinate of the plane, or several coordinates. The nearest points are drawn.
    - `box`: the box that the grid fills.
    - `vertical`: the axis that points up; by default the last one of the plane.
    - `limits`: the values of the first and the last colour. By default the least and the greatest value drawn. But if
        they have different signs, and neither is ten times the other, zero is put in the middle.
    - `cmap`: the colour map; by default "RdBu_r" where zero is in the middle, else "viridis".
    - `log`: whether the scale of the colours is logarithmic.
    - `ax`: matplotlib's `Axes`, or a sequence of them for several panels. By default those of a new figure.
    - `title`: the title, or a sequence of them for several panels. By default the coordinate of the plane.
    - `label`: what is drawn, with its unit: the label of the colour bar.

    **Returns:** the `Axes`; a list of them if `field` has components or several planes are asked for.

    **Raises:** `ImportError` without matplotlib; `TypeError` for a field that is complex or traced; `ValueError` for a
    field of another shape, a plane outside of the grid, and other arguments that do not fit.
    """
    known = drawable_grid(grid, field, box)
    style = Style(vertical, limits, cmap, log, ax, title, label)
    if known.ndim not in (2, 3):
        raise ValueError(f"`grid` must have two or three axes for a slice; got {known.layout.true_shape}.")
    if known.ndim == 2:
        if not axis is index is at is None:
            raise ValueError(
                f"`axis`, `index` and `at` must be left out on a grid of two axes; got {axis!r}, {index!r}, {at!r}."
            )
        normal, cuts = None, [Cut("", np.ones(1))]
    else:
        normal = check_axis("axis", -1 if axis is None else axis, known.ndim)
        points, numbers = known.points(normal), _numbers(known, normal, index, at)
        name, every = known.names[normal], np.arange(len(points))
        cuts = [Cut(f"{name} = {points[number]:.3g}", every == number) for number in numbers]
    axes = draw_cuts(known, field, normal, cuts, "sum", style)
    several = any(isinstance(place, Sequence | np.ndarray) for place in (index, at))
    return axes if several or np.ndim(field) > known.ndim else axes[0]


def _numbers(grid: Grid, axis: int, index: Any, at: Any) -> list[int]:
    """The numbers of the points at which planes across `axis` are drawn."""
    points, length = grid.points(axis), grid.lengths[axis]
    if at is not None:
        if index is not None:
            raise ValueError(f"`index` must be None if `at` is given; got {index!r} and {at!r}.")
        places = np.atleast_1d(np.asarray(at, float))
        if places.ndim > 1 or not places.size or not ((places >= 0) & (places <= length)).all():
            raise ValueError(f"`at` must be from 0 to {length:g}, the length of the box; got {at!r}.")
        return [int(np.abs(points - place).argmin()) for place in places]
    index = len(points) // 2 if index is None else index
    try:
        numbers = [operator.index(i) for i in (index if np.ndim(index) else [index])]
    except TypeError:
        numbers = []
    if not numbers or not all(-len(points) <= i < len(points) for i in numbers):
        raise ValueError(f"`index` must be below {len(points)}, the number of points; got {index!r}.")
    return [i % len(points) for i in numbers]
