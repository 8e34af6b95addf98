"""Write sharded fields and spectra to Zarr or HDF5 files, write checkpoints of runs, and read both on any mesh.

`Samples` reads batches of samples for training from such files.
"""

from ._checkpoints import Checkpoints as Checkpoints
from ._read import Snapshot as Snapshot, read as read
from ._samples import Samples as Samples
from ._series import write_series as write_series
from ._snapshot import Writer as Writer, write as write
