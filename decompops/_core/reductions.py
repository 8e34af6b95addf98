"""Sums and extremes over the cells of a field. Values in the padding are ignored, also in derivatives.

The functions take a field `(*batch, ...)` in its storage order, the lengths of its grid axes in the same order,
without padding, and the `BlockReduction` of its blocks; `None` if XLA reduces them. Each function is one compiled
program, so that an eager call makes no copy of the field. The only communication is an all-reduce.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._basis.base import AbstractBasis
from .._common.broadcast import along
from .._common.ordered import extreme_or_nan
from .block_reduction import BlockReduction


@functools.partial(jax.jit, static_argnames=("lengths", "over"))
def total(field: Array, lengths: tuple[int, ...], over: BlockReduction | None = None) -> Array:
    dtype = result_dtype(jnp.sum, field.dtype)
    return _sum(cleared(field, lengths).astype(wide(field.dtype)), lengths, over).astype(dtype)


@functools.partial(jax.jit, static_argnames=("lengths", "over"))
def mean(field: Array, lengths: tuple[int, ...], over: BlockReduction | None = None) -> Array:
    dtype = result_dtype(jnp.mean, field.dtype)
    summed = _sum(cleared(field, lengths).astype(wide(dtype)), lengths, over)
    return (summed / float(math.prod(lengths))).astype(dtype)


@functools.partial(jax.jit, static_argnames=("lengths", "bases", "over"))
def weighted_mean(
    field: Array, lengths: tuple[int, ...], bases: tuple[AbstractBasis, ...], over: BlockReduction | None = None
) -> Array:
    """Return the mean over the volume, with the quadrature weights of the basis of each stored axis."""
    dtype = result_dtype(jnp.mean, field.dtype)
    cells, scale = cleared(field, lengths).astype(wide(dtype)), 1.0
    for axis, length, basis in zip(_grid(lengths), lengths, bases):
        weights = basis.weights(length)
        if np.all(weights == weights[0]):
            scale *= float(weights[0])
            continue
        weights = np.pad(weights, (0, field.shape[axis] - length)).astype(cells.dtype)
        cells = cells * along(weights, axis, cells.ndim)
    return (_sum(cells, lengths, over) * scale).astype(dtype)


@functools.partial(jax.jit, static_argnames=("lengths", "over"))
def norm(field: Array, lengths: tuple[int, ...], over: BlockReduction | None = None) -> Array:
    dtype = result_dtype(jnp.mean, field.dtype)
    cells = cleared(field, lengths).astype(wide(dtype))
    square = _sum(cells.real**2 + cells.imag**2 if jnp.iscomplexobj(cells) else cells**2, lengths, over)
    # The derivative of the square root must not be infinite if a field of the batch is zero.
    root = jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))
    return root.astype(jnp.finfo(dtype).dtype)


@functools.partial(jax.jit, static_argnames=("lengths", "over"))
def vdot(u: Array, v: Array, lengths: tuple[int, ...], over: BlockReduction | None = None) -> Array:
    dtype = result_dtype(jnp.sum, jnp.result_type(u, v))
    # The padding is set to zero in both factors, not in their product: in a derivative, zero times an infinity in the
    # padding would be NaN.
    u, v = (cleared(x, lengths).astype(wide(dtype)) for x in (u, v))
    return _sum(jnp.conj(u) * v, lengths, over).astype(dtype)


@functools.partial(jax.jit, static_argnames=("lengths", "over", "largest"))
def extreme(field: Array, lengths: tuple[int, ...], over: BlockReduction | None = None, *, largest: bool) -> Array:
    """Return the largest or the smallest value of a real field; NaN if one of its cells is NaN."""
    dtype = field.dtype
    if dtype.kind == "b":
        return extreme(field.astype(np.int8), lengths, over, largest=largest).astype(bool)
    if jnp.issubdtype(dtype, jnp.floating):
        field, filling = field.astype(wide(dtype)), -np.inf if largest else np.inf
    else:
        filling = int(jnp.iinfo(dtype).min if largest else jnp.iinfo(dtype).max)
    cells = cleared(field, lengths, filling)
    if over is not None:
        cells = _padded(cells, lengths, over, filling)
    return _extreme(over, len(lengths), largest, cells).astype(dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _extreme(over: BlockReduction | None, ndim: int, largest: bool, cells: Array) -> Array:
    if over is not None:
        return over(cells, "max" if largest else "min")
    return extreme_or_nan(cells, tuple(range(-ndim, 0)), largest=largest)


@_extreme.defjvp
def _derivative_of_extreme(
    over: BlockReduction | None, ndim: int, largest: bool, primals: tuple, tangents: tuple
) -> tuple:
    """As in `jnp.max`: if several cells have the largest value, the derivative is the mean of theirs."""
    (cells,), (tangent,), grid = primals, tangents, tuple(range(-ndim, 0))
    found = _extreme(over, ndim, largest, cells)
    if tangent.dtype != cells.dtype:  # Integers have no derivative.
        return found, np.zeros(found.shape, tangent.dtype)
    those = cells == jnp.expand_dims(found, grid)
    add = (lambda x: jnp.sum(x, grid)) if over is None else over
    return found, add(jnp.where(those, tangent, 0)) / add(those.astype(tangent.dtype))


def _sum(cells: Array, lengths: tuple[int, ...], over: BlockReduction | None) -> Array:
    """Return the sum of an array over the grid. The padding, if there is any, holds zeros."""
    if over is None:
        return jnp.sum(cells, _grid(lengths))
    cells = cells.astype(result_dtype(jnp.sum, cells.dtype))
    return over(_padded(cells, lengths, over, 0))


def _padded(cells: Array, lengths: tuple[int, ...], over: BlockReduction, filling: int | float) -> Array:
    """Return an array with all of its padding, which holds `filling`: the field may be cropped."""
    stored = over.blocks.shape
    missing = [(0, n - m) for n, m in zip(stored, cells.shape[-len(stored) :])]
    if any(map(any, missing)):
        # In one program, XLA of JAX 0.10 takes two paddings of an array with different numbers for one padding.
        cells = jnp.pad(cells, [(0, 0)] * (cells.ndim - len(stored)) + missing)
        cells = cells if filling == 0 else cleared(cells, lengths, filling)
    return cells


def _grid(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the array axes of the grid."""
    return tuple(range(-len(lengths), 0))


def cleared(field: Array, lengths: tuple[int, ...], filling: int | float = 0.0) -> Array:
    """Return `field` with zeros in its padding, or with another number."""
    for axis, length in zip(_grid(lengths), lengths):
        if field.shape[axis] != length:
            inside = along(jnp.arange(field.shape[axis], dtype=np.int32), axis, field.ndim) < length
            field = jnp.where(inside, field, jnp.full((), filling, field.dtype))
    return field


def result_dtype(function: Callable, dtype: np.dtype) -> np.dtype:
    """Return the dtype of the result of `function`, a reduction of `jnp`, for an array of `dtype`."""
    return jax.eval_shape(function, jax.ShapeDtypeStruct((1,), dtype)).dtype


def wide(dtype: np.dtype) -> np.dtype:
    """Return the dtype to accumulate in: single precision for half precision, as in `jnp`, else `dtype` itself."""
    is_half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return np.dtype(np.float32) if is_half else dtype
