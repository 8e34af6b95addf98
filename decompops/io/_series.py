"""`write_series` combines snapshots into a time series for ParaView."""

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import jax

from .._common.ownership import replace_file
from ._contents import Contents
from ._hdf5 import HDF5
from ._staging import find
from ._storable import as_path
from ._xdmf import DIMENSIONS, is_own_xdmf, warn_of_hidden, xdmf


def write_series(path: str | os.PathLike, snapshots: str | os.PathLike | Iterable[str | os.PathLike]) -> None:
    """Write an XDMF file that combines HDF5 snapshots of fields into a time series.

    ParaView opens the file with its reader "Xdmf3 Reader S" or "XDMF Reader". Only the first process writes.

    **Arguments:**

    - `path`: the file to write, ending in `.xdmf`. Its folder is created if it does not exist.
    - `snapshots`: the HDF5 files that `write` wrote, in the order of their times.

    **Warns:** if a snapshot has complex fields, because XDMF has no complex numbers.

    **Raises:** `ValueError` if `path` does not end in `.xdmf`, if `snapshots` is empty, if a snapshot is damaged, if it
    is no HDF5 file, if it has spectra, if a grid has neither two nor three axes, or if the path of a snapshot contains
    a colon. `FileNotFoundError` if a snapshot does not exist. `FileExistsError` if `path` exists but is no XDMF file
    that decompops wrote.
    """
    path, given = as_path("path", path), [snapshots] if isinstance(snapshots, str | os.PathLike) else list(snapshots)
    if path.suffix != ".xdmf":
        raise ValueError(f"`path` must end in .xdmf; got {str(path)!r}.")
    files, folder = [Path(snapshot).resolve() for snapshot in given], path.parent.resolve()
    are_hdf5 = all(file.suffix in HDF5.suffixes and ":" not in os.path.relpath(file, folder) for file in files)
    described = [(file, _contents(find(file))) for file in files] if are_hdf5 else []
    if not described or not all(of.space == "field" and len(of.lengths) in DIMENSIONS for _, of in described):
        raise ValueError(
            "`snapshots` must be HDF5 files of fields on grids with two or three axes, with no colon in their paths; "
            f"got {[str(file) for file in given]}."
        )
    for _, contents in described:
        warn_of_hidden(contents, stacklevel=2)
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, xdmf(path, described), is_own_xdmf)


def _contents(file: Path) -> Contents:
    with closing(HDF5().open(file)) as snapshot:
        return snapshot.contents
