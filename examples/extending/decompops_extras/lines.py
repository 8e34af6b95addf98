"""An operator made of existing stages: the FFT along one axis."""

from itertools import pairwise

import decompops as dops
import equinox as eqx
from decompops.extend import DFT, AbstractPlanned, Clear, LocalTransform, Move, Plan, check_axis


class LineFFT(AbstractPlanned):
    """The FFT of fields along one axis, `jnp.fft.fft(u, axis=axis)`.

    Fields and results lie in the pencils of the last axis.

    **Arguments:**

    - `decomposition`: how the mesh shards the grid.
    - `axis`: the name or number of a grid axis, such as "x".
    """

    decomposition: dops.Decomposition
    axis: str | int = eqx.field(static=True)

    def __check_init__(self):
        check_axis("axis", self.axis, self.decomposition.ndim)

    def plan(self):
        dec = self.decomposition
        axis = check_axis("axis", self.axis, dec.ndim)
        # The pencils of the last axis come first, then the pencils of each axis before it.
        pencils = [dec.blocks(pencil) for pencil in reversed(range(axis, dec.ndim))]
        there = tuple(
            Move(before, after) for before, after in pairwise(pencils) if before != after
        )
        back = tuple(move.transpose() for move in reversed(there))
        transform = LocalTransform(pencils[-1], pencils[-1], (axis,), DFT("c2c", -1))
        # Padding, where there is some, must not reach the result.
        return Plan("LineFFT", pencils[0], (Clear(pencils[0]), *there, transform, *back))
