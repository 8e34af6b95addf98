"""Layers whose result lies on another grid: `on_blocks` applies a function to every block and its halo."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._common.blocks import Blocks, flat_names
from .._common.check import check_one_or_each
from .._common.sharding import map_blocks
from .._common.typed import batch_in_type, equally_varying
from .._core.decomposition import Decomposition
from .._core.structure import Structure
from .._operator.halo import HaloExchange
from .._operator.placed import Placed
from .._operator.unbound import OperatorDecomposition


def check_factor(name: str, factor: Any, dec: OperatorDecomposition, *, divides: bool) -> tuple[int, ...]:
    """Return the factor between the lengths of two grids along each axis.

    **Raises:** `ValueError` unless it is a positive integer for each axis, which divides the grid if `divides`.
    """
    factors = check_one_or_each(name, factor, dec.ndim)
    if max(factors) > 1 and not isinstance(dec, Decomposition):
        raise ValueError(
            f"`mesh` must be a `Decomposition` with a `shape` for a layer that changes the grid; got a mesh and "
            f"`{name}={factor}`. Pass `Decomposition(mesh, shape=(64, 64, 64))`, for example."
        )
    if divides and max(factors) > 1 and any(n % f for n, f in zip(dec.shape, factors)):
        raise ValueError(f"`{name}` must divide the lengths of the grid, {dec.shape}; got {factor}.")
    return factors


def coarser(dec: Decomposition, factors: Sequence[int]) -> Decomposition:
    """Return the grid of `dec` with cells that are wider by `factors`. Its fields are padded where necessary."""
    return _on_shape(dec, tuple(n // f for n, f in zip(dec.shape, factors)))


def finer(dec: Decomposition, factors: Sequence[int]) -> Decomposition:
    """Return the grid of `dec` with cells that are narrower by `factors`. Its fields are padded where necessary."""
    return _on_shape(dec, tuple(n * f for n, f in zip(dec.shape, factors)))


def resized(field: Structure, dec: Decomposition | None) -> Structure:
    """Return the structure of a field on the grid of `dec`; `field` itself if `dec` is `None`."""
    return field if dec is None else replace(field, layout=Placed(dec).in_structure.layout)


def _on_shape(dec: Decomposition, shape: tuple[int, ...]) -> Decomposition:
    return dec if shape == dec.shape else Decomposition(dec, shape=shape, pad=True)


def on_blocks(
    function: Callable[[Any, Array], Array],
    parameters: Any,
    x: Array,
    grids: tuple[Decomposition, Decomposition],
    reach: Sequence[tuple[int, int]],
    *,
    periodic: bool,
    rate: Sequence[int] | None = None,
) -> Array:
    """Apply `function(parameters, window)` to a window of cells for each block of the result.

    `grids` are the grid of `x` and the grid of the result. Each device holds one block of both.

    - Without `rate`, the grid of `x` is finer by whole factors. The window has the fine cells of a block of the result,
        and `reach` cells more before and behind them. `function` returns the block.
    - With `rate`, the grid of the result is finer by these factors. The window has the coarse cells of a block of `x`,
        and `reach` cells more on both sides. `function` returns `rate` cells for each cell of the window.

    Where the mesh does not divide the grids, blocks of the two grids begin at different cells. The halo is then wider
    by the largest distance, and each device takes the part that it needs.
    """
    source, target = grids
    own, other = source.blocks(), target.blocks()
    exchange, cuts = _exchange(own, other, source, reach, periodic, rate)

    # A derivative by parameters is a sum over devices, from the place where parameters begin to vary from device to
    # device. On CPUs, XLA cannot compile this sum in bfloat16 if a mesh axis is left over, and half precision would
    # lose digits.
    leaves, tree = jax.tree.flatten(parameters)
    dtypes = [leaf.dtype for leaf in leaves]
    parameters = [leaf.astype(np.float32) if leaf.dtype.itemsize < 4 else leaf for leaf in leaves]

    def on_block(parameters: list[Array], window: Array) -> Array:
        window, *parameters = equally_varying(window, *parameters)
        parameters = tree.unflatten([leaf.astype(dtype) for leaf, dtype in zip(parameters, dtypes)])
        if rate is None:
            window = _cut_out(window, own, cuts)
        result = function(parameters, window)
        if rate is not None:
            result = _cut_out(result, own, cuts)
        return result

    # In a derivative, XLA can merge these recomputations with the first computation.
    forgetting = functools.partial(jax.checkpoint, prevent_cse=False)

    # Both operators stay outside of the `shard_map`, because they know batches: for a kernel inside, XLA would gather
    # the fields that a further mesh axis shards. A derivative stores `x`, not the windows.
    @forgetting
    def on_fields(parameters: list[Array], x: Array) -> Array:
        windows = exchange(x)
        # A `shard_map` instead of a `jax.vmap` over blocks: `jax.vmap` merges the batch and the blocks of a convolution
        # into one array axis, in this order. XLA then gathers this axis, and on Explicit meshes JAX raises an error.
        spec = PartitionSpec(*batch_in_type(windows, source.ndim), *source.spec())
        names = set(flat_names(spec))
        apply = map_blocks(forgetting(on_block), source.mesh, names, (PartitionSpec(), spec), spec)
        return Placed(target)(apply(parameters, windows))  # with zeros in the padding

    return on_fields(parameters, Placed(source)(x))


def _exchange(
    own: Blocks,
    other: Blocks,
    source: Decomposition,
    reach: Sequence[tuple[int, int]],
    periodic: bool,
    rate: Sequence[int] | None,
) -> tuple[HaloExchange, list[tuple[np.ndarray, int]]]:
    """Return the halo exchange, and for each axis the first cell to cut out for each block, and the number of cells.

    A coarse block is at least as long as the fine block of the same number, so it begins behind it by some cells for
    each block before it.
    """
    halo, cuts = [], []
    for axis, (before, after) in enumerate(reach):
        cells, result, part = own.core(axis), other.core(axis), np.arange(own.parts[axis])
        if rate is None:
            factor = own.lengths[axis] // other.lengths[axis]
            starts, width = part * (factor * result - cells), before + factor * result + after
            halo.append((before, max(0, int(starts[-1]) + width - before - cells)))
        else:
            late = part * (rate[axis] * cells - result)  # The number of fine cells by which the result begins earlier.
            earlier = -(-int(late[-1]) // rate[axis])
            starts, width = rate[axis] * (before + earlier) - late, result
            halo.append((before + earlier, after))
        cuts.append((starts, width))
    return HaloExchange(source, tuple(halo), periodic=periodic), cuts


def _cut_out(x: Array, blocks: Blocks, cuts: list[tuple[np.ndarray, int]]) -> Array:
    for axis, (starts, width) in enumerate(cuts):
        array_axis, name = x.ndim + axis - blocks.ndim, blocks.names[axis]
        if len(set(starts.tolist())) == 1:
            x = jax.lax.slice_in_dim(x, int(starts[0]), int(starts[0]) + width, axis=array_axis)
        else:
            first = jnp.asarray(starts)[jax.lax.axis_index(name)]
            x = jax.lax.dynamic_slice_in_dim(x, first, width, axis=array_axis)
    return x
