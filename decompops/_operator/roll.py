"""`Roll`: shift a periodic field by whole cells."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax

from .._backend.base import AbstractBackend
from .._common.blocks import Blocks, Pencil, axis_names
from .._common.check import check_axis
from .._core.decomposition import Decomposition
from .._core.types import Lengths, MeshAxes
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Clear
from .halo import HaloExchange
from .planned import AbstractPlanned
from .unbound import MeshOrDecomposition, OperatorDecomposition, decomposition_of


class Roll(AbstractPlanned):
    """Shift a periodic field by whole cells: `jnp.roll` for sharded and padded grids.

    The cell i of the result is the cell `i - shift` of the field. Cells that leave the grid at one end enter it at the
    other end. Padding is never moved into the grid. Devices exchange only the cells that cross their borders. `.T`
    shifts back.

    !!! example

        ```python
        roll = dops.Roll(mesh, (1, 0, -2))
        v = roll(u)              # jnp.roll(u, (1, 0, -2), (-3, -2, -1))
        u = roll.T(v)
        ```
    """

    decomposition: OperatorDecomposition
    shift: tuple[int, ...] = eqx.field(static=True)
    pencil: int = eqx.field(static=True)

    def __init__(
        self,
        mesh: MeshOrDecomposition | None,
        shift: Sequence[int],
        *,
        pencil: Pencil = -1,
        shape: Lengths | None = None,
        axes: MeshAxes | None = None,
        pad: bool | None = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `axes`, `pad`, `backend`: a `Decomposition`, or the arguments to build one.
        - `shift`: the number of cells for each grid axis, positive or negative.
        - `pencil`: the name or number of the grid axis that is whole on every device; by default the last axis.

        **Raises:** `ValueError` or `TypeError` if `decompops.Decomposition` refuses an argument, if `shift` is not one
        integer for each grid axis, or if `pencil` is not valid.

        An instance `roll` is called as `roll(u)`.

        **Arguments of the call:** a field of shape `(*batch, *shape)` and of any dtype. The argument of `.T`
        must have numbers that can be added.

        **Returns:** the shifted field, of the same shape and dtype. Its padding is zero.
        """
        self.shift = _shifts(shift, mesh.ndim if isinstance(mesh, Decomposition) else None)
        self.decomposition = decomposition_of(
            mesh, shape=shape, ndim=len(self.shift), axes=axes, pad=pad, backend=backend
        )
        self.pencil = check_axis("pencil", pencil, self.decomposition.ndim)

    def plan(self) -> Plan:
        # The shorter way around the grid needs the narrower halo.
        shifts = [(shift + n // 2) % n - n // 2 for shift, n in zip(self.shift, self.decomposition.shape)]
        halo = tuple((max(shift, 0), max(-shift, 0)) for shift in shifts)
        extend = HaloExchange(self.decomposition, halo, pencil=self.pencil).plan()
        stages: list[AbstractStage] = list(extend.stages)
        if any(shifts):
            stages.append(Window(extend.target, extend.source, tuple(after for _, after in halo)))
        if extend.source.padded_axes:
            stages.append(Clear(extend.source))
        return Plan(self.title, extend.source, tuple(stages))


@dataclass(frozen=True)
class Window(AbstractStage):
    """Keep as many cells of every extended block as it has without its halo, from the cells `starts` on.

    `starts` has an entry for each grid axis. The transposed stage surrounds every block by zeros.
    """

    before: Blocks
    after: Blocks
    starts: tuple[int, ...]
    transposed: bool = False

    def transpose(self) -> "Window":
        return Window(self.after, self.before, self.starts, not self.transposed)

    def apply(self, block: Array) -> Array:
        blocks = self.after if not self.transposed else self.before
        starts = [self.starts[axis] for axis in blocks.order]
        lead = block.ndim - blocks.ndim
        if not self.transposed:
            first = [*[0] * lead, *starts]
            return lax.slice(block, first, [a + n for a, n in zip(first, (*block.shape[:lead], *blocks.block_shape))])
        widths = [
            (start, long - short - start)
            for start, short, long in zip(starts, self.before.block_shape, self.after.block_shape)
        ]
        return jnp.pad(block, [*[(0, 0)] * lead, *widths])


def _shifts(shift: Any, ndim: int | None) -> tuple[int, ...]:
    """Return `shift` as a tuple of ints. Raises an error unless it is one integer for each grid axis."""
    try:
        shifts = tuple(operator.index(part) for part in shift)
    except TypeError:
        shifts = ()
    if not shifts or (ndim is not None and len(shifts) != ndim):
        along = "" if ndim is None else f", {', '.join(axis_names(ndim))}"
        raise ValueError(f"`shift` must be one integer for each axis of the grid{along}; got {shift!r}.")
    return shifts
