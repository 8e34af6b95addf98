"""Checks a field that will be drawn. The devices reduce it to the drawn plane, and only this plane is gathered."""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._common.blocks import Blocks
from .._common.broadcast import along
from .._common.check import check_untraced
from .._common.host import host_array
from .._common.ordered import from_ordered, ordered
from .._core.layout import Field, Layout
from .._core.structure import Structure
from .._operator.grid import structure_of
from .._operator.transform import AbstractTransform


Reduction = Literal["max", "min", "sum"]
# Coordinates that differ by at most this part of the length of the box count as equal. Coordinates in 32 bits differ by
# a tenth of this from coordinates in 64 bits.
ROUNDING = 1e-6


def drawable_structure(grid: Any, field: Any, *, real: bool = True) -> Structure:
    """Return the structure of a field with at most one leading axis. Raises an error for a field that cannot be drawn.

    With `real=False`, the field may be complex.
    """
    check_untraced("field", field, "plot")
    if real and jnp.iscomplexobj(field):
        raise TypeError(f"`field` must be real; got {field.dtype}. Draw `field.real`, `field.imag` or `abs(field)`.")
    if isinstance(grid, AbstractTransform):
        _ = grid.box_lengths  # Walls need a box.
    known = structure_of(grid)
    known.layout.check(field)
    if np.ndim(field) > known.ndim + 1 or 0 in np.shape(field):
        raise ValueError(
            f"`field` must be a scalar field, or have one leading axis for its components; got shape {np.shape(field)} "
            f"on a grid of {known.ndim} axes."
        )
    return known


def reduced_plane(grid: Structure, field: Field, axis: int, weights: np.ndarray, reduce: Reduction) -> np.ndarray:
    """Return the field reduced along an axis, as a NumPy array on every process.

    `weights` has one weight for each point along the axis. Points of weight zero are ignored, even if they are NaN.
    """
    blocks = grid.layout.blocks
    along = blocks.position(axis)
    padded = np.pad(weights, (0, np.shape(field)[along] - len(weights)))
    if isinstance(field, np.ndarray):  # JAX would cut its numbers to 32 bits if 64-bit mode is off.
        planes = np.moveaxis(np.compress(padded != 0, host_array(field, "field"), along), along, -1).astype(float)
        reduced = planes @ weights[weights != 0] if reduce == "sum" else getattr(planes, reduce)(-1)
    else:
        reduced = reduce_axis(field, padded, along, reduce)
    return Layout(grid.layout.mesh, _without(blocks, axis)).gather(reduced)


@functools.partial(jax.jit, static_argnames=("axis", "reduce"))
def reduce_axis(field: Array, weights: Array, axis: int, reduce: Reduction) -> Array:
    """Reduce a field along array axis `axis`, counted from the end. Only the result is communicated, by an all-reduce.

    A sum is weighted. If all weights but one are zero, the largest value is that of a single plane. Indexing would
    return the same plane, but it would gather a sharded axis.
    """
    if field.dtype not in (np.float32, np.float64) and (reduce == "sum" or field.dtype.kind not in "iu"):
        field = field.astype(np.float32)
    weights = along(weights.astype(np.float32 if reduce != "sum" else field.dtype), axis, field.ndim)
    if reduce == "sum":
        return jnp.sum(jnp.where(weights == 0, jnp.zeros((), field.dtype), field * weights), axis)
    keys, inside = ordered(field, largest=reduce == "max"), weights != 0
    bounds = jnp.iinfo(keys.dtype)
    if reduce == "min":
        return from_ordered(jnp.min(keys, axis, where=inside, initial=bounds.max), field.dtype)
    return from_ordered(jnp.max(keys, axis, where=inside, initial=bounds.min), field.dtype)


def _without(blocks: Blocks, axis: int) -> Blocks:
    """Return the blocks of the plane that remains when a field is reduced along `axis`."""
    kept = [other for other in range(blocks.ndim) if other != axis]
    return Blocks(
        tuple(blocks.lengths[other] for other in kept),
        tuple(blocks.parts[other] for other in kept),
        tuple(blocks.names[other] for other in kept),
        tuple(kept.index(other) for other in blocks.order if other != axis),
    )
