"""The interface of a file format, by which snapshots are written and read."""

import abc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from ._contents import Contents
from ._parts import Bounds


# A part of an array: the name of the array, the bounds of the part, and its cells.
Cells = tuple[str, Bounds, np.ndarray]


class AbstractFile(abc.ABC):
    """A snapshot that is open for reading. `contents` describes its arrays."""

    contents: Contents

    @abc.abstractmethod
    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        """Return the cells of an array within `bounds`. Several threads call this at the same time.

        `bounds` are in natural order; the axes of the result are in the order of the file.
        """


class AbstractFormat(abc.ABC):
    """A format in which snapshots are stored: arrays in chunks, each with a checksum."""

    suffixes: ClassVar[tuple[str, ...]]
    reverses: ClassVar[bool]
    """Whether the grid axes are stored from the last to the first."""

    @abc.abstractmethod
    def create(self, path: Path, contents: Contents, chunks: Mapping[str, tuple[int, ...]]) -> None:
        """Write all but the cells of the arrays. One process calls this. `chunks` has the chunk shape of each array."""

    @abc.abstractmethod
    def write(self, path: Path, contents: Contents, parts: Iterable[Cells]) -> None:
        """Write parts of the arrays, and wait until they are on disk.

        Several processes call this at the same time. No chunk belongs to two parts. `parts` is iterated once, so that
        only a few parts are in memory.
        """

    @abc.abstractmethod
    def open(self, path: Path) -> AbstractFile:
        """Open a snapshot. Raises `ValueError` if it is damaged, or if this library did not write it."""
