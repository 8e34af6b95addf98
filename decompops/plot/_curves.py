"""`curves` draws quantities over time."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jaxtyping import Shaped

from .._common.check import brief, check_choice, check_untraced
from .._common.host import host_array
from ._panels import Axes, axes_for


Values = Shaped[Array | np.ndarray, "points"]
Known = Shaped[Array | np.ndarray, "_"]  # A reference has its own number of points.
Logarithmic = Literal["", "x", "y", "xy"]
DASHES = ("--", ":", "-.")  # The references use these line styles in turn.


def curves(
    x: Values,
    values: Mapping[str, Values] | Values,
    *,
    references: Mapping[str, tuple[Known, Known]] | None = None,
    xlabel: str = "time",
    log: Logarithmic = "",
    style: str = "-",
    ax: Any = None,
    title: str | None = None,
    label: str | None = None,
) -> Axes:
    """Draw quantities over time or over another variable. Dashed curves show references, such as known results.

    Arrays may be sharded. If an array is sharded over several processes, every process must call this function, and
    every process gets the whole figure.

    !!! example

        ```python
        plot.curves(time, {"energy": energy, "enstrophy": enstrophy}, xlabel="time [s]")
        plot.curves(time, energy, references={"measured": (known_time, known_energy)}, label="energy [J/kg]")
        ```

    **Arguments:**

    - `x`: the times, or other real numbers, of shape `(points,)`.
    - `values`: a dictionary that maps the name of each curve in the legend to the values of this curve, of shape
        `(points,)`; or the values of a single curve without a name.
    - `references`: a dictionary that maps the name of each reference to a pair (times, values). A reference may have
        more or fewer points than `x`. References are black and dashed.
    - `xlabel`: the label of the horizontal axis: the name of `x` and its unit.
    - `log`: which axes are logarithmic: "", "x", "y" or "xy".
    - `style`: the markers and lines of the curves as a format string of matplotlib, such as "o-".
    - `ax`: matplotlib's `Axes` to draw on. The default is a new figure.
    - `title`: the title.
    - `label`: the label of the vertical axis: the drawn quantity and its unit.

    **Returns:** the `Axes`.

    **Raises:** `ImportError` if matplotlib is not installed; `TypeError` if values are complex, or if a reference is
    not a pair; `ValueError` if a curve has more or fewer values than times.
    """
    check_choice("log", log, get_args(Logarithmic))
    if isinstance(values, Mapping):
        own = [(_as_curve(f"values[{name!r}]", x, y), name) for name, y in values.items()]
    else:
        own = [(_as_curve("values", x, values), None)]
    others = _references({} if references is None else references)
    (axes,) = axes_for(ax, 1)
    for points, name in own:
        axes.plot(*points, style, label=name)
    for number, (points, name) in enumerate(others):
        axes.plot(*points, color="black", linestyle=DASHES[number % len(DASHES)], label=name)
    decorate(axes, xlabel, label, title, log)
    return axes


def decorate(axes: Axes, xlabel: str, label: str | None, title: str | None, log: Logarithmic) -> None:
    """Set the scales, the labels, the title, the grid lines and the legend of curves."""
    axes.set(xlabel=xlabel, xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
    if "x" in log:
        # The ticks are labelled with plain numbers. Matplotlib's labels, such as "3 × 10⁰", overlap if the axis covers
        # only a few decades.
        low, high = axes.get_xlim()
        digits = "25" if high < 100 * low else ""
        axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params("x", which="minor", pad=5)  # This puts the labels of minor and major ticks on one line.
        axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in digits else "")
    if label is not None:
        axes.set_ylabel(label)
    if title is not None:
        axes.set_title(title)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend()


def _references(references: Any) -> list[tuple[tuple[np.ndarray, np.ndarray], str]]:
    """Return the times and the values of each reference, and its name."""
    if not isinstance(references, Mapping):
        raise TypeError(f"`references` must map names to pairs (times, values); got {brief(references)}.")
    found = []
    for name, pair in references.items():
        try:
            x, y = pair
        except (TypeError, ValueError):
            raise TypeError(f"`references[{name!r}]` must be a pair (times, values); got {brief(pair)}.") from None
        found.append((_as_curve(f"references[{name!r}]", x, y), name))
    return found


def _as_curve(argument: str, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return `x` and `y` as NumPy arrays. Raises an error unless both have the same number of real numbers."""
    check_untraced(argument, (x, y), "curves")
    x, y = host_array(_whole(x), argument), host_array(_whole(y), argument)
    if np.iscomplexobj(x) or np.iscomplexobj(y):
        raise TypeError(f"`{argument}` must be real; got {np.result_type(x, y)}.")
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(
            f"`{argument}` must have one value for each time, in arrays of shape (points,); got {y.shape} for the "
            f"values and {x.shape} for the times."
        )
    return x, y


def _whole(x: Any) -> Any:
    """Return `x`. An array that is sharded over several processes is gathered on every process."""
    if isinstance(x, Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        return multihost_utils.process_allgather(x, tiled=True)
    return x
