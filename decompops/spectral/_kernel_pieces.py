"""Computes the spectrum of a kernel piece by piece, so that its values are never stored whole."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._plan.pieces import shortened, untouched_axes
from .._plan.plan import Plan
from ._open_grid import OpenGrid


# A block has at most this number of pieces, and a piece at least this number of cells.
_PIECES = 64
_CELLS = 2**12


def free_axis(plan: Plan, mirrored: int | None) -> int | None:
    """Return the longest axis that a plan does not change, other than `mirrored`; `None` if there is no such axis."""
    free = frozenset(range(plan.source.ndim)).intersection(*map(untouched_axes, plan.stages)) - {mirrored}
    return max(free, key=plan.source.core, default=None)


def in_pieces(grid: OpenGrid, plan: Plan, axis: int | None, values: Callable) -> Array:
    """Apply a plan to the pieces of a block along `axis`, one after the other, inside of a `shard_map`.

    - `axis`: an axis that the plan does not change; `None` for a single piece.
    - `values`: returns a piece of the block before the plan. It is called with a function that cuts from an array,
        which is stored like the block, the part of the piece.
    """
    if axis is None:
        return grid.planned(plan).local(jnp.broadcast_to(values(lambda array: array), plan.source.block_shape))
    cells, here, there = plan.source.core(axis), plan.source.position(axis), plan.target.position(axis)
    size = max(math.prod(plan.source.block_shape), math.prod(plan.target.block_shape))
    length = -(-cells // max(1, min(_PIECES, size // _CELLS)))
    stages = tuple(shortened(stage, axis, length) for stage in plan.stages)
    planned = grid.planned(Plan(plan.name, stages[0].before, stages))

    @eqx.filter_checkpoint  # Otherwise derivatives would store all pieces.
    def piece(start: Array) -> Array:
        def cut(array: Array) -> Array:
            return array if array.shape[here] == 1 else lax.dynamic_slice_in_dim(array, start, length, here)

        return planned.local(jnp.broadcast_to(values(cut), planned.given.source.block_shape))

    def step(i: Array, result: Array) -> Array:
        start = jnp.minimum(i * length, cells - length)  # The last piece may repeat cells of the one before it.
        return lax.dynamic_update_slice_in_dim(result, piece(start), start, there)

    dtype = jax.eval_shape(piece, np.int32(0)).dtype
    result = jnp.zeros(plan.target.block_shape, dtype)
    return lax.fori_loop(np.int32(0), np.int32(-(-cells // length)), step, result)
