"""Fields and spectra on disk: Zarr and HDF5, from any mesh and onto any mesh."""

from ._checkpoints import Checkpoints as Checkpoints
from ._series import write_series as write_series
from ._snapshot import Snapshot as Snapshot, Writer as Writer, read as read, write as write
