"""The formats of snapshots, by the suffixes of their files."""

from pathlib import Path
from typing import Any

from ._contents import Contents
from ._format import AbstractFormat
from ._hdf5 import HDF5
from ._storable import as_path, check_storable
from ._zarr import Zarr


FORMATS: tuple[AbstractFormat, ...] = (Zarr(), HDF5())


def format_of(path: Any) -> tuple[AbstractFormat, Path]:
    """Return the format of a file by its suffix, and its path without symbolic links."""
    path = as_path("path", path)
    for format in FORMATS:
        if path.suffix in format.suffixes:
            return format, path.resolve()
    suffixes = " or ".join(suffix for format in FORMATS for suffix in format.suffixes)
    raise ValueError(f"`path` must end in {suffixes}; got {str(path)!r}.")


def check_dtypes(format: AbstractFormat, contents: Contents) -> None:
    """Raise `TypeError` if a format cannot store the dtype of an array."""
    for name, variable in contents.variables.items():
        others = [f"choose a `path` that ends in {f.suffixes[0]}" for f in FORMATS if variable.dtype.name in f.dtypes]
        otherwise = next(iter(others), "leave it out")
        check_storable("arrays", repr(name), variable.dtype, f"a {format.suffixes[0]} file", format.dtypes, otherwise)
