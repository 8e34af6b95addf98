"""Cosine and sine transforms of short lines, up to a few hundred points, as products with matrices in JAX.

The product takes `n²` operations for a line of `n` points, but only one pass over memory, along any axis. Up to
`LONGEST` points, the product takes less time than an FFT, whatever the factors of `n` are (docs/tried_cosines.md).
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._common.primes import has_prime_above


# The longest line for which a product is faster than an FFT, for each type of transform.
LONGEST = {1: 513, 2: 192, 3: 192, 4: 129}

# FFT libraries are slow for lengths with a prime factor above this one.
_LARGEST_FAST_PRIME = 11


def are_faster_than_kernels(type: int, n: int) -> bool:
    """Return whether a product takes less time than a compiled kernel, which runs an FFT of `n` points in the cache."""
    return n <= LONGEST[type] and has_prime_above(n, _LARGEST_FAST_PRIME)


def transformed(matrix: np.ndarray, type: int, block: Array, axis: int) -> Array:
    """Multiply the lines of `block` along `axis` (negative) by the matrix of a transform of this type.

    Except for type 4, modes are alternately even and odd about the middle of a line. Two products with matrices of a
    quarter of the size are therefore enough.
    """
    match type:
        case 1 | 2:
            even, odd = halved(matrix[::2], 1), halved(matrix[1::2], -1)
            cells, others = folded(block, axis)
            return in_turn(multiply(even, cells, axis), multiply(odd, others, axis), axis)
        case 3:
            half = (len(matrix) + 1) // 2
            even, odd = (lax.slice_in_dim(block, i, None, 2, axis) for i in (0, 1))
            even, odd = multiply(matrix[:half, ::2], even, axis), multiply(matrix[:half, 1::2], odd, axis)
            return unfolded(even, odd, len(matrix), axis)
        case _:
            return multiply(matrix, block, axis)


def multiply(matrix: np.ndarray, block: Array, axis: int) -> Array:
    """Multiply the lines of `block` along `axis` (negative) by a real matrix."""
    if jnp.iscomplexobj(block):
        return lax.complex(multiply(matrix, block.real, axis), multiply(matrix, block.imag, axis))
    factor, precision = jnp.asarray(matrix, block.dtype), lax.Precision.HIGHEST
    if axis == -1:
        return lax.dot_general(block, factor, (((block.ndim - 1,), (1,)), ((), ())), precision=precision)
    product = lax.dot_general(factor, block, (((1,), (block.ndim + axis,)), ((), ())), precision=precision)
    return jnp.moveaxis(product, 0, axis)


def halved(matrix: np.ndarray, sign: int) -> np.ndarray:
    """Return the matrix that multiplies the sums (`sign` 1) or the differences (`sign` -1) that `folded` returns.

    For the sums, `matrix` holds the even rows of the matrix of the transform; for the differences, the odd rows.
    """
    n = matrix.shape[1]
    half = matrix[:, : (n + 1) // 2].copy()
    if n % 2:  # `folded` adds the middle cell to itself.
        half[:, -1] *= 0.5 if sign == 1 else 0
    return half


def folded(block: Array, axis: int) -> tuple[Array, Array]:
    """Return the sum and the difference of the first half of each line and the reversed second half.

    Both halves include the middle cell of a line of odd length.
    """
    n = block.shape[axis]
    half = (n + 1) // 2
    first = lax.slice_in_dim(block, 0, half, axis=axis)
    last = jnp.flip(lax.slice_in_dim(block, n - half, n, axis=axis), axis)
    return first + last, first - last


def unfolded(even: Array, odd: Array, n: int, axis: int) -> Array:
    """Return lines of `n` cells from the first halves of their even and odd parts."""
    last = lax.slice_in_dim(even - odd, 0, n // 2, axis=axis)
    return jnp.concatenate([even + odd, jnp.flip(last, axis)], axis)


def in_turn(even: Array, odd: Array, axis: int) -> Array:
    """Interleave the cells of `even` and `odd`.

    The result is the sum of two padded arrays, because XLA computes this sum in one pass.
    """
    more = even.shape[axis] - odd.shape[axis]

    def spread(block: Array, before: int, after: int) -> Array:
        widths = [(0, 0, 0)] * block.ndim
        widths[axis] = (before, after, 1)
        return lax.pad(block, jnp.zeros((), block.dtype), widths)

    return spread(even, 0, 1 - more) + spread(odd, 1, more) if odd.shape[axis] else even
