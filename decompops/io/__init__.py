"""Write and read sharded fields and spectra as Zarr or HDF5 files, and checkpoints of runs, on any mesh."""

from ._checkpoints import Checkpoints as Checkpoints
from ._series import write_series as write_series
from ._snapshot import Snapshot as Snapshot, Writer as Writer, read as read, write as write
