"""What a file format is to writing and reading."""

import abc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from ._contents import Contents
from ._parts import Bounds


# A part of an array: the array's name, where it is, and its cells.
Cells = tuple[str, Bounds, np.ndarray]


class AbstractFile(abc.ABC):
    """A snapshot that is open for reading, with `contents`."""

    contents: Contents

    @abc.abstractmethod
    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        """The cells of an array within `bounds`, which are in natural order, with the axes in the order of the file.

        Several threads do this at the same time.
        """


class AbstractFormat(abc.ABC):
    """How snapshots lie on disk: arrays in chunks, each with a checksum."""

    suffixes: ClassVar[tuple[str, ...]]
    reverses: ClassVar[bool]
    """Whether the grid axes are stored from the last to the first."""

    @abc.abstractmethod
    def create(self, path: Path, contents: Contents, chunks: Mapping[str, tuple[int, ...]]) -> None:
        """Write everything but the arrays' cells, on one process. Each array is stored in chunks of the given shape."""

    @abc.abstractmethod
    def write(self, path: Path, contents: Contents, parts: Iterable[Cells]) -> None:
        """Write parts of the arrays, which come one at a time, and wait until they are on disk.

        Several processes do this at the same time. No chunk belongs to two parts.
        """

    @abc.abstractmethod
    def open(self, path: Path) -> AbstractFile:
        """Open a snapshot. Raises `ValueError` for one that is damaged or not written by this library."""
