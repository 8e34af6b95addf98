"""`Transpose`: from one pencil to another."""

from itertools import pairwise
from typing import Any

import equinox as eqx
from jax.sharding import AbstractMesh, Mesh

from .._backend.base import AbstractBackend
from .._blocks import AXES, Pencil
from .._check import check_flag, check_pencil
from .._decomposition import Decomposition
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Clear, Move
from .planned import AbstractPlanned


class Transpose(AbstractPlanned):
    """Redistribute a field from one pencil to another: the values stay, the axis that is whole on a device changes.

    One all-to-all between neighbouring pencils (z and y, y and x), two between z and x; a slab needs one or none.

    !!! example

        ```python
        zy = dops.Transpose(mesh, "z", "y")
        v = zy(u)            # sharded P("x", None, "y")
        u = zy.inverse(v)
        ```
    """

    decomposition: Decomposition
    source: Pencil = eqx.field(static=True)
    target: Pencil = eqx.field(static=True)
    axis_contiguous: bool = eqx.field(static=True)

    def __init__(
        self,
        mesh: Mesh | AbstractMesh | Decomposition | None = None,
        source: Pencil = "z",
        target: Pencil = "x",
        *,
        shape: Any = None,
        axes: Any = None,
        pad: bool | None = None,
        axis_contiguous: bool = False,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `axes`, `pad`, `backend`: a `Decomposition`, or the arguments to build one.
        - `source`, `target`: the pencils, "x", "y" or "z".
        - `axis_contiguous`: store each pencil with its local axis last: z-pencils as (x, y, z), y-pencils as
            (z, x, y), x-pencils as (y, z, x). Otherwise all are stored as (x, y, z).
        """
        check_pencil("source", source)
        check_pencil("target", target)
        self.decomposition = Decomposition(mesh, shape=shape, axes=axes, pad=pad, backend=backend)
        self.source = source
        self.target = target
        self.axis_contiguous = check_flag("axis_contiguous", axis_contiguous)
        if self.decomposition.shape is not None:
            self.decomposition.check_divided(self.decomposition.shape, source, target)

    def plan(self, shape: tuple[int, ...]) -> Plan:
        # A pencil in between may be padded: nobody sees it.
        self.decomposition.check_divided(shape, self.source, self.target)
        first, last = AXES.index(self.source), AXES.index(self.target)
        step = 1 if first <= last else -1
        pencils = [
            self.decomposition.pencil(i, shape, axis_contiguous=self.axis_contiguous)
            for i in range(first, last + step, step)
        ]
        moves = [Move(before, after) for before, after in pairwise(pencils) if before != after]
        stages: tuple[AbstractStage, ...] = tuple(moves)
        moved = {axis for move in moves for axis in (move.gathered, move.divided)}
        if not moved.issuperset(pencils[0].padded_axes):
            stages = (Clear(pencils[0]), *moves)  # what moves leaves its padding behind
        return Plan("Transpose", pencils[0], stages)
