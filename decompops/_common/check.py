"""Checks of arguments: an error names the argument, the rule and the value received."""

import math
import operator
import re
from collections.abc import Callable, Collection
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .blocks import axis_names
from .host import check_no_keys, fitting


# One number, as users write it: fields with the converter `as_number` take these, also arrays without axes.
Real = float | int | np.number | np.ndarray | Array
Integer = int | np.integer | np.ndarray | Array


def check_axis(name: str, value: Any, ndim: int) -> int:
    """Return the number of a grid axis, given by its name or number. Raises `ValueError` for other values."""
    names = axis_names(ndim)
    if isinstance(value, str):
        axis = names.index(value) if value in names else ndim
    else:
        try:
            axis = _index(value)
        except TypeError:
            axis = ndim
    if not -ndim <= axis < ndim:
        known = " or ".join(f'"{known}"' for known in names)
        raise ValueError(f"`{name}` must be {known}, or the number of a grid axis; got {value!r}.")
    return axis % ndim


def check_axes(name: str, value: Any, ndim: int) -> tuple[int, ...]:
    """Return the numbers of grid axes, given by names or numbers.

    Raises `ValueError` for an axis that is unknown or repeated.
    """
    if not isinstance(value, tuple | list | str):
        value = tuple(value) if _ndim(value) else (value,)
    axes = tuple(check_axis(name, axis, ndim) for axis in value)
    if len(set(axes)) < len(axes):
        raise ValueError(f"`{name}` must be different axes of the grid; got {value!r}.")
    return axes


def check_order(name: str, value: Any, ndim: int) -> tuple[int, ...]:
    """Return the numbers of all grid axes in the given order. Raises `ValueError` if one is missing or repeated."""
    order = check_axes(name, value, ndim)
    if len(order) != ndim:
        example = axis_names(ndim)[::-1]
        raise ValueError(f"`{name}` must have each axis of the grid once, such as {example}; got {value!r}.")
    return order


def check_dtype(name: str, dtype: Any) -> np.dtype:
    """Return the dtype of an array. Raises `TypeError` for keys and for numbers of less than one byte."""
    check_no_keys(dtype, name)
    # XLA stores several such numbers in one byte. Its own CPU compiler aborts the process in some operations on them.
    if small := re.match(r"u?int[124]$|float[46]_", np.dtype(dtype).name):
        wider = "int8" if "int" in small[0] else "float16"
        raise TypeError(
            f"`{name}` must hold numbers of at least one byte; got {dtype}. Pass `{name}.astype(jnp.{wider})`."
        )
    return dtype


def check_inexact(name: str, x: Array, purpose: str = "") -> Array:
    """Return `x` if it holds floating-point or complex numbers. Raises `TypeError` for integers and others.

    The error names the `purpose`, such as " for a transpose".
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise TypeError(
            f"`{name}` must be real or complex floating-point numbers{purpose}; got {x.dtype}. Pass "
            f"`{name}.astype(float)`."
        )
    return x


def check_shape(name: str, shape: Any, ndim: int | None = None) -> tuple[int, ...]:
    """Return `shape` as a tuple of positive ints, `ndim` of them if `ndim` is given. Else raises `ValueError`."""
    try:
        lengths = tuple(map(_index, shape))
    except TypeError:
        lengths = ()
    if not lengths or min(lengths) < 1 or len(lengths) != (ndim or len(lengths)):
        raise ValueError(f"`{name}` must be {_count(ndim)}positive integers{_along(ndim)}; got {shape!r}.")
    return lengths


def check_one_or_each(name: str, value: Any, ndim: int) -> tuple[int, ...]:
    """Return one positive int for each of `ndim` axes. `value` is one int for all axes, or one for each axis.

    Raises `ValueError` for other values.
    """
    try:
        is_one = isinstance(value, SupportsIndex) and not np.ndim(value)  # Arrays have the method, too.
        return check_shape(name, (value,) * ndim if is_one else value, ndim)
    except ValueError:
        raise ValueError(
            f"`{name}` must be one positive integer, or {_count(ndim)}positive integers{_along(ndim)}; got {value!r}."
        ) from None


def check_up_to(name: str, value: Any, most: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Return one positive int of at most `most` for each axis. `value` is one int for all axes, or one for each axis.

    Raises `ValueError` for other values. `what` is the noun for the counted things in the error, such as "modes".
    """
    try:
        counts = check_one_or_each(name, value, len(most))
    except ValueError:
        counts = None
    if counts is None or any(count > limit for count, limit in zip(counts, most)):
        raise ValueError(f"`{name}` must be at least one and at most {most} {what}{_along(len(most))}; got {value!r}.")
    return counts


_COUNTS = ("no ", "one ", "two ", "three ", "four ")


def _count(ndim: int | None) -> str:
    return "" if ndim is None else _COUNTS[ndim] if ndim < len(_COUNTS) else f"{ndim} "


def _along(ndim: int | None) -> str:
    return "" if ndim is None else f" along {', '.join(axis_names(ndim))}"


