"""`Transpose`: redistribute a field from one pencil to another."""

from dataclasses import replace
from itertools import pairwise

import equinox as eqx

from .._backend.base import AbstractBackend
from .._common.blocks import Pencil
from .._common.check import check_axis
from .._core.decomposition import storage_order
from .._core.types import GridAxes, Lengths, MeshAxes, Width
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Clear, Crop, Move
from .halo import Halo, check_halo
from .planned import AbstractPlanned
from .unbound import MeshOrDecomposition, OperatorDecomposition, decomposition_of


class Transpose(AbstractPlanned):
    """Redistribute a field from one pencil to another: another grid axis is then whole on every device.

    The values stay the same, and by default the order of the axes, too. A transpose between neighbouring pencils, such
    as z and y, needs one all-to-all; a transpose between z and x needs two. With slabs (one sharded axis), it needs one
    or none. Each of the two pencils may have its own storage order and halo layers.

    !!! example

        ```python
        zy = dops.Transpose(mesh, "z", "y")
        v = zy(u)            # sharded P("x", None, "y")
        u = zy.inverse(v)
        ```
    """

    decomposition: OperatorDecomposition
    source: int = eqx.field(static=True)
    target: int = eqx.field(static=True)
    source_order: tuple[int, ...] = eqx.field(static=True)
    target_order: tuple[int, ...] = eqx.field(static=True)
    source_halo: Halo = eqx.field(static=True)
    target_halo: Halo = eqx.field(static=True)

    def __init__(
        self,
        mesh: MeshOrDecomposition | None = None,
        source: Pencil = -1,
        target: Pencil = 0,
        *,
        shape: Lengths | None = None,
        ndim: int | None = None,
        axes: MeshAxes | None = None,
        pad: bool | None = None,
        axis_contiguous: bool = False,
        source_order: GridAxes | None = None,
        target_order: GridAxes | None = None,
        source_halo: Width = 0,
        target_halo: Width = 0,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `ndim`, `axes`, `pad`, `backend`: a `Decomposition`, or the arguments to build one.
        - `source`, `target`: the pencils, by the name or number of the grid axis that is whole on every device. The
            defaults are the pencils of the last axis and of the first axis.
        - `axis_contiguous`: store both pencils with their whole axis last: z-pencils as (x, y, z), y-pencils as
            (z, x, y), x-pencils as (y, z, x). Otherwise both are stored as (x, y, z).
        - `source_order`, `target_order`: the grid axes in the order in which the source or the target pencil is stored,
            such as `("z", "x", "y")`. Pass these orders instead of `axis_contiguous`.
        - `source_halo`: the width of the halo layers of the input, in the forms that `HaloExchange` accepts. The
            transpose drops these layers.
        - `target_halo`: the width of the halo layers of the result. These layers are zero. `HaloExchange(...).update`
            fills them.

        **Raises:** `ValueError` or `TypeError` if `decompops.Decomposition` refuses an argument, or if a pencil, an
        order or a halo is not valid.

        An instance `transpose` is called as `transpose(u)`.

        **Arguments of the call:** a field of shape `(*batch, *transpose.in_layout.shape)` and of any dtype.

        **Returns:** the same field, of shape `(*batch, *transpose.out_layout.shape)` and of the same dtype.
        """
        self.decomposition = decomposition_of(mesh, shape=shape, ndim=ndim, axes=axes, pad=pad, backend=backend)
        dec, grid = self.decomposition, self.decomposition.ndim
        self.source = check_axis("source", source, grid)
        self.target = check_axis("target", target, grid)
        self.source_order, self.target_order = (
            storage_order(grid, pencil, axis_contiguous=axis_contiguous, order=order, name=name)
            for pencil, order, name in (
                (self.source, source_order, "source_order"),
                (self.target, target_order, "target_order"),
            )
        )
        self.source_halo = check_halo("source_halo", source_halo, grid)
        self.target_halo = check_halo("target_halo", target_halo, grid)
        if self.is_bound:
            dec.check_divided(source, target)

    def plan(self) -> Plan:
        # Only these two pencils are checked: pencils between them may be padded, because users never see those.
        dec, shape = self.decomposition, self.decomposition.shape
        dec.check_divided(self.source, self.target)
        step = 1 if self.source <= self.target else -1
        first, last = (
            dec.pencil(self.source, shape, self.source_order),
            dec.pencil(self.target, shape, self.target_order),
        )
        between = [dec.pencil(axis, shape) for axis in range(self.source + step, self.target, step)]
        pencils = [first, *between, last]
        moves = [Move(before, after) for before, after in pairwise(pencils) if before != after]
        extended = replace(first, halo=self.source_halo)
        stages: list[AbstractStage] = [Crop(extended, first)] if extended.has_halo else []
        moved = {axis for move in moves for axis in (move.gathered, move.divided)}
        if not moved.issuperset(first.padded_axes):
            stages.append(Clear(first))  # A `Move` clears padding only along its own two axes.
        stages += moves
        surrounded = replace(last, halo=self.target_halo)
        if surrounded.has_halo:
            stages.append(Crop(last, surrounded, transposed=True))
        return Plan("Transpose", extended, tuple(stages))
