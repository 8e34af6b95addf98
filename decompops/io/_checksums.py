"""Checksums of arrays. They do not depend on the mesh, the padding or the storage order.

The checksum of an array is the sum, modulo 2^32, of a hash of each cell outside the padding. The hash mixes the bits of
the cell with the index that the cell has if the axes are in natural order: x, y, z. The hash maps each 32-bit word of
the cell by a bijection, so damage to one word always changes the checksum. Each device adds up the hashes of its own
cells, and the only communication is an all-reduce of one number.
"""

import json
import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._common.broadcast import along
from .._core.layout import Layout


# The number of cells of a NumPy array that are hashed at once.
CELLS = 2**20


def checksum(array: Array | np.ndarray, layout: Layout | None = None) -> Array | int:
    """Return the checksum of an array: for a `jax.Array` a scalar on its devices, for a NumPy array an integer.

    `layout` is the layout of a field or a spectrum, with or without padding. `None` stands for an array that has no
    padding and whose axes are in natural order.
    """
    lead = array.ndim if layout is None else array.ndim - layout.blocks.ndim
    lengths, order = ((), ()) if layout is None else (layout.true_shape, layout.blocks.order)
    if isinstance(array, Array):
        return _of_devices(array, (*array.shape[:lead], *lengths), (*range(lead), *(lead + axis for axis in order)))
    if layout is not None:
        cut = array[..., *map(slice, (lengths[axis] for axis in order))]
        array = cut.transpose(*range(lead), *(lead + order.index(axis) for axis in range(len(order))))
    flat = np.ravel(array)
    total = 0
    for start in range(0, flat.size, CELLS):
        cells = flat[start : start + CELLS]
        index = np.arange(start, start + cells.size).astype(np.uint32)
        total += int(_hashes(_words(cells, np.ndarray.view), index).sum(dtype=np.uint64))
    return total % 2**32


def checksum_of_json(value: Any) -> int:
    """Return the checksum of a value that JSON can store. The order of the keys of dictionaries does not matter."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


@partial(jax.jit, static_argnames=("lengths", "order"))
def _of_devices(array: Array, lengths: tuple[int, ...], order: tuple[int, ...]) -> Array:
    """Return the checksum of an array whose axes are stored in `order`. `lengths` are in natural order."""
    index, inside = jnp.zeros((), np.uint32), jnp.ones((), bool)
    for stored, axis in enumerate(order):
        cell = along(jnp.arange(array.shape[stored], dtype=np.uint32), stored - array.ndim, array.ndim)
        index = index + cell * np.uint32(math.prod(lengths[axis + 1 :]) % 2**32)
        if array.shape[stored] != lengths[axis]:
            inside = inside & (cell < np.uint32(lengths[axis]))
    hashes = _hashes(_words(array, jax.lax.bitcast_convert_type), index)
    return jnp.sum(jnp.where(inside, hashes, np.uint32(0)), dtype=np.uint32)


def _words(cells: Any, bits_as: Callable[[Any, Any], Any]) -> list[Any]:
    """Return the bits of each cell as unsigned 32-bit words: one array for each word."""
    if jnp.issubdtype(cells.dtype, jnp.complexfloating):
        return [*_words(cells.real, bits_as), *_words(cells.imag, bits_as)]
    bits = jax.dtypes.itemsize_bits(cells.dtype)
    if bits < 8 or cells.dtype == bool:  # Such a cell may be smaller than a byte. float32 has all its values.
        cells, bits = cells.astype(np.float32), 32
    whole = bits_as(cells, np.dtype(f"uint{bits}"))
    halves = [whole & np.uint64(2**32 - 1), whole >> np.uint64(32)] if bits == 64 else [whole]
    return [half.astype(np.uint32) for half in halves]


def _hashes(words: list[Any], index: Any) -> Any:
    """Return the hash of each cell, as an unsigned 32-bit word."""
    hashes = _mixed(index)
    for word in words:
        hashes = _mixed(hashes ^ word)
    return hashes


def _mixed(bits: Any) -> Any:
    """Return a bijection of 32-bit words in which every bit of the input affects every bit of the result.

    Its source is "lowbias32" (Ellis, hash-prospector).
    """
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
    return bits ^ (bits >> np.uint32(16))
