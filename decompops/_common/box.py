"""`Box`: the periodic box that a grid fills."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer


Number = float | int | Array
Lengths = Number | tuple[Number, ...] | list[Number] | np.ndarray


class Box(eqx.Module):
    """A periodic box, given by its lengths. Wavenumbers are in radians per unit of these lengths.

    !!! example

        ```python
        dops.Box(1.0)                # The unit cube.
        dops.Box((1.0, 2.0, 3.0))    # One length for each axis, x, y, z.
        dops.Box()                   # 2π along every axis, so that wavenumbers are integers.
        ```

    The lengths are the leaves of the PyTree, so `jax.grad` can differentiate with respect to them. Boxes with equal
    lengths are equal.
    """

    lengths: Number | tuple[Number, ...]

    def __init__(self, lengths: Lengths = 2 * math.pi):
        """**Arguments:**

        - `lengths`: one length for all axes of a grid, or one for each axis. The lengths are positive numbers, and may
            be traced.

        **Raises:** `ValueError` for lengths that are not positive, finite numbers.
        """
        several = isinstance(lengths, tuple | list) or np.ndim(lengths) == 1
        parts = tuple(lengths) if several else (lengths,)  # pyright: ignore[reportArgumentType]
        if not parts or not all(map(_is_length, parts)):
            raise ValueError(
                f"`lengths` must be one positive, finite number for all axes, or one for each axis; got {lengths!r}."
            )
        numbers = tuple(map(_number, parts))
        self.lengths = numbers if several else numbers[0]

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
        lengths = self.lengths if isinstance(self.lengths, tuple) else (self.lengths,)
        return any(isinstance(length, Tracer) for length in lengths)

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


def check_box(box: Any, axes: int) -> Box:
    """Return `box` with one length for each of the `axes` axes of a grid. Raises `TypeError` if it is not a `Box`."""
    if not isinstance(box, Box):
        raise TypeError(f"`box` must be a `Box`, such as `Box(1.0)` or `Box((1.0, 2.0, 3.0))`; got {box!r}.")
    return box.with_axes(axes)


def _is_length(value: Any) -> bool:
    if isinstance(value, Tracer):
        return value.ndim == 0
    try:
        return 0 < float(value) < math.inf
    except (TypeError, ValueError):
        return False


def _number(length: Any) -> Number:
    return jnp.asarray(length, jnp.zeros(()).dtype) if isinstance(length, Tracer) else float(length)
