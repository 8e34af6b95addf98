"""Derives structures from the argument `grid` of functions that write, read or draw fields."""

from dataclasses import replace
from typing import Any, TypeAlias, get_args

from .._basis.points import Points
from .._common.check import check_choice
from .._core.decomposition import Decomposition
from .._core.layout import Layout
from .._core.structure import Space, Structure
from .transform import AbstractTransform


# A transform has a basis for each axis. The points of a decomposition or a layout are equally spaced.
GridLike: TypeAlias = AbstractTransform | Decomposition | Layout


def structure_of(grid: Any, space: Space = "field") -> Structure:
    """Return the structure of the fields or spectra of `grid`, with the bases that set their coordinates.

    **Arguments:**

    - `grid`: a transform, a `Decomposition` or a `Layout`.
    - `space`: "field" or "spectrum".

    **Raises:** `TypeError` for a `grid` of another type, for a `Decomposition` with `space="spectrum"`, and for a box
    with traced lengths. `ValueError` for an unknown `space`.
    """
    check_choice("space", space, get_args(Space))
    if not isinstance(grid, GridLike):
        raise TypeError(f"`grid` must be a transform such as `FFT3D`, a `Decomposition` or a `Layout`; got {grid!r}.")
    if isinstance(grid, Decomposition) and space == "spectrum":
        raise TypeError('`grid` must be a transform with `space="spectrum"`, such as `FFT3D`; got a `Decomposition`.')
    if isinstance(grid, AbstractTransform):
        found = grid.out_structure if space == "spectrum" else replace(grid.in_structure, bases=grid.bases)
    else:
        layout = grid if isinstance(grid, Layout) else grid.layout()
        found = Structure(layout, space=space, bases=(Points(),) * layout.blocks.ndim)
    if found.layout.box is not None and found.layout.box.is_traced:
        raise TypeError(
            f"`grid` must have a `box` of lengths that are known, not traced; got {found.layout.box}. Call this "
            "outside `jax.jit`."
        )
    return found
