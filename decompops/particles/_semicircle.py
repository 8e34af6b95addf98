"""The window of non-uniform Fourier transforms: the exponential of a semicircle, as piecewise polynomials."""

import functools
import math

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from .._core.window import Window


MOST_WIDTH = 16  # In cells. The compiled kernel takes no wider windows.
_ALIASES = 2 * math.pi * np.array([m for m in range(-5, 6) if m])  # Whole turns per cell.


@functools.cache
def semicircle(tolerance: float, oversampling: float) -> Window:
    """Return the narrowest window with errors of at most `tolerance`. Raises `ValueError` if there is none.

    The window is `exp(β (sqrt(1 - z²) - 1))` with z from -1 to 1, as polynomials of the lowest degree that suffices:
    low degrees make deposits faster. Derivatives by positions may have ten times the error.

    Source: Barnett, Magland & af Klinteberg, SIAM J. Sci. Comput. 41(5), C479 (2019); β has γ = 0.97 in equation (4.5).
    """
    least = math.log(1 / tolerance) / (math.pi * math.sqrt(1 - 1 / oversampling))
    for width in range(max(2, math.floor(least)), MOST_WIDTH + 1):
        for degree in range(max(1, width - 4), width + 2):
            window = _fitted(width, 0.97 * math.pi * (1 - 0.5 / oversampling) * width, degree)
            if all(error(window, oversampling, order) <= 10**order * tolerance for order in (0, 1)):
                return window
    raise ValueError(
        f"`tolerance` must be one that a window of at most {MOST_WIDTH} cells reaches; got {tolerance!r} with "
        f"`oversampling={oversampling!r}`. Pass a larger tolerance, or `oversampling=2.0`."
    )


def error(window: Window, oversampling: float, order: int = 0) -> float:
    """Return the relative error of the modes of random strengths along one axis, in the root mean square.

    Each mode of the fine grid also contains its aliases. With `order` 1, this is the error of derivatives by positions.
    """
    modes = np.linspace(0, math.pi / oversampling, 33)
    aliases = modes[:, None] + _ALIASES
    wrong = np.sum((window.transform(aliases) * aliases**order) ** 2, axis=1) / window.transform(modes) ** 2
    return math.sqrt(np.mean(wrong) / np.mean(modes ** (2 * order)))


@functools.cache
def growth(window: Window, cells: float) -> float:
    """Return how much larger rounding errors are after the division by the window's transform, along one axis.

    `cells` is the number of cells of the fine grid for each mode. All modes of the fine grid have about the same error,
    and the transform is small for the highest of the wanted modes.
    """
    angles = np.linspace(0, math.pi, 257)
    return math.sqrt(np.mean(window.transform(angles) ** 2) * np.mean(window.transform(angles / cells) ** -2.0))


def _fitted(width: int, beta: float, degree: int) -> Window:
    """Return the exponential of a semicircle, interpolated by a polynomial of `degree` in each cell."""

    def piece(j: int) -> tuple[float, ...]:
        def share(t: np.ndarray) -> np.ndarray:
            return np.exp(beta * (np.sqrt(1 - (2 * (t + width / 2 - 1 - j) / width) ** 2) - 1))

        fit = Chebyshev.interpolate(share, degree, domain=[0, 1])
        return tuple(fit.convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1]).coef.tolist())

    return Window(tuple(map(piece, range(width))))
