"""`Box`: the box that a grid fills."""

import math
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import wadler_lindig as wl
from jax import Array
from jax.core import Tracer


Number = float | int | Array
Lengths = Number | tuple[Number, ...] | list[Number] | np.ndarray
# Several numbers, as users write them.
_One = Number | np.number | np.ndarray
Numbers = tuple[_One, ...] | list[_One] | np.ndarray | Array


class Box(eqx.Module):
    """The box that a grid fills, given by its lengths. Wavenumbers are in radians per unit of these lengths.

    A box belongs to a `Decomposition`, and so to every transform and operator that is built on it.

    !!! example

        ```python
        dops.Box(1.0)                # The unit cube.
        dops.Box((1.0, 2.0, 3.0))    # One length for each axis, x, y, z.
        dops.Box()                   # 2π along every axis, so that wavenumbers are integers.

        fft = dops.FFT3D(mesh, shape=(64, 64, 64), box=dops.Box(100.0))
        ```

    Lengths that are JAX arrays are leaves of the PyTree: `jax.grad` can differentiate with respect to them, and
    compiled programs take them as arguments. All other lengths are constants, like the shape of the grid. Boxes with
    equal lengths are equal.
    """

    _constants: tuple[float | None, ...] = eqx.field(static=True)  # `None` where the length is an array.
    _arrays: tuple[Array | None, ...]
    _is_cube: bool = eqx.field(static=True)  # Whether one length was given for all axes.

    def __init__(self, lengths: Lengths = 2 * math.pi):
        """**Arguments:**

        - `lengths`: one length for all axes of a grid, or one for each axis. The lengths are positive numbers, and may
            be traced.

        **Raises:** `ValueError` for lengths that are not positive, finite numbers.
        """
        several = isinstance(lengths, tuple | list) or np.ndim(lengths) == 1
        parts: tuple[Any, ...] = tuple(lengths) if several else (lengths,)  # pyright: ignore[reportArgumentType]
        if not parts or not all(map(_is_length, parts)):
            raise ValueError(
                f"`lengths` must be one positive, finite number for all axes, or one for each axis; got {lengths!r}."
            )
        self._constants = tuple(None if isinstance(part, Array) else float(part) for part in parts)
        self._arrays = tuple(jnp.asarray(part, float) if isinstance(part, Array) else None for part in parts)
        self._is_cube = not several

    @property
    def lengths(self) -> Number | tuple[Number, ...]:
        """One length for all axes, or one for each axis, as given: numbers, or arrays where arrays were given."""
        pairs = zip(self._constants, self._arrays)
        lengths = tuple(cast(Number, array if constant is None else constant) for constant, array in pairs)
        return lengths[0] if self._is_cube else lengths

    @property
    def volume(self) -> Number:
        """The product of the lengths. Raises `ValueError` for a box with one length for all axes."""
        if not isinstance(self.lengths, tuple):
            raise ValueError(
                f"`volume` needs one length for each axis; got {self}. Give the number of axes, as in "
                "`box.with_axes(3).volume`."
            )
        first, *others = self.lengths
        return math.prod(others, start=first)

    @property
    def is_traced(self) -> bool:
        """Whether a length is traced, so that its value is known only when a compiled program runs."""
        return any(isinstance(length, Tracer) for length in self._arrays)

    def with_axes(self, axes: int) -> "Box":
        """Return the same box with one length for each of `axes` axes.

        **Raises:** `ValueError` for a box with several lengths, if their number is not `axes`.
        """
        if not isinstance(self.lengths, tuple):
            return Box((self.lengths,) * axes)
        if len(self.lengths) != axes:
            raise ValueError(
                f"`box` has {len(self.lengths)} lengths, but the grid has {axes} axes; got {self}. Pass one length for "
                "all axes, or one for each axis."
            )
        return self

    def __repr__(self) -> str:
        return f"Box({self.lengths})"

    def __pdoc__(self, **kwargs: Any) -> wl.AbstractDoc:
        """Return what Equinox prints for a box in another object."""
        return wl.TextDoc("Box(") + wl.pdoc(self.lengths, **kwargs) + wl.TextDoc(")")


def check_box(box: Any, axes: int) -> Box:
    """Return `box` with one length for each of the `axes` axes of a grid. Raises `TypeError` if it is not a `Box`."""
    if not isinstance(box, Box):
        raise TypeError(f"`box` must be a `Box`, such as `Box(1.0)` or `Box((1.0, 2.0, 3.0))`; got {box!r}.")
    return box.with_axes(axes)


def _is_length(value: Any) -> bool:
    if isinstance(value, Tracer):
        return value.ndim == 0
    try:
        return not isinstance(value, str | bytes | bool) and 0 < float(value) < math.inf
    except (TypeError, ValueError):
        return False
