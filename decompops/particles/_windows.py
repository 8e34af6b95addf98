"""The windows that particle-mesh codes use."""

import functools
import math
from typing import Literal, get_args

import numpy as np
from numpy.polynomial import Polynomial

from .._common.check import is_one_of
from .._core.window import Window


# The names of the windows, in the order of their widths: nearest grid point, cloud in cell, triangular shaped cloud,
# and piecewise cubic spline.
WindowName = Literal["ngp", "cic", "tsc", "pcs"]


@functools.cache
def spline(width: int) -> Window:
    """Return the B-spline that is `width` cells wide, a polynomial of degree `width - 1` between the cells.

    Source: Hockney & Eastwood, Computer Simulation Using Particles (1988), section 5-3.
    """
    pieces = []
    for j in range(width):
        total = Polynomial([0.0])
        for k in range(width - j):
            total += (-1) ** k * math.comb(width, k) * Polynomial([width - 1 - j - k, 1.0]) ** (width - 1)
        coefficients = np.zeros(width)
        coefficients[: len(total.coef)] = total.coef
        pieces.append(tuple((coefficients / math.factorial(width - 1)).tolist()))
    return Window(tuple(pieces))


def window_of(window: str | Window) -> Window:
    """Return the window, or the window of this name. Raises `ValueError` for an unknown name."""
    names = get_args(WindowName)
    if isinstance(window, Window):
        return window
    if not is_one_of(window, names):
        raise ValueError(f"`window` must be one of {names} or a `Window`; got {window!r}.")
    return spline(names.index(window) + 1)
