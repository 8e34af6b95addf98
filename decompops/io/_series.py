"""`write_series`: snapshots as a series in time, for ParaView."""

import os
from collections.abc import Iterable
from pathlib import Path

import jax

from ._hdf5 import HDF5
from ._xdmf import write_xdmf


def write_series(path: str | os.PathLike, snapshots: Iterable[str | os.PathLike]) -> None:
    """Write an XDMF file that shows HDF5 snapshots of fields as a series in time.

    ParaView opens it (with its reader "Xdmf3 Reader S" or "XDMF Reader"). Only the first process writes.

    **Arguments:**

    - `path`: where to, ending in `.xdmf`.
    - `snapshots`: the HDF5 files that `write` wrote, in the order of their times.

    **Raises:** `ValueError` for another suffix, for no snapshots, and for snapshots that are spectra.
    """
    path, files = Path(path), [Path(snapshot) for snapshot in snapshots]
    if path.suffix != ".xdmf":
        raise ValueError(f"`path` must end in .xdmf; got {str(path)!r}.")
    described = [(file, HDF5().open(file).contents) for file in files]
    if not described or any(contents.space == "spectrum" for _, contents in described):
        raise ValueError(f"`snapshots` must be HDF5 files of fields; got {[str(file) for file in files]}.")
    if jax.process_index() == 0:
        write_xdmf(path, described)
