"""Types of arguments, which only type checkers see.

At run time these types are `Any`, because the library's own checks of arguments give better errors than a type check.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np


if TYPE_CHECKING:
    from .._basis.base import AbstractBasis

    # The lengths of a grid along its axes.
    Lengths = Sequence[SupportsIndex] | np.ndarray
    # The mesh axes that shard a grid: for each grid axis one, several or none.
    MeshAxes = str | Sequence[str | Sequence[str] | None]
    # Grid axes, by their names or numbers.
    GridAxes = Sequence[str | SupportsIndex]
    # The number of modes, for all axes or for each axis.
    Modes = SupportsIndex | Lengths
    # One basis, or a basis for each axis.
    Bases = AbstractBasis | Sequence[AbstractBasis]
    # The width of a halo, for all axes or for each axis. A pair has one width for each side.
    Width = SupportsIndex | Sequence[SupportsIndex | Sequence[SupportsIndex]] | np.ndarray
    # Whether all axes or each axis is periodic.
    Periodic = bool | Sequence[bool]
else:
    Lengths = MeshAxes = GridAxes = Modes = Bases = Width = Periodic = Any
