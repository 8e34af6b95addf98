"""Derives layouts and coordinates from the argument `grid` of functions that write, read or draw fields."""

from dataclasses import dataclass
from typing import Any, TypeAlias, cast, get_args

import numpy as np

from .._basis.base import AbstractBasis
from .._basis.points import Points
from .._common.blocks import axis_names
from .._common.box import Box
from .._core.decomposition import Decomposition
from .._core.layout import Layout
from .._core.structure import Space
from .transform import AbstractTransform


# A transform has a basis for each axis. The points of a decomposition or a layout are equally spaced.
GridLike: TypeAlias = AbstractTransform | Decomposition | Layout


@dataclass(frozen=True)
class Grid:
    """The layout of fields or spectra, and the coordinates of their points or modes.

    - `layout`: how an array holds a field or a spectrum.
    - `space`: "field" or "spectrum".
    - `bases`: the basis of each axis; empty for spectra whose bases are not known.
    - `sizes`: the number of grid points along each axis. For spectra, the number of points of a grid that
        has only the kept modes.
    - `lengths`: the length of the box along each axis; 2π if there is no box.
    """

    layout: Layout
    space: Space
    bases: tuple[AbstractBasis, ...]
    sizes: tuple[int, ...]
    lengths: tuple[float, ...]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.lengths)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes: x, y, z for points; kx, ky, kz for modes."""
        names = axis_names(self.ndim)
        return tuple(f"k{name}" for name in names) if self.space == "spectrum" else names

    def points(self, axis: int) -> np.ndarray:
        """Return the coordinates of the points along an axis."""
        return self.lengths[axis] * self.bases[axis].points(self.sizes[axis])

    def edges(self, axis: int) -> np.ndarray:
        """Return the bounds of the cells around the points along an axis: `n + 1` bounds for `n` points."""
        return self.lengths[axis] * self.bases[axis].edges(self.sizes[axis])

    def wavenumbers(self, axis: int) -> np.ndarray:
        """Return the angular wavenumbers of the modes along an axis."""
        return self.bases[axis].wavenumbers(self.sizes[axis]) / self.lengths[axis]

    def coordinates(self) -> dict[str, np.ndarray]:
        """Return the points or the wavenumbers by the name of the axis; an empty dictionary without bases."""
        along = self.wavenumbers if self.space == "spectrum" else self.points
        return {name: along(axis) for axis, name in enumerate(self.names[: len(self.bases)])}


def grid_of(grid: Any, space: Space = "field") -> Grid:
    """Return the layout and the coordinates of the fields or spectra of `grid`.

    **Arguments:**

    - `grid`: a transform, a `Decomposition` or a `Layout`.
    - `space`: "field" or "spectrum".

    **Raises:** `TypeError` for a `grid` of another type, for a `Decomposition` with `space="spectrum"`, and for a box
    with traced lengths. `ValueError` for an unknown `space`.
    """
    if space not in get_args(Space):
        raise ValueError(f"`space` must be one of {get_args(Space)}; got {space!r}.")
    if not isinstance(grid, GridLike):
        raise TypeError(f"`grid` must be a transform such as `FFT3D`, a `Decomposition` or a `Layout`; got {grid!r}.")
    if isinstance(grid, Decomposition) and space == "spectrum":
        raise TypeError('`grid` must be a transform with `space="spectrum"`, such as `FFT3D`; got a `Decomposition`.')
    layout = _layout(grid, space)
    ndim, sizes = layout.blocks.ndim, layout.true_shape
    bases = (Points(),) * ndim if space == "field" else ()
    if isinstance(grid, AbstractTransform):
        bases = grid.bases
        if space == "spectrum":
            sizes = grid.modes or grid.decomposition.shape
    box = Box().with_axes(ndim) if layout.box is None else layout.box
    if box.is_traced:
        raise TypeError(
            f"`grid` must have a `box` of lengths that are known, not traced; got {box}. Call this outside `jax.jit`."
        )
    return Grid(layout, space, bases, sizes, tuple(map(float, cast(tuple, box.lengths))))


def _layout(grid: GridLike, space: Space) -> Layout:
    if isinstance(grid, Layout):
        return grid
    if isinstance(grid, AbstractTransform):
        return grid.out_layout if space == "spectrum" else grid.in_layout
    return grid.layout()
