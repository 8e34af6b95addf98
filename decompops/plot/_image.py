"""Draws planes of a field as images with coordinates and a colour bar."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.check import check_axis, check_flag
from .._core.layout import Field
from .._core.structure import Structure
from ._arguments import Pair, pair_of
from ._panels import Axes, axes_for, titles_for
from ._planes import Reduction, reduced_plane


Limits = Pair | None
# The limits are symmetric about zero if the smallest value is negative, the largest value is positive, and their
# magnitudes differ by a factor below 1 / SIGNED.
SIGNED = 0.1


@dataclass(frozen=True)
class Cut:
    """A plane to draw: its title, and the weight of each point along the axis normal to the plane."""

    title: str
    weights: np.ndarray


@dataclass(frozen=True)
class Style:
    """The options for drawing planes, which `slice` and `projection` share."""

    vertical: str | int | None
    limits: Limits
    cmap: str | None
    log: bool
    ax: Any
    title: str | Sequence[str] | None
    label: str | None

    def __post_init__(self):
        check_flag("log", self.log)
        if self.limits is None:
            return
        low, high = pair_of(self.limits)
        if not -np.inf < low < high < np.inf:
            raise ValueError(f"`limits` must be two increasing numbers; got {self.limits!r}.")
        if self.log and not low > 0:
            raise ValueError(f"`limits` must be positive with `log=True`; got {self.limits!r}.")


def draw_cuts(
    grid: Structure, field: Field, normal: int | None, cuts: Sequence[Cut], reduce: Reduction, style: Style
) -> list[Axes]:
    """Draw every cut of every component, normal to axis `normal`. The images share colour limits and one colour bar.

    If `normal` is `None`, the grid has two axes, and the field is the only plane.
    """
    horizontal, vertical = _plane_axes(grid, normal, style.vertical)
    components = 1 if np.ndim(field) == grid.ndim else np.shape(field)[0]
    count = components * len(cuts)
    titles = titles_for([cut.title for cut in cuts] * components if style.title is None else style.title, count)
    across, up = grid.edges(horizontal), grid.edges(vertical)
    ratio = float(np.clip(np.ptp(across) / np.ptp(up), 1 / 4, 4))
    axes = axes_for(style.ax, count, (2.9 * ratio + 0.5 + 0.8 / count, 3.3))

    if normal is None:
        planes = grid.layout.gather(field)
    else:
        planes = np.stack([reduced_plane(grid, field, normal, cut.weights, reduce) for cut in cuts], -3)
    planes = planes.reshape(count, *planes.shape[-2:]).astype(float)
    if horizontal < vertical:
        planes = planes.transpose(0, 2, 1)  # The first axis of an image is its vertical axis.

    low, high, signed = _limits(planes, style)
    colours = {"cmap": style.cmap or ("RdBu_r" if signed else "viridis"), "norm": "log" if style.log else "linear"}
    images = []
    for panel, plane, title in zip(axes, planes, titles):
        # On a logarithmic scale, values below the lower limit, such as zero, get the colour of the lower limit.
        images.append(_draw(panel, plane.clip(low) if style.log else plane, across, up, colours))
        images[-1].set_clim(low, high)
        panel.set(title=title, xlabel=grid.names[horizontal], ylabel=grid.names[vertical], aspect="equal")
    # A value that exceeds a limit only by a rounding error counts as within the limits.
    slack = 1e-3 * np.array([low, high] if style.log else [high - low] * 2)
    beyond = bool((planes < low - slack[0]).any()), bool((planes > high + slack[1]).any())
    extend = {(True, True): "both", (True, False): "min", (False, True): "max", (False, False): "neither"}[beyond]
    axes[0].figure.colorbar(images[0], ax=axes, label=style.label or "", extend=extend)
    return axes


def _draw(panel: Axes, plane: np.ndarray, across: np.ndarray, up: np.ndarray, colours: dict[str, str]) -> Any:
    """Draw a plane: as an image if all its cells have the same size, otherwise cell by cell.

    `across` and `up` are the bounds of the cells along the horizontal and the vertical axis.
    """
    if _are_equal(across) and _are_equal(up):
        return panel.imshow(plane, origin="lower", extent=(*across[[0, -1]], *up[[0, -1]]), **colours)
    return panel.pcolormesh(across, up, plane, rasterized=True, **colours)


def _plane_axes(grid: Structure, normal: int | None, vertical: Any) -> tuple[int, int]:
    """Return the horizontal and the vertical axis of a plane normal to axis `normal`."""
    first, last = (axis for axis in range(grid.ndim) if axis != normal)
    axis = last if vertical is None else check_axis("vertical", vertical, grid.ndim)
    if axis == normal:
        raise ValueError(
            f"`vertical` must be an axis of the drawn plane; got {vertical!r}, the axis normal to the plane."
        )
    return (last, first) if axis == first else (first, last)


def _limits(planes: np.ndarray, style: Style) -> tuple[float, float, bool]:
    """Return the values of the first and the last colour, and whether zero has the middle colour."""
    shown = planes[np.isfinite(planes) & (planes > 0 if style.log else True)]
    if not shown.size:
        raise ValueError(f"`field` must have a {'positive' if style.log else 'finite'} value to draw; got none.")
    low, high = pair_of((shown.min(), shown.max()) if style.limits is None else style.limits)
    if style.limits is None and min(-low, high) > SIGNED * max(-low, high):
        high = max(-low, high)
        low = -high
    return low, high, low == -high


def _are_equal(edges: np.ndarray) -> bool:
    """Return whether all cells have the same width."""
    return bool(np.ptp(np.diff(edges)) < 1e-6 * np.ptp(edges) / len(edges))