def check_key(name: str, value: Any) -> Any:
    """Return `value` if it is a key of `jax.random`. Raises `TypeError` for other values, such as a number."""
    dtype = np.dtype(object) if isinstance(value, type) else getattr(value, "dtype", np.dtype(object))
    if not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or (dtype == np.uint32 and np.ndim(value))):
        number = value if isinstance(value, SupportsIndex) else 0
        raise TypeError(f"`{name}` must be a key of JAX, such as `jax.random.key({number})`; got {brief(value)}.")
    return value


def brief(value: Any) -> str:
    """Return what an error prints of a value: the dtype and the shape of an array, and the `repr` of other values."""
    if hasattr(value, "dtype") and _ndim(value):
        return f"an array {value.dtype}[{', '.join(map(str, np.shape(value)))}]"
    return repr(value)


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Return `value` as an int of at least `least`, which fits 64 bits. Raises `ValueError` for other values."""
    try:
        count = _index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise ValueError(f"`{name}` must be an integer of at least {'one' if least == 1 else least}; got {value!r}.")
    if count >= 2**63:
        raise ValueError(f"`{name}` must be below 2**63; got {value!r}.")
    return count


def taking(accepted: Any, converter: Callable[[Any], Any]) -> Any:
    """Return `converter` as the converter of a field for which the constructor takes values of the type `accepted`.

    Equinox writes the type that a converter takes into the signature of the constructor. The converters below serve
    fields of many types. Type checkers take the type from the field, because they see no converter here.
    """
    convert = lambda value: converter(value)
    convert.__annotations__ = {"value": accepted}
    return convert


def as_number(value: Any) -> Any:
    """Return a number of NumPy or JAX as one of Python, and other values as they are.

    This converts static fields of modules. These must be hashable, and an array of NumPy or JAX is not. Equinox also
    warns of scalars of NumPy.
    """
    is_number = isinstance(value, np.generic | np.ndarray | Array) and not isinstance(value, Tracer) and not value.ndim
    return value.item() if is_number else value


def as_tuples(value: Any) -> Any:
    """Return a list, tuple or array of numbers as nested tuples, and other values as they are."""
    several = isinstance(value, tuple | list) or _ndim(value) > 0
    return tuple(map(as_tuples, value)) if several else value


def _ndim(value: Any) -> int:
    """Return `np.ndim(value)`, but zero for classes such as `np.float32`, which have attributes of arrays."""
    return 0 if isinstance(value, type) else np.ndim(value)


def _index(value: Any) -> int:
    """Return `operator.index(value)`. Raises `TypeError` for True and False, which are integers for Python."""
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def is_one_of(value: Any, choices: Collection) -> bool:
    """Return whether `value` equals one of `choices` and has the same type.

    Unlike `value in choices`, this is False for arrays, which have no truth value, and for 2.0 and True as integers.
    """
    return any(
        isinstance(value, type(choice)) and isinstance(value, bool) == isinstance(choice, bool) and value == choice
        for choice in choices
    )


def check_choice(name: str, value: Any, choices: Collection) -> Any:
    """Return `value` if it is one of `choices`. Raises `ValueError` for other values."""
    if not is_one_of(value, choices):
        raise ValueError(f"`{name}` must be one of {tuple(choices)}; got {brief(value)}.")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Return `value` if it is True or False. Raises `TypeError` for other values."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False; got {value!r}.")
    return value


def check_untraced(name: str, tree: Any, function: str, inside: str = "") -> None:
    """Raise `TypeError` if JAX traces an array of `tree`, because `function` reads its numbers.

    The error says to call the function `inside` instead, which works under `jax.jit` and other transformations.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise TypeError(
            f"`{name}` must not be traced, because `{function}` reads its numbers; got a tracer. Call `{function}` "
            f"outside of `jax.jit` and other transformations{inside and f'; use {inside} inside'}."
        )


def check_number(name: str, value: Any, *, least: float | int = -math.inf, positive: bool = False) -> Any:
    """Return `value` if it is one finite real number of at least `least` or, if `positive` is True, above zero.

    The range of a traced value is not checked.

    Raises `TypeError` for a value that is not one real number, and `ValueError` for a number out of range or an integer
    that JAX cannot hold.
    """
    if isinstance(value, int | np.generic | np.ndarray) and not np.ndim(value):
        fitting(value if isinstance(value, int) else np.asarray(value), name)
    try:
        number = jnp.asarray(value)
        valid = number.ndim == 0 and not (jnp.iscomplexobj(number) or number.dtype == bool)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise TypeError(f"`{name}` must be one real number; got {value!r}.")
    # JAX refuses to compare its integers with a float if dtypes are strict.
    if not isinstance(value, Tracer) and not (
        math.isfinite(value) and (float(value) > 0 if positive else float(value) >= least)
    ):
        rule = "finite" if least == -math.inf else f"a finite number of at least {least:g}"
        rule = "a positive, finite number" if positive else rule
        raise ValueError(f"`{name}` must be {rule}; got {value!r}.")
    return value
