"""Reads arguments that may be given in several forms."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jax import Array


Pair: TypeAlias = Sequence[float | int] | np.ndarray | Array  # Two numbers.


def pair_of(value: Any) -> tuple[float, float]:
    """Return two numbers as floats. Returns two NaNs for another value: all comparisons with NaN are false."""
    try:
        first, second = map(float, value)
    except (TypeError, ValueError):
        return math.nan, math.nan
    return first, second


def list_of(value: Any) -> list:
    """Return a sequence as a list, and any other value, or a string, as a list of one."""
    try:
        return [value] if isinstance(value, str) else list(value)
    except TypeError:
        return [value]
