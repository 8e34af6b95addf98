"""The attributes of a snapshot: strings, numbers, and lists of strings or numbers. All formats store them alike."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from jax import Array

from .._common.check import brief
from .._common.host import host_array


Attribute: TypeAlias = str | float | int | bool | list

# The largest size of an attribute in bytes. HDF5 cannot store an attribute of more than 64 KiB.
MOST_BYTES = 2**15


def check_attributes(attributes: Any, reserved: tuple[str, ...]) -> dict[str, Attribute]:
    """Return attributes as the plain Python objects that a file of any format returns when it is read.

    NumPy and JAX scalars become numbers, and arrays become lists. In a list of integers and floats, the integers become
    floats. Raises `TypeError` or `ValueError` if one of the formats cannot store an attribute.
    """
    checked = {}
    for key, value in dictionary("attributes", attributes).items():
        if not (isinstance(key, str) and key):
            raise TypeError(f"`attributes` must have names that are strings; got {key!r}.")
        if key in reserved:
            raise ValueError(f"`attributes` must not use the name {key!r}, which decompops uses. Choose another name.")
        check_text("attributes", key)
        checked[key] = _plain(key, value)
    return checked


def dictionary(name: str, value: Any) -> dict:
    """Return the argument `name` as a dictionary, which is empty for `None`. Raises `TypeError` for other types."""
    if not isinstance(value, Mapping | None):
        raise TypeError(f"`{name}` must be a dictionary; got {brief(value)}.")
    return dict(value or {})


def check_text(name: str, text: str) -> None:
    """Raise `ValueError` if HDF5 cannot store a text."""
    try:
        is_plain = b"\0" not in text.encode()
    except UnicodeEncodeError:
        is_plain = False
    if not is_plain:
        raise ValueError(f"`{name}` must have texts without zero characters and surrogates; got {text!r}.")


def _plain(key: str, value: Any) -> Attribute:
    given = host_array(value, key).tolist() if isinstance(value, np.ndarray | np.generic | Array) else value
    is_list = isinstance(given, list | tuple)
    parts = [part.item() if isinstance(part, np.generic) else part for part in (given if is_list else [given])]
    kinds = {next((kind for kind in (bool, int, float, str) if isinstance(part, kind)), None) for part in parts}
    if kinds == {int, float}:
        kinds = {float}
    if None in kinds or len(kinds) > 1:
        raise TypeError(
            "`attributes` must map names to strings, numbers or lists of either, which may not be mixed; got "
            f"{value!r} for {key!r}."
        )
    kind: Any = next(iter(kinds), float)
    parts = [kind(part) for part in parts]
    if kind is int and not all(-(2**63) <= part < 2**63 for part in parts):
        raise ValueError(f"`attributes` must have integers of at most 64 bits; got {value!r} for {key!r}.")
    if kind is str:
        for part in parts:
            check_text("attributes", part)
    if (size := sum(len(part.encode()) + 16 if kind is str else 8 for part in parts)) > MOST_BYTES:
        raise ValueError(
            f"`attributes` must have at most {MOST_BYTES} bytes each; got {size} for {key!r}. Store a shorter list."
        )
    return parts if is_list else parts[0]
