"""`slice` draws planes of a field."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array

from .._common.check import check_axis
from .._common.host import check_mask
from .._core.layout import Field
from .._core.structure import Structure
from .._operator.grid import GridLike
from ._image import Cut, Limits, Style, draw_cuts
from ._planes import ROUNDING, drawable_structure


def slice(
    grid: GridLike,
    field: Field,
    axis: str | int | None = None,
    *,
    index: int | Sequence[int] | np.ndarray | Array | None = None,
    at: float | int | Sequence[float | int] | np.ndarray | Array | None = None,
    vertical: str | int | None = None,
    limits: Limits = None,
    cmap: str | None = None,
    log: bool = False,
    ax: Any = None,
    title: str | Sequence[str] | None = None,
    label: str | None = None,
) -> Any:
    """Draw a plane of a field, or several planes or components side by side.

    Only the drawn planes are gathered. A field on a grid of two axes is drawn as a whole. Every process must call this
    function, and every process gets the whole figure.

    !!! example

        ```python
        plot.slice(fft, u, "z", at=0.5, label="velocity [m/s]")
        plot.slice(fft, velocity, "z", title=("u", "v", "w"))   # three components
        plot.slice(fft, u, "z", index=(0, 8, 16))               # three planes
        ```

    **Arguments:**

    - `grid`: the transform of the field. The bases of the transform give the coordinates of the points. If the points
        are equally spaced, you may pass the `Decomposition` or the `Layout` of the field instead of the transform.
    - `field`: a real field, with or without padding, of shape `(nx, ny, nz)` or `(components, nx, ny, nz)`. On a grid
        of two axes, the shape is `(nx, ny)` or `(components, nx, ny)`.
    - `axis`: the name or the number of the axis normal to the plane. The default is the last axis. Leave `axis` out on
        a grid of two axes.
    - `index`: the index of the plane along `axis`, or several indices. The default is the plane in the middle.
    - `at`: the coordinate of the plane, or several coordinates, instead of `index`. The planes of the nearest points
        are drawn. An axis whose basis has no walls is periodic: its end is the same place as its start.
    - `vertical`: the axis that points up. The default is the last axis of the plane.
    - `limits`: the values of the first and the last colour. The default is the smallest and the largest value drawn. If
        these two values have opposite signs, and their magnitudes differ by a factor below ten, the default limits are
        symmetric about zero.
    - `cmap`: the colour map. The default is "RdBu_r" for symmetric limits, otherwise "viridis".
    - `log`: whether the colour scale is logarithmic.
    - `ax`: matplotlib's `Axes` to draw on, or a sequence of `Axes` for several panels. The default is a new figure.
    - `title`: the title, or a sequence of titles for several panels. The default is the coordinate of the plane.
    - `label`: the label of the colour bar: the drawn quantity and its unit.

    **Returns:** the `Axes`; a list of `Axes` if `field` has components, or if `index` or `at` is a sequence.

    **Raises:** `ImportError` if matplotlib is not installed; `TypeError` if `field` is complex or traced; `ValueError`
    if the shape of `field` does not fit the grid, if a plane lies outside the grid, or if another argument is invalid.
    """
    known = drawable_structure(grid, field)
    style = Style(vertical, limits, cmap, log, ax, title, label)
    if known.ndim not in (2, 3):
        raise ValueError(f"`grid` must have two or three axes for a slice; got {known.layout.true_shape}.")
    if known.ndim == 2:
        if not axis is index is at is None:
            raise ValueError(
                f"`axis`, `index` and `at` must be None on a grid of two axes; got {axis!r}, {index!r} and {at!r}. The "
                "whole field is drawn."
            )
        normal, cuts = None, [Cut("", np.ones(1))]
    else:
        normal = check_axis("axis", -1 if axis is None else axis, known.ndim)
        points, numbers = known.points(normal), _numbers(known, normal, index, at)
        name, every = known.names[normal], np.arange(len(points))
        cuts = [Cut(f"{name} = {points[number]:.3g}", every == number) for number in numbers]
    axes = draw_cuts(known, field, normal, cuts, "max", style)
    return axes if np.ndim(index if at is None else at) or np.ndim(field) > known.ndim else axes[0]


def _numbers(grid: Structure, axis: int, index: Any, at: Any) -> list[int]:
    """Return the indices of the planes along `axis`."""
    points, length = grid.points(axis), grid.lengths[axis]
    if at is not None:
        if index is not None:
            raise ValueError(f"`index` must be None if `at` is given; got {index!r} and {at!r}. Pass one of them.")
        check_mask(at, "at")
        try:
            places = np.atleast_1d(np.asarray(at, float))
        except (TypeError, ValueError):
            places = np.zeros(0)
        slack = ROUNDING * length
        if places.ndim > 1 or not places.size or not ((-slack <= places) & (places <= length + slack)).all():
            raise ValueError(f"`at` must be from 0 to {length:g}, the length of the box; got {at!r}.")
        distances = np.abs(points - places[:, None])
        if not grid.bases[axis].has_walls:
            distances = np.minimum(distances, length - distances)
        return distances.argmin(1).tolist()
    index = len(points) // 2 if index is None else index
    try:
        numbers = [operator.index(i) for i in (index if np.ndim(index) else [index])]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or not all(-len(points) <= i < len(points) for i in numbers):
        raise ValueError(
            f"`index` must be one or more integers below {len(points)}, the number of points; got {index!r}."
        )
    return [i % len(points) for i in numbers]
