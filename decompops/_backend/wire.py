"""Exchanges in a narrower dtype than the field's: blocks are cast before an exchange, and cast back after it.

The two 16-bit parts of a complex number are sent as one 32-bit integer, so that backends need no new dtypes.
"""

from collections.abc import Callable
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._common.blocks import MeshAxis
from .._common.check import check_choice
from .._plan.lower import Wire


def check_wire(backend: Any) -> None:
    """If the option `wire` of `backend` is a dtype, replace it by the name of the dtype.

    Raises `ValueError` unless it is `None` or a narrow dtype.
    """
    wire = backend.wire
    try:
        name = None if wire is None else jnp.dtype(wire).name
    except (TypeError, ValueError):  # It is no dtype.
        name = wire
    object.__setattr__(backend, "wire", check_choice("wire", name, (None, *get_args(Wire))))


def narrower(wire: Wire | None, dtype: np.dtype) -> Wire | None:
    """Return `wire` if numbers of `dtype` lose bits when they are sent as `wire`, otherwise `None`."""
    if wire is None or not jnp.issubdtype(dtype, jnp.inexact):
        return None
    return wire if jnp.dtype(wire).itemsize < jnp.finfo(dtype).dtype.itemsize else None


def send_narrow(exchange: Callable[[Array], Array], block: Array, wire: Wire, ndim: int, name: MeshAxis) -> Array:
    """Apply `exchange` to `block` in the narrower dtype `wire`, and return the result in the dtype of `block`.

    `exchange` communicates along the mesh axis `name`. The last `ndim` axes of the block are grid axes.
    """
    exponent = _exponent(block, ndim, name) if wire == "float16" else None
    if exponent is not None:
        block = _times_power(block, -exponent)
    result = _wide(exchange(_narrow(block, wire)), block.dtype, wire)
    return result if exponent is None else _times_power(result, exponent)


def _narrow(block: Array, wire: Wire) -> Array:
    if not jnp.iscomplexobj(block):
        narrow = block.astype(wire)
        # XLA for CPUs would send 16-bit floats as 32-bit floats, so they are sent as integers.
        return narrow if wire == "float32" else lax.bitcast_convert_type(narrow, jnp.uint16)
    if wire == "float32":
        return block.astype(jnp.complex64)
    return lax.bitcast_convert_type(jnp.stack([block.real, block.imag], axis=-1).astype(wire), jnp.uint32)


def _wide(narrow: Array, dtype: np.dtype, wire: Wire) -> Array:
    if wire == "float32":
        return narrow.astype(dtype)
    parts = lax.bitcast_convert_type(narrow, jnp.dtype(wire))
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return parts.astype(dtype)
    parts = parts.astype(jnp.finfo(dtype).dtype)
    return lax.complex(parts[..., 0], parts[..., 1])


def _exponent(block: Array, ndim: int, name: MeshAxis) -> Array:
    """Return the exponent of the largest number of each field, over all devices along `name`.

    Without a division by this power of two, large numbers would overflow: the largest float16 is 65504.
    """
    axes = tuple(range(-ndim, 0))
    parts = (block.real, block.imag) if jnp.iscomplexobj(block) else (block,)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(part), axis=axes, keepdims=True) for part in parts]), axis=0)
    # The dtype must be able to hold this power of two and its inverse.
    most = jnp.finfo(largest.dtype).maxexp - 2
    return jnp.clip(jnp.frexp(lax.pmax(largest, name))[1], -most, most)


def _times_power(block: Array, exponent: Array) -> Array:
    real = jnp.finfo(block.dtype).dtype
    return block * jnp.ldexp(jnp.ones((), real), exponent).astype(block.dtype)
