"""Groups of devices that run different programs, and the movement of arrays between them."""

from ._array import MpmdArray as MpmdArray
from ._mesh import MpmdMesh as MpmdMesh, MpmdSharding as MpmdSharding
from ._reshard import (
    mpmd_to_spmd_reshard as mpmd_to_spmd_reshard,
    reshard as reshard,
    spmd_to_mpmd_reshard as spmd_to_mpmd_reshard,
)
from ._stack import logically_stacked as logically_stacked
