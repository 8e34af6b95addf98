"""The formats of snapshots, by the suffixes of their files."""

from pathlib import Path
from typing import Any

from ._format import AbstractFormat
from ._hdf5 import HDF5
from ._zarr import Zarr


FORMATS: tuple[AbstractFormat, ...] = (Zarr(), HDF5())


def format_of(path: Any) -> tuple[AbstractFormat, Path]:
    """Return the format of a file by its suffix, and its path without symbolic links."""
    path = Path(path)
    for format in FORMATS:
        if path.suffix in format.suffixes:
            return format, path.resolve()
    suffixes = " or ".join(suffix for format in FORMATS for suffix in format.suffixes)
    raise ValueError(f"`path` must end in {suffixes}; got {str(path)!r}.")
