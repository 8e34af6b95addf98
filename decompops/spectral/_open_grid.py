"""`OpenGrid`: a grid that is doubled along its open axes."""

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array

from .._basis.base import AbstractBasis
from .._basis.fourier import Fourier
from .._common.box import Number
from .._core.decomposition import Decomposition
from .._operator.planned import AbstractPlanned
from .._operator.transform import Wavenumbers, coordinates_along
from .._plan.doubled import DoubledPlans, doubled_plans
from .._plan.plan import Plan
from .._plan.route import Leg, divided_blocks, division_of
from .._plan.transform import plan_along


class Planned(AbstractPlanned):
    """An operator with a given plan."""

    decomposition: Decomposition
    given: Plan = eqx.field(static=True)

    def plan(self) -> Plan:
        return self.given


@dataclass(frozen=True)
class OpenGrid:
    """A grid that is doubled along its open axes.

    - `decomposition`: the decomposition of fields. It has no box.
    - `open`: the open axes.
    - `real`: whether fields are real.
    """

    decomposition: Decomposition
    open: tuple[int, ...]
    real: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of points of the doubled grid along each axis."""
        return tuple(n * self.doubling(axis) for axis, n in enumerate(self.decomposition.shape))

    def doubling(self, axis: int) -> int:
        """Return by how much an axis is longer: 2 for open axes, else 1."""
        return 2 if axis in self.open else 1

    @property
    def order(self) -> tuple[int, ...]:
        """The axes in the order of their transforms: first the periodic axes, then the open axes."""
        return tuple(sorted(range(self.decomposition.ndim), key=lambda axis: (axis in self.open, -axis)))

    @property
    def bases(self) -> tuple[AbstractBasis, ...]:
        """The basis of each axis. The axis that is transformed first has a half spectrum if fields are real."""
        return tuple(Fourier(half=self.real and axis == self.order[0]) for axis in range(self.decomposition.ndim))

    @functools.cached_property
    def plans(self) -> DoubledPlans:
        """The plans of the transform."""
        return doubled_plans("Convolution", self.decomposition.blocks(), self.shape, self.bases, self.order)

    def planned(self, plan: Plan) -> Planned:
        """Return the operator with this plan."""
        return Planned(self.decomposition, plan)

    def wavenumbers(self, lengths: Sequence[Number], dtype: Any, *, nyquist: bool) -> Wavenumbers:
        """Return the wavenumbers of the spectrum on the doubled grid, one array for each axis.

        `lengths` are those of the box. Inside a `shard_map`, the arrays are those of one block.
        """
        blocks, mesh = self.plans.inner.target, self.decomposition.mesh

        def along(axis: int) -> Array:
            values = self.bases[axis].wavenumbers(self.shape[axis], nyquist=nyquist) / self.doubling(axis)
            return coordinates_along(operator.truediv, blocks, axis, values, lengths[axis], mesh, dtype)

        return tuple(map(along, range(blocks.ndim)))

    def offsets(self, lengths: Sequence[Number], dtype: Any) -> tuple[Array, ...]:
        """Return the distances of points of the doubled grid, in the order of `jnp.fft.fftfreq`."""
        blocks, shape = self.values_plan.source, self.decomposition.shape

        def along(axis: int) -> Array:
            values = np.fft.fftfreq(self.shape[axis], 1 / self.shape[axis]) / shape[axis]
            return coordinates_along(operator.mul, blocks, axis, values, lengths[axis], self.decomposition.mesh, dtype)

        return tuple(map(along, range(blocks.ndim)))

    @property
    def values_plan(self) -> Plan:
        """The plan of the transform of a kernel's values on the doubled grid."""
        plans, points = self.plans, self.shape
        source = divided_blocks(points, division_of(plans.outer.source))
        legs = (Leg(division_of(source), ()), *(Leg(d, (axis,)) for d, axis in zip(plans.divisions, plans.order)))
        return plan_along("Convolution", legs, source, plans.inner.target, self.bases, points, points=points)
