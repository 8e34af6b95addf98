"""All contents of a snapshot except the cells: names, dimensions, coordinates, units, box and time."""

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from jax import Array

from .._common.check import brief
from .._common.host import native
from .._common.ownership import is_of_process
from .._core.layout import Layout
from .._core.structure import Space
from .._operator.grid import GridLike, structure_of
from .._operator.transform import AbstractTransform
from ._attributes import Attribute, check_attributes, check_text, dictionary
from ._checksums import checksum_of_json


# The format of files. Increase this number if older versions of the library would misread new files, or if this version
# would misread old files. Files of format 1 have no checksum of their description.
VERSION = 2
FORMAT, CHECKSUM, SPACE, LENGTHS, BOX = "decompops_format", "decompops_checksum", "space", "lengths", "box"
# A random text. It tells a snapshot from another one that was written at the same path with the same arguments.
IDENTITY = "decompops_identity"
# The attributes with this prefix say what the numbers of a spectrum mean: see `Expansion.facts`.
MEANING = "spectrum_"
MEANINGS = tuple(f"{MEANING}{name}" for name in ("bases", "shape", "modes", "norm", "nyquist"))
RESERVED = (FORMAT, CHECKSUM, IDENTITY, SPACE, LENGTHS, BOX, *MEANINGS)
TIME = "time"


@dataclass(frozen=True)
class Variable:
    """One array of a file: its dimensions, its shape in natural order (x, y, z) without padding, and its dtype."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Contents:
    """The description of a file: its arrays, their coordinates, the units of arrays and coordinates, and attributes."""

    variables: dict[str, Variable]
    coordinates: dict[str, np.ndarray]  # The keys are dimensions. "time" is a single number.
    units: dict[str, str]
    attributes: dict[str, Attribute]

    @property
    def space(self) -> Space:
        """Whether the arrays are fields or spectra."""
        return self.attributes[SPACE]  # pyright: ignore[reportReturnType]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the grid axes, without padding: the number of points or modes along each axis."""
        return tuple(self.attributes[LENGTHS])  # pyright: ignore[reportArgumentType]

    @property
    def meaning(self) -> dict[str, Any] | None:
        """What the numbers of a spectrum mean: see `Expansion.facts`. `None` if the file does not say it."""
        facts = {name.removeprefix(MEANING): self.attributes[name] for name in MEANINGS if name in self.attributes}
        return facts if len(facts) == len(MEANINGS) else None

    @property
    def checksum(self) -> int:
        """The checksum of this description, which a file stores as an attribute. It is the same for all formats."""
        variables = {name: [v.dims, v.shape, v.dtype.name, v.dtype.isnative] for name, v in self.variables.items()}
        coordinates = {name: [v.shape, zlib.crc32(v.astype("<f8").tobytes())] for name, v in self.coordinates.items()}
        attributes = {name: value for name, value in self.attributes.items() if name != CHECKSUM}
        return checksum_of_json([variables, coordinates, self.units, attributes])

    def identified(self, identity: str) -> "Contents":
        """Return the contents with the identity of a snapshot, and with their checksum."""
        contents = replace(self, attributes={**self.attributes, IDENTITY: identity})
        return replace(contents, attributes={**contents.attributes, CHECKSUM: contents.checksum})


