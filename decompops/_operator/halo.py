"""`HaloExchange`: blocks extended by layers of their neighbours' cells."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np

from .._backend.base import AbstractBackend
from .._common.blocks import Pencil, axis_names
from .._common.check import as_number, as_tuples, check_axis
from .._core.decomposition import storage_order
from .._core.types import GridAxes, Lengths, MeshAxes, Periodic, Width
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Clear, Crop, Extend
from .planned import AbstractPlanned
from .unbound import MeshOrDecomposition, OperatorDecomposition, decomposition_of


Halo = tuple[tuple[int, int], ...]


class HaloExchange(AbstractPlanned):
    """Extend every block of a field by layers of its neighbours' cells, including the cells at edges and corners.

    The result is one array, sharded like the field, in which the extended blocks lie side by side. The length of this
    array along an axis is `devices * (before + cells + after)`, if a block has `cells` cells along this axis.
    `halo.crop` drops the layers, and `halo.update` refreshes them. `halo.T` is the exact transpose, which gradients
    use: it adds each halo cell to the cell that it was copied from.

    A halo may be wider than a block. Halo cells beyond a non-periodic edge of the grid are zero.

    !!! example

        ```python
        halo = dops.HaloExchange(mesh, halo=(2, 2, 0), periodic=(True, True, False))
        h = halo(u)
        ```
    """

    decomposition: OperatorDecomposition
    halo: Halo = eqx.field(static=True)
    periodic: tuple[bool, ...] = eqx.field(static=True)
    pencil: int = eqx.field(static=True)
    order: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        mesh: MeshOrDecomposition | None = None,
        halo: Width = 1,
        *,
        periodic: Periodic = True,
        pencil: Pencil = -1,
        order: GridAxes | None = None,
        shape: Lengths | None = None,
        ndim: int | None = None,
        axes: MeshAxes | None = None,
        pad: bool | None = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `ndim`, `axes`, `pad`, `backend`: a `Decomposition`, or the arguments to build one.
        - `halo`: the width in cells: an int for all axes, an int for each grid axis, or a pair `(before, after)` for
            each grid axis.
        - `periodic`: whether the grid is periodic: a bool for all axes, or one for each grid axis.
        - `pencil`: the name or number of the grid axis that is whole on every device; by default the last axis.
        - `order`: the grid axes in the order in which fields are stored, such as `("z", "x", "y")`.

        **Raises:** `ValueError` or `TypeError` if `decompops.Decomposition` refuses an argument, if `halo` is not made
        of non-negative integers, or if `pencil` or `order` is not valid.

        An instance `exchange` is called as `exchange(u)`.

        **Arguments of the call:** a field of shape `(*batch, *shape)` and of any dtype.

        **Returns:** the extended field, of shape `(*batch, *exchange.out_layout.shape)` and of the same dtype.
        """
        self.decomposition = decomposition_of(mesh, shape=shape, ndim=ndim, axes=axes, pad=pad, backend=backend)
        grid = self.decomposition.ndim
        self.halo = check_halo("halo", halo, grid)
        self.periodic = _periodic(periodic, grid)
        self.pencil = check_axis("pencil", pencil, grid)
        self.order = storage_order(grid, self.pencil, order=order)

    def plan(self) -> Plan:
        source = here = self.decomposition.blocks(self.pencil, self.order)
        stages: list[AbstractStage] = []
        if any(self.halo[axis] == (0, 0) for axis in source.padded_axes):
            stages.append(Clear(source))  # `Extend` ignores padding along its own axis, but not along others.
        for axis in range(source.ndim):
            halo = tuple(self.halo[i] if i == axis else here.halo[i] for i in range(source.ndim))
            there = replace(here, halo=halo)
            if there != here:
                stages.append(Extend(here, there, axis, self.periodic[axis]))
            here = there
        return Plan("HaloExchange", source, tuple(stages))

    @property
    def crop(self) -> "HaloCrop":
        """The operator that drops the halo of an extended field."""
        return HaloCrop(self)

    @property
    def update(self) -> "HaloUpdate":
        """The operator that refreshes the halo of an extended field from the cells that the blocks own."""
        return HaloUpdate(self)


class HaloCrop(AbstractPlanned):
    """Drop the halo layers of an extended field: `halo.crop`."""

    exchange: HaloExchange

    @property
    def decomposition(self) -> OperatorDecomposition:
        return self.exchange.decomposition

    @property
    def title(self) -> str:
        return "HaloExchange.crop"

    def plan(self) -> Plan:
        extend = self.exchange.plan()
        stages: tuple[AbstractStage, ...] = (Crop(extend.target, extend.source),)
        if extend.source.padded_axes:
            stages = (*stages, Clear(extend.source))
        return Plan(self.title, extend.target, stages)


class HaloUpdate(AbstractPlanned):
    """Refresh the halo layers of an extended field: `halo.update`."""

    exchange: HaloExchange

    @property
    def decomposition(self) -> OperatorDecomposition:
        return self.exchange.decomposition

    @property
    def title(self) -> str:
        return "HaloExchange.update"

    def plan(self) -> Plan:
        return self.exchange.crop.plan().then(self.exchange.plan(), self.title)


def check_halo(name: str, halo: Any, ndim: int) -> Halo:
    """Return `halo` as pairs of widths, one for each axis. Raises an error if `halo` is not valid."""
    widths = given if isinstance(given := as_tuples(halo), tuple) else (given,) * ndim
    pairs = tuple(tuple(map(as_number, w if isinstance(w, tuple) else (w, w))) for w in widths)
    if len(pairs) != ndim or any(len(pair) != 2 for pair in pairs):
        along = ", ".join(axis_names(ndim))
        raise ValueError(
            f"`{name}` must be one int for all axes, or a tuple with one entry for each of {along}, where an entry is "
            f"an int or a pair (before, after); got {halo!r}."
        )
    if not all(isinstance(w, int) and not isinstance(w, bool) for pair in pairs for w in pair):
        raise TypeError(f"`{name}` must be made of integers; got {halo!r}.")
    if min(min(pair) for pair in pairs) < 0:
        raise ValueError(f"`{name}` must be non-negative; got {halo!r}.")
    return pairs


def _periodic(periodic: Any, ndim: int) -> tuple[bool, ...]:
    flags = tuple(periodic) if isinstance(periodic, tuple | list) else (periodic,) * ndim
    if len(flags) != ndim or not all(isinstance(flag, bool | np.bool_) for flag in flags):
        raise ValueError(
            f"`periodic` must be one bool, or one for each of {', '.join(axis_names(ndim))}; got {periodic!r}."
        )
    return tuple(map(bool, flags))
