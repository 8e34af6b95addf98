"""The interface of a file format for snapshots. In this module, the natural order of axes is x, y, z."""

import abc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from ._contents import Contents
from ._parts import Bounds


# A part of an array: the name of the array, the bounds of the part, and its cells. The axes are in natural order.
Cells = tuple[str, Bounds, np.ndarray]


class AbstractFile(abc.ABC):
    """A snapshot that is open for reading. `contents` describes its arrays."""

    contents: Contents

    @abc.abstractmethod
    def read(self, name: str, bounds: Bounds, cells: np.ndarray) -> None:
        """Fill `cells` with the cells of an array within `bounds`, with the axes in natural order.

        Several threads call this method at the same time. Raises `ValueError` if the data is damaged.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the snapshot. `read` then opens it again for each call, and must not be called once it is replaced."""


class AbstractFormat(abc.ABC):
    """A format in which snapshots are stored: arrays in chunks. Each chunk has a checksum."""

    suffixes: ClassVar[tuple[str, ...]]
    dtypes: ClassVar[tuple[str, ...]]  # The names of the dtypes that this format stores.

    @abc.abstractmethod
    def check(self, path: Path, contents: Contents) -> None:
        """Raise `ValueError` or `TypeError` if this format cannot store contents with its `dtypes` at this path."""

    @abc.abstractmethod
    def paths(self, path: Path, contents: Contents) -> tuple[Path, ...]:
        """Return the paths of all files and folders that a snapshot at `path` consists of."""

    @abc.abstractmethod
    def check_own(self, path: Path) -> None:
        """Raise `FileExistsError` if something is at one of these paths that this library did not write."""

    @abc.abstractmethod
    def stamp(self, path: Path) -> bytes | None:
        """Return bytes that change if another snapshot replaces the one at `path`, or `None` if it has just vanished.

        They are empty for a format whose snapshots stay readable, as they were when they were opened.
        """

    @abc.abstractmethod
    def create(self, path: Path, contents: Contents, chunks: Mapping[str, tuple[int, ...]]) -> None:
        """Write everything except the cells of the arrays. Only one process calls this method.

        `chunks` has the shape of the chunks of each array, with the axes in natural order.
        """

    @abc.abstractmethod
    def write(self, path: Path, contents: Contents, parts: Iterable[Cells]) -> None:
        """Write parts of the arrays, and wait until they are on disk.

        Several processes call this method at the same time. No chunk belongs to two parts. `parts` is iterated only
        once, so that only a few parts are in memory at the same time.
        """

    @abc.abstractmethod
    def open(self, path: Path) -> AbstractFile:
        """Open a snapshot. Raises `ValueError` if it is damaged, or if this library did not write it.

        Nothing that is not really in the file is read, so the memory that this takes is at most the size of the file.
        """
