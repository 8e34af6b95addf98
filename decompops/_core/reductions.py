"""Sums over the cells of a field. Values in the padding are ignored, also in derivatives.

The functions take a field `(*batch, ...)` in its storage order, and the lengths of its grid axes in the same order,
without padding. Each function is one compiled program, so that an eager call makes no copy of the field. The only
communication is an all-reduce.
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


@functools.partial(jax.jit, static_argnames="lengths")
def total(field: Array, lengths: tuple[int, ...]) -> Array:
    return jnp.sum(cleared(field, lengths), _grid(lengths))


@functools.partial(jax.jit, static_argnames="lengths")
def mean(field: Array, lengths: tuple[int, ...]) -> Array:
    dtype = _result_dtype(jnp.mean, field.dtype)
    summed = jnp.sum(cleared(field, lengths).astype(wide(dtype)), _grid(lengths))
    return (summed / float(math.prod(lengths))).astype(dtype)


@functools.partial(jax.jit, static_argnames=("lengths", "bases"))
def weighted_mean(field: Array, lengths: tuple[int, ...], bases: tuple[AbstractBasis, ...]) -> Array:
    """Return the mean over the volume, with the quadrature weights of the basis of each stored axis."""
    dtype = _result_dtype(jnp.mean, field.dtype)
    cells, scale = cleared(field, lengths).astype(wide(dtype)), 1.0
    for axis, length, basis in zip(_grid(lengths), lengths, bases):
        weights = basis.weights(length)
        if np.all(weights == weights[0]):
            scale *= float(weights[0])
            continue
        weights = np.pad(weights, (0, field.shape[axis] - length)).astype(cells.dtype)
        cells = cells * along(weights, axis, cells.ndim)
    return (jnp.sum(cells, _grid(lengths)) * scale).astype(dtype)


@functools.partial(jax.jit, static_argnames="lengths")
def norm(field: Array, lengths: tuple[int, ...]) -> Array:
    dtype = _result_dtype(jnp.mean, field.dtype)
    cells = cleared(field, lengths).astype(wide(dtype))
    square = jnp.sum(cells.real**2 + cells.imag**2 if jnp.iscomplexobj(cells) else cells**2, _grid(lengths))
    # The derivative of the square root must not be infinite if a field of the batch is zero.
    root = jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))
    return root.astype(jnp.finfo(dtype).dtype)


@functools.partial(jax.jit, static_argnames="lengths")
def vdot(u: Array, v: Array, lengths: tuple[int, ...]) -> Array:
    dtype = _result_dtype(jnp.sum, jnp.result_type(u, v))
    # The padding is set to zero in both factors, not in their product: in a derivative, zero times an infinity in the
    # padding would be NaN.
    u, v = (cleared(x, lengths).astype(wide(dtype)) for x in (u, v))
    return jnp.sum(jnp.conj(u) * v, _grid(lengths)).astype(dtype)


def _grid(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the array axes of the grid."""
    return tuple(range(-len(lengths), 0))


def cleared(field: Array, lengths: tuple[int, ...], filling: float = 0.0) -> Array:
    """Return `field` with zeros in its padding, or with another number."""
    for axis, length in zip(_grid(lengths), lengths):
        if field.shape[axis] != length:
            inside = along(jnp.arange(field.shape[axis], dtype=np.int32), axis, field.ndim) < length
            field = jnp.where(inside, field, jnp.full((), filling, field.dtype))
    return field


def _result_dtype(function: Callable, dtype: np.dtype) -> np.dtype:
    """Return the dtype of the result of `function`, a reduction of `jnp`, for an array of `dtype`."""
    return jax.eval_shape(function, jax.ShapeDtypeStruct((1,), dtype)).dtype


def wide(dtype: np.dtype) -> np.dtype:
    """Return the dtype to accumulate in: single precision for half precision, as in `jnp`, else `dtype` itself."""
    is_half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return np.dtype(np.float32) if is_half else dtype
