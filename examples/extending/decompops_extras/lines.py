"""An operator made of existing stages: the FFT along one axis."""

from itertools import pairwise

import decompops as dops
import equinox as eqx
from decompops.extend import AXES, DFT, AbstractPlanned, Clear, LocalTransform, Move, Plan, check_pencil


class LineFFT(AbstractPlanned):
    """The FFT of fields in z-pencils along one axis, `jnp.fft.fft(u, axis=axis)`. The result is in z-pencils.

    **Arguments:**

    - `decomposition`: how the grid is divided; with a `shape` where the mesh does not divide it.
    - `axis`: "x", "y" or "z".
    """

    decomposition: dops.Decomposition
    axis: str = eqx.field(static=True)

    def __check_init__(self):
        check_pencil("axis", self.axis)

    def plan(self, shape):
        axis = AXES.index(self.axis)
        pencils = [self.decomposition.blocks(name, shape) for name in reversed(AXES[axis:])]  # z, then y, then x
        there = tuple(Move(before, after) for before, after in pairwise(pencils) if before != after)
        back = tuple(move.transpose() for move in reversed(there))
        transform = LocalTransform(pencils[-1], pencils[-1], (axis,), DFT("c2c", -1))
        # Padding, where there is some, must not reach the result.
        return Plan("LineFFT", pencils[0], (Clear(pencils[0]), *there, transform, *back))