def describe(
    arrays: Mapping[str, Any],
    grid: GridLike,
    *,
    space: Space = "field",
    time: Any = None,
    units: Mapping[str, str] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> tuple[Contents, Layout]:
    """Return the contents of a file with these arrays, without an identity, and the layout of the arrays.

    Raises `ValueError` or `TypeError` for invalid arguments.
    """
    _check_names(arrays)
    known = structure_of(grid, space)
    layout, lengths, names = known.layout, known.layout.true_shape, known.names
    coordinates = {} if layout.box is None else known.coordinates()
    if time is not None:
        coordinates[TIME] = np.asarray(_number(TIME, time))
    units = _check_texts("units", units, (*arrays, *coordinates))
    variables = {}
    for name, array in arrays.items():
        _check_shape(f"arrays[{name!r}]", array, grid, space, layout)
        if 0 in np.shape(array):
            raise ValueError(
                f"`arrays` must not be empty batches; got shape {np.shape(array)} for {name!r}. Leave it out."
            )
        lead = np.shape(array)[: -len(lengths)]
        dims = (*(f"{name}_{i}" for i in range(len(lead))), *names)
        variables[name] = Variable(dims, (*lead, *lengths), native(np.dtype(array.dtype)))
    if taken := {TIME, *names}.union(*(variable.dims for variable in variables.values())) & set(arrays):
        raise ValueError(
            f"`arrays` must not use the names of coordinates and dimensions; got {sorted(taken)}. Choose other names."
        )
    facts = {FORMAT: VERSION, SPACE: space, LENGTHS: list(lengths)}
    if layout.box is not None:
        facts[BOX] = list(known.lengths)
    if known.expansion is not None:
        facts |= {f"{MEANING}{name}": value for name, value in known.expansion.facts.items()}
    return Contents(variables, coordinates, units, {**check_attributes(attributes, RESERVED), **facts}), layout


def _check_shape(name: str, array: Any, grid: GridLike, space: Space, layout: Layout) -> None:
    """Raise `ValueError` unless the shape of an array fits `layout`. The error tells if the other `space` would fit."""
    try:
        layout.check(array, name)
    except ValueError as error:
        if not isinstance(grid, AbstractTransform):
            raise
        other: Space = "field" if space == "spectrum" else "spectrum"
        hint = f' Pass `space="{other}"`.' if structure_of(grid, other).layout.holds(array) else ""
        raise ValueError(f"{error}{hint}") from None


def check_format(attributes: Mapping[str, Any], path: Any) -> None:
    """Raise `ValueError` if `attributes` do not belong to a snapshot that this version of the library can read."""
    version = attributes.get(FORMAT)
    if not isinstance(version, int | np.integer):
        raise ValueError(f"`path` must be a snapshot written by decompops; got {path}, which has no `{FORMAT}`.")
    check_version("`path` must be a snapshot", path, int(version), VERSION)


def check_contents(contents: Contents) -> Contents:
    """Return `contents`. Raises `ValueError` if the description of a file is damaged."""
    if contents.attributes.get(CHECKSUM) != contents.checksum:
        raise ValueError("the checksum of its description is wrong")
    names = [*contents.variables, *contents.coordinates]
    fits = all(name.isidentifier() for name in names) and all(
        v.shape[-len(contents.lengths) :] == contents.lengths for v in contents.variables.values()
    )
    if not fits or contents.space not in get_args(Space):
        raise ValueError("its attributes and its arrays contradict each other")
    return contents


class Damaged(ValueError):
    """The error for a snapshot or a checkpoint that cannot be read."""


def check_version(rule: str, path: Any, found: int, known: int) -> None:
    """Raise `ValueError` if a file has a format, `found`, that is not the format of this version of the library."""
    if found > known:
        raise ValueError(
            f"{rule} of format {known}; got {path} of format {found}, which a newer decompops wrote. To read it, type "
            "`pip install --upgrade decompops`, or in a clone `git pull && pip install .`."
        )
    if found < known:
        raise ValueError(
            f"{rule} of format {known}; got {path} of format {found}, which has fewer checksums. An older decompops "
            "wrote it. Write it again."
        )


def damaged(path: Any, reason: object) -> Damaged:
    """Return the error to raise for a snapshot or a checkpoint that is damaged."""
    line = str(reason).strip().partition("\n")[0]
    return Damaged(f"`path` must be a complete file, but {path} is damaged: {line}. Read an older one.")


def why_not_read(path: Path, error: Exception) -> BaseException:
    """Return the error to raise after `error` was raised while `path` was read.

    It is `Damaged`, unless this process lacks memory, open files or rights: then the snapshot or the checkpoint may be
    intact, and an older one is no better.
    """
    cause: BaseException | None = error
    while not (cause is None or is_of_process(cause) or isinstance(cause, ImportError | jax.errors.JaxRuntimeError)):
        cause = cause.__cause__
    try:
        # For a file that may not be opened, orbax and tensorstore raise the same errors as for a missing file.
        for file in () if cause is not None else (path, *path.rglob("*")):
            os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as found:
        cause = found if is_of_process(found) else None
    return cause or damaged(path, error)


@contextmanager
def reading(path: Path, what: str = "it") -> Iterator[None]:
    """Turn every error that a damaged file causes into a `ValueError` that names the file.

    For damaged files, the libraries that read files raise errors of many types.
    """
    try:
        yield
    except Exception as error:
        why = why_not_read(path, error)
        if isinstance(why, Damaged):
            raise damaged(path, f"{what} cannot be read ({type(error).__name__}: {error})") from error
        raise why from None


def _check_names(arrays: Any) -> None:
    if not isinstance(arrays, Mapping) or not arrays:
        raise TypeError(
            f'`arrays` must be a dictionary of arrays by name, such as {{"velocity": u}}; got {brief(arrays)}.'
        )
    for name, array in arrays.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(
                f"`arrays` must have names of letters, digits and underscores that start with no digit; got {name!r}."
            )
        if not isinstance(array, Array | np.ndarray):
            raise TypeError(f"`arrays` must be arrays of JAX or NumPy; got {type(array).__name__} for {name!r}.")


def _check_texts(name: str, texts: Any, known: tuple[str, ...]) -> dict[str, str]:
    texts = dictionary(name, texts)
    for key, text in texts.items():
        if key not in known or not isinstance(text, str):
            raise ValueError(f"`{name}` must map some of {', '.join(known)} to strings; got {text!r} for {key!r}.")
        check_text(name, text)
    return texts


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be one finite number; got {value!r}.")
    return number
