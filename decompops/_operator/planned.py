"""Operators that are plans, carried by the one primitive."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Shaped

from .._backend.base import Call
from .._blocks import AXES, Blocks
from .._decomposition import Decomposition
from .._plan.plan import Plan
from .._primitive import apply, apply_to_block
from .._sharding import manual_axes, plain
from .base import AbstractOperator


class AbstractPlanned(AbstractOperator):
    """An operator that is a plan, carried by the one primitive. A subclass says which plan belongs to a grid shape."""

    @abc.abstractmethod
    def plan(self, shape: tuple[int, ...]) -> Plan:
        """The plan for a grid of true lengths `shape`."""

    def __call__(self, x: Shaped[Array | np.ndarray, "..."], *, key: Any = None) -> Shaped[Array, "..."]:
        x = plain(jnp.asarray(x))
        _refuse_manual_axes(self.decomposition)
        plan = self.plan_for(x.shape)
        return apply(self._call(plan), pad(x.astype(plan.input_dtype(x.dtype)), plan.source))

    def local(self, block: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        block = jnp.asarray(block)
        _require_manual_axes(self.decomposition)
        plan = self.plan_for(block.shape, blocks=True)
        return apply_to_block(self._call(plan), block.astype(plan.input_dtype(block.dtype)))

    @property
    def T(self) -> "AbstractPlanned":
        return derive(self, transposed=True)

    @property
    def H(self) -> "AbstractPlanned":
        return derive(self, transposed=True, conjugated=True)

    @property
    def inverse(self) -> "AbstractPlanned":
        """The inverse, itself an operator. Raises `AttributeError` where there is none."""
        if not self._example().is_invertible:
            raise AttributeError(f"`{type(self).__name__}` has no inverse.")
        return derive(self, inverted=True)

    @property
    def in_spec(self) -> PartitionSpec:
        return self._example().source.spec

    @property
    def out_spec(self) -> PartitionSpec:
        return self._example().target.spec

    def _call(self, plan: Plan) -> Call:
        return Call(plan, self.decomposition.mesh, self.decomposition.backend)

    def _example(self) -> Plan:
        """A plan for the layouts' sake; without a shape, for one that every mesh axis divides."""
        rows, columns = self.decomposition.sizes
        n = rows * columns
        return self.plan(self.decomposition.shape or (n, n, n))

    def plan_for(self, shape: tuple[int, ...], *, blocks: bool = False) -> Plan:
        """The plan for an input of `shape`: a global field, or one block of it."""
        name = "block" if blocks else "x"
        if len(shape) < 3:
            raise ValueError(f"`{name}` must have shape (*batch, nx, ny, nz); got {shape}.")
        if 0 in shape[-3:]:
            raise ValueError(f"`{name}` must have at least one cell along every axis; got {shape}.")
        plan, grid = self._example(), shape[-3:]
        if self.decomposition.shape is None:
            source = plan.source
            if blocks:
                grid = tuple(n * source.parts[axis] for n, axis in zip(grid, source.order))
            lengths = source.lengths_of(grid)
            if min(lengths) < 1:
                parts = tuple(source.parts[axis] for axis in source.order)
                raise ValueError(
                    f"`{name}` must be extended by the halo {source.halo} of each of its {parts} blocks; got {shape}."
                )
            plan = self.plan(lengths)
            if plan.source.lengths != lengths:
                raise ValueError(
                    "`shape` must be given to the operator, because the true length along z does not follow from a "
                    f"half spectrum; got `{name}` of shape {shape}."
                )
            _refuse_padding(plan, name, shape)
        source = plan.source
        accepted = {source.block_shape} if blocks else {source.shape}
        if not blocks and not source.has_halo:
            accepted.add(source.true_shape)  # still to be padded
        if shape[-3:] not in accepted:
            expected = " or ".join(str(("*batch", *s)).replace("'", "") for s in sorted(accepted))
            raise ValueError(f"`{name}` must have shape {expected}; got {shape}.")
        return plan


class DerivedOperator(AbstractPlanned):
    """The transpose, conjugate or inverse of another operator, or a combination: what `.T`, `.H`, `.inverse` return."""

    operator: AbstractPlanned
    inverted: bool = eqx.field(static=True, default=False)
    transposed: bool = eqx.field(static=True, default=False)
    conjugated: bool = eqx.field(static=True, default=False)

    @property
    def decomposition(self) -> Decomposition:
        return self.operator.decomposition

    def plan(self, shape: tuple[int, ...]) -> Plan:
        plan = self.operator.plan(shape)
        plan = plan.inverse() if self.inverted else plan
        plan = plan.transpose() if self.transposed else plan
        return plan.conjugate() if self.conjugated else plan


def derive(
    operator: AbstractPlanned,
    *,
    inverted: bool = False,
    transposed: bool = False,
    conjugated: bool = False,
) -> AbstractPlanned:
    """`operator`, further inverted, transposed or conjugated (the three commute); doing so twice undoes it."""
    if isinstance(operator, DerivedOperator):
        inverted ^= operator.inverted
        transposed ^= operator.transposed
        conjugated ^= operator.conjugated
        operator = operator.operator
    if not (inverted or transposed or conjugated):
        return operator
    return DerivedOperator(operator, inverted, transposed, conjugated)


def _refuse_padding(plan: Plan, name: str, shape: tuple[int, ...]) -> None:
    """Without a known shape nothing may be padded: the result's shape would not tell the true lengths any more."""
    for layout in (plan.source, plan.target):
        for axis in layout.padded_axes:
            raise ValueError(
                "`shape` must be given to the operator where the mesh does not divide the grid: "
                f"{layout.parts[axis]} devices along {AXES[axis]}, {layout.lengths[axis]} cells there in one of "
                f"its layouts; got `{name}` of shape {shape}."
            )


def _refuse_manual_axes(decomposition: Decomposition) -> None:
    for name in decomposition.axes:
        if name in manual_axes():
            raise ValueError(
                f"`x` must be a global field, but this call is inside a `shard_map` over mesh axis {name!r}; "
                "use `.local(block)` there."
            )


def _require_manual_axes(decomposition: Decomposition) -> None:
    for name, size in zip(decomposition.axes, decomposition.sizes):
        if size > 1 and name not in manual_axes():
            raise ValueError(
                f"`.local(block)` must be called inside a `shard_map` over mesh axis {name!r}; got a call outside of "
                "one. Call the operator itself on a global field."
            )


def pad(x: Array, layout: Blocks) -> Array:
    """Zero-pad a field of true shape to the shape of `layout`; one that has it already is left alone."""
    widths = [new - old for new, old in zip(layout.shape, x.shape[-3:])]
    if not any(widths):
        return x
    return jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(0, width) for width in widths])
