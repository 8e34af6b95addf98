"""The contents of a snapshot besides the cells: names, dimensions, coordinates, units, box and time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import numpy as np
from jax import Array

from .._box import Box
from .._grid import GridLike, grid_of
from .._layout import Layout
from .._structure import Space


Attribute: TypeAlias = str | float | int | bool | list

# Increase this number whenever an older version of the library would misread newer files.
VERSION = 1
FORMAT, SPACE, LENGTHS, BOX, TIME = "decompops_format", "space", "lengths", "box", "time"
RESERVED = (FORMAT, SPACE, LENGTHS, BOX)


@dataclass(frozen=True)
class Variable:
    """One array of a file: the names of its dimensions, its true shape in natural order, and its dtype."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Contents:
    """A description of the arrays of a file, of their coordinates, and of the units of both, with the attributes."""

    variables: dict[str, Variable]
    coordinates: dict[str, np.ndarray]  # By the name of the dimension. "time" is a single number.
    units: dict[str, str]
    attributes: dict[str, Attribute]

    @property
    def space(self) -> Space:
        """Whether the arrays are fields or spectra."""
        return self.attributes[SPACE]  # pyright: ignore[reportReturnType]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The true lengths of the last axes of each array: the number of points or modes along each axis."""
        return tuple(self.attributes[LENGTHS])  # pyright: ignore[reportArgumentType]


def describe(
    arrays: Mapping[str, Any],
    grid: GridLike,
    *,
    space: Space = "field",
    box: Box | None = None,
    time: Any = None,
    units: Mapping[str, str] | None = None,
    attributes: Mapping[str, Attribute] | None = None,
) -> tuple[Contents, Layout]:
    """Return the contents of a file of these arrays, and the layout of the arrays.

    Raises `ValueError` or `TypeError` for invalid arguments.
    """
    _check_names(arrays)
    first = next(iter(arrays.values()))
    known = grid_of(grid, np.shape(first), space, Box() if box is None else box)
    layout, lengths, names = known.layout, known.layout.true_shape, known.names
    if taken := {TIME, *names} & set(arrays):
        raise ValueError(f"`arrays` must not use the names of coordinates; got {sorted(taken)}. Choose other names.")
    coordinates = {} if box is None else known.coordinates()
    if time is not None:
        coordinates[TIME] = np.asarray(_number(TIME, time))
    units = _check_texts("units", units, (*arrays, *coordinates))
    variables = {}
    for name, array in arrays.items():
        layout.check(array, f"arrays[{name!r}]")
        lead = np.shape(array)[: -len(lengths)]
        dims = (*(f"{name}_{i}" for i in range(len(lead))), *names)
        variables[name] = Variable(dims, (*lead, *lengths), np.dtype(array.dtype))
    facts = {FORMAT: VERSION, SPACE: space, LENGTHS: list(lengths)}
    if box is not None:
        facts[BOX] = list(known.lengths)
    return Contents(variables, coordinates, units, {**_check_attributes(attributes), **facts}), layout


def check_contents(contents: Contents, path: Any) -> Contents:
    """Return `contents`. Raises `ValueError` if this version of the library cannot read the file."""
    version = contents.attributes.get(FORMAT)
    if not isinstance(version, int | np.integer):
        raise ValueError(f"`path` must be a snapshot written by decompops; got {path}, which has no `{FORMAT}`.")
    check_version("`path` must be a snapshot", path, version, VERSION)
    lengths, space = contents.attributes.get(LENGTHS), contents.attributes.get(SPACE)
    fits = isinstance(lengths, list) and all(
        list(v.shape[-len(lengths) :]) == lengths for v in contents.variables.values()
    )
    if not fits or space not in get_args(Space):
        raise damaged(path, "its attributes and its arrays contradict each other")
    return contents


def check_version(rule: str, path: Any, found: int, known: int) -> None:
    """Raise `ValueError` if the format of a file, `found`, is not the one that this version of the library knows."""
    if found > known:
        raise ValueError(
            f"{rule} of format {known}; got {path} of format {found}, which a newer decompops wrote. Type `pip install "
            "--upgrade decompops` to read it."
        )
    if found < known:
        raise ValueError(
            f"{rule} of format {known}; got {path} of format {found}, which has fewer checksums. An older decompops "
            "wrote it. Write it again."
        )


def damaged(path: Any, reason: object) -> ValueError:
    """Return the error to raise for a snapshot or a checkpoint that cannot be read."""
    line = str(reason).strip().partition("\n")[0]
    return ValueError(f"`path` must be a complete file, but {path} is damaged: {line}. Read an older one.")


def _check_names(arrays: Any) -> None:
    if not isinstance(arrays, Mapping) or not arrays:
        raise TypeError(f'`arrays` must be a dictionary of arrays by name, such as {{"velocity": u}}; got {arrays!r}.')
    for name, array in arrays.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(
                f"`arrays` must have names of letters, digits and underscores that start with no digit; got {name!r}."
            )
        if not isinstance(array, Array | np.ndarray):
            raise TypeError(f"`arrays` must be arrays of JAX or NumPy; got {type(array).__name__} for {name!r}.")


def _check_texts(name: str, texts: Any, known: tuple[str, ...]) -> dict[str, str]:
    texts = dict(texts or {})
    for key, text in texts.items():
        if key not in known or not isinstance(text, str):
            raise ValueError(f"`{name}` must map some of {', '.join(known)} to strings; got {text!r} for {key!r}.")
    return texts


def _check_attributes(attributes: Any) -> dict[str, Attribute]:
    attributes = dict(attributes or {})
    for key, value in attributes.items():
        plain = isinstance(value, list | tuple)
        parts = list(value) if plain else [value]
        if not (isinstance(key, str) and key and all(isinstance(part, str | float | int | bool) for part in parts)):
            raise TypeError(
                f"`attributes` must map names to strings, numbers or lists of these; got {value!r} for {key!r}."
            )
        if key in RESERVED:
            raise ValueError(f"`attributes` must not use the name {key!r}, which decompops uses. Choose another name.")
        attributes[key] = parts if plain else value
    return attributes


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be one finite number; got {value!r}.")
    return number
