"""`write_series` combines snapshots into a time series for ParaView."""

import os
from collections.abc import Iterable
from pathlib import Path

import jax

from ._hdf5 import HDF5
from ._xdmf import DIMENSIONS, warn_of_hidden, write_xdmf


def write_series(path: str | os.PathLike, snapshots: Iterable[str | os.PathLike]) -> None:
    """Write an XDMF file that combines HDF5 snapshots of fields into a time series.

    ParaView opens the file with its reader "Xdmf3 Reader S" or "XDMF Reader". Only the first process writes.

    **Arguments:**

    - `path`: the file to write, ending in `.xdmf`.
    - `snapshots`: the HDF5 files that `write` wrote, in the order of their times.

    **Warns:** if a snapshot has complex fields, because XDMF has no complex numbers.

    **Raises:** `ValueError` if `path` does not end in `.xdmf`, if `snapshots` is empty, if a snapshot has spectra, if a
    grid has neither two nor three axes, or if the path of a snapshot contains a colon.
    """
    path, files = Path(path), [Path(snapshot) for snapshot in snapshots]
    if path.suffix != ".xdmf":
        raise ValueError(f"`path` must end in .xdmf; got {str(path)!r}.")
    described = [(file, HDF5().open(file).contents) for file in files]
    fits = [contents.space == "field" and len(contents.lengths) in DIMENSIONS for _, contents in described]
    if not fits or not all(fits) or any(":" in os.path.relpath(file, path.parent) for file in files):
        raise ValueError(
            "`snapshots` must be HDF5 files of fields on grids with two or three axes, with no colon in their paths; "
            f"got {[str(file) for file in files]}."
        )
    for _, contents in described:
        warn_of_hidden(contents, stacklevel=2)
    if jax.process_index() == 0:
        write_xdmf(path, described)
