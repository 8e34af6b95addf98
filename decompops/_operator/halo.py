"""`HaloExchange`: blocks extended by layers of their neighbours' cells."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .._backend.base import AbstractBackend
from .._blocks import Pencil, axis_names
from .._check import check_axis
from .._decomposition import Decomposition
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Clear, Crop, Extend
from .._types import GridAxes, Lengths, MeshAxes, Periodic, Width
from .planned import AbstractPlanned


Halo = tuple[tuple[int, int], ...]


class HaloExchange(AbstractPlanned):
    """Extend every block of a field by its neighbours' layers, edges and corners included.

    The result is an array of the extended blocks side by side: of global length `devices * (before + cells + after)`
    along each axis, sharded like the field. `halo.crop` drops the layers, `halo.update` refreshes them, and `halo.T`
    adds them back to the cells that they came from: the true adjoint, which is also the gradient.

    A halo may be wider than a block. Beyond a non-periodic edge of the grid halo cells are zero.

    !!! example

        ```python
        halo = dops.HaloExchange(mesh, halo=(2, 2, 0), periodic=(True, True, False))
        h = halo(u)
        ```
    """

    decomposition: Decomposition
    halo: Halo = eqx.field(static=True)
    periodic: tuple[bool, ...] = eqx.field(static=True)
    pencil: int = eqx.field(static=True)
    order: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        mesh: Mesh | AbstractMesh | Decomposition | None = None,
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
        - `halo`: the width in cells: an int, one per axis of the grid, or a pair `(before, after)` per axis.
        - `periodic`: whether the grid is periodic: a bool, or one per axis.
        - `pencil`: the pencil that fields lie in, by the name or number of the axis that is whole. By default the last:
            z-pencils on a grid of three.
        - `order`: the axes of the grid in the order in which fields are stored, such as `("z", "x", "y")`.
        """
        self.decomposition = Decomposition(mesh, shape=shape, ndim=ndim, axes=axes, pad=pad, backend=backend)
        grid = self.decomposition.ndim
        self.halo = check_halo("halo", halo, grid)
        self.periodic = _periodic(periodic, grid)
        self.pencil = check_axis("pencil", pencil, grid)
        self.order = self.decomposition.storage_order(self.pencil, order=order)

    def plan(self, shape: tuple[int, ...]) -> Plan:
        source = here = self.decomposition.blocks(self.pencil, shape, self.order)
        stages: list[AbstractStage] = []
        if any(self.halo[axis] == (0, 0) for axis in source.padded_axes):
            stages.append(Clear(source))  # `Extend` reads no padding
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
        """The operator that refreshes the halo of an extended field from the cells of their owners."""
        return HaloUpdate(self)


class HaloCrop(AbstractPlanned):
    """Drop the halo layers of an extended field: `halo.crop`."""

    exchange: HaloExchange

    @property
    def decomposition(self) -> Decomposition:
        return self.exchange.decomposition

    @property
    def title(self) -> str:
        return "HaloExchange.crop"

    def plan(self, shape: tuple[int, ...]) -> Plan:
        extend = self.exchange.plan(shape)
        stages: tuple[AbstractStage, ...] = (Crop(extend.target, extend.source),)
        if extend.source.padded_axes:
            stages = (*stages, Clear(extend.source))
        return Plan(self.title, extend.target, stages)


class HaloUpdate(AbstractPlanned):
    """Refresh the halo layers of an extended field: `halo.update`."""

    exchange: HaloExchange

    @property
    def decomposition(self) -> Decomposition:
        return self.exchange.decomposition

    @property
    def title(self) -> str:
        return "HaloExchange.update"

    def plan(self, shape: tuple[int, ...]) -> Plan:
        return self.exchange.crop.plan(shape).then(self.exchange.plan(shape), self.title)


def check_halo(name: str, halo: Any, ndim: int) -> Halo:
    """Pairs of widths, one for each axis of the grid. Raises `ValueError` or `TypeError` for anything else."""
    halo = halo.tolist() if isinstance(halo, np.ndarray) else halo
    widths = halo if isinstance(halo, tuple | list) else (halo,) * ndim
    pairs = tuple(tuple(w) if isinstance(w, tuple | list) else (w, w) for w in widths)
    if len(pairs) != ndim or any(len(pair) != 2 for pair in pairs):
        along = ", ".join(axis_names(ndim))
        raise ValueError(
            f"`{name}` must be an int, or an int or a (before, after) pair along each of {along}; got {halo!r}."
        )
    if not all(isinstance(w, int | np.integer) and not isinstance(w, bool) for pair in pairs for w in pair):
        raise TypeError(f"`{name}` must be made of integers; got {halo!r}.")
    if min(min(pair) for pair in pairs) < 0:
        raise ValueError(f"`{name}` must be non-negative; got {halo!r}.")
    return tuple((int(before), int(after)) for before, after in pairs)


def _periodic(periodic: Any, ndim: int) -> tuple[bool, ...]:
    flags = tuple(periodic) if isinstance(periodic, tuple | list) else (periodic,) * ndim
    if len(flags) != ndim or not all(isinstance(flag, bool | np.bool_) for flag in flags):
        raise ValueError(
            f"`periodic` must be a bool, or one along each of {', '.join(axis_names(ndim))}; got {periodic!r}."
        )
    return tuple(map(bool, flags))
