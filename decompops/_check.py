"""Checks of arguments: an error names the argument, the rule and the value received."""

import math
import operator
from typing import Any, SupportsIndex

import jax.numpy as jnp
from jax.core import Tracer

from ._blocks import AXES, Triple


def check_pencil(name: str, value: object) -> None:
    """Raise `ValueError` unless `value` is "x", "y" or "z"."""
    if not isinstance(value, str) or value not in AXES:
        raise ValueError(f'`{name}` must be "x", "y" or "z"; got {value!r}.')


def check_shape(name: str, shape: Any) -> Triple:
    """Three positive integers as a tuple of ints. Raises `ValueError` for anything else."""
    try:
        nx, ny, nz = (operator.index(n) for n in shape)
        valid = min(nx, ny, nz) > 0
    except (TypeError, ValueError):
        nx, ny, nz, valid = 0, 0, 0, False
    if not valid:
        raise ValueError(f"`{name}` must be three positive integers (nx, ny, nz); got {shape!r}.")
    return nx, ny, nz


def check_one_or_three(name: str, value: Any) -> Triple:
    """One positive integer, for all axes, or three, as a tuple of three ints. Raises `ValueError` for anything else."""
    try:
        return check_shape(name, (value,) * 3 if isinstance(value, SupportsIndex) else value)
    except ValueError:
        raise ValueError(f"`{name}` must be one or three positive integers, along x, y, z; got {value!r}.") from None


def check_up_to(name: str, value: Any, most: Triple, what: str) -> Triple:
    """One or three positive integers, along x, y, z, of which none exceeds `most`. Else raises `ValueError`.

    `what` says in the error what is counted, such as "modes along x, y, z".
    """
    try:
        counts = check_one_or_three(name, value)
    except ValueError:
        counts = None
    if counts is None or any(count > limit for count, limit in zip(counts, most)):
        raise ValueError(f"`{name}` must be one to {most} {what}; got {value!r}.")
    return counts


def check_count(name: str, value: Any) -> int:
    """`value` as an int of at least one. Raises `ValueError` for anything else."""
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"`{name}` must be an integer of at least one; got {value!r}.")
    return count


def check_flag(name: str, value: bool) -> bool:
    """`value`, after a check that it is True or False. Raises `TypeError` for anything else."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False; got {value!r}.")
    return value


def check_number(name: str, value: Any, *, least: float | int = -math.inf) -> Any:
    """`value`, after a check that it is one finite real number of at least `least`, as far as that is known.

    A traced value passes. Raises `TypeError` for what is not one real number, `ValueError` for one out of range.
    """
    try:
        number = jnp.asarray(value)
        valid = number.ndim == 0 and not (jnp.iscomplexobj(number) or isinstance(value, bool))
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise TypeError(f"`{name}` must be one real number; got {value!r}.")
    if not isinstance(value, Tracer) and not (math.isfinite(value) and value >= least):
        rule = "finite" if least == -math.inf else f"a finite number of at least {least:g}"
        raise ValueError(f"`{name}` must be {rule}; got {value!r}.")
    return value
