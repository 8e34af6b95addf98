"""Products of short lines with matrices, with JAX: cosine and sine transforms of a few hundred points.

A line of `n` points takes `n²` operations, but no pass over memory beside the product, along any axis. Up to `LONGEST`
points that takes less time than an FFT, whatever the factors of `n` are: see docs/performance.md.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


# The most points of a line for which a product is faster, by the type of the transform.
LONGEST = {1: 513, 2: 192, 3: 192, 4: 129}


def transformed(matrix: np.ndarray, type: int, block: Array, axis: int) -> Array:
    """The lines of `block` along `axis`, counted from the end, times the matrix of a transform of that type.

    Modes are even and odd about the middle of a line in turn, but for type 4: two products with matrices of a quarter
    of the size do.
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
    """The product of a real matrix with the lines of `block` along `axis`, counted from the end."""
    if jnp.iscomplexobj(block):
        return lax.complex(multiply(matrix, block.real, axis), multiply(matrix, block.imag, axis))
    factor, precision = jnp.asarray(matrix, block.dtype), lax.Precision.HIGHEST
    if axis == -1:
        return lax.dot_general(block, factor, (((block.ndim - 1,), (1,)), ((), ())), precision=precision)
    product = lax.dot_general(factor, block, (((1,), (block.ndim + axis,)), ((), ())), precision=precision)
    return jnp.moveaxis(product, 0, axis)


def halved(matrix: np.ndarray, sign: int) -> np.ndarray:
    """What a matrix multiplies one part of `folded` lines by, if its rows are even (`sign` 1) or odd (-1)."""
    n = matrix.shape[1]
    half = matrix[:, : (n + 1) // 2].copy()
    if n % 2:  # Both halves have the cell in the middle.
        half[:, -1] *= 0.5 if sign == 1 else 0
    return half


def folded(block: Array, axis: int) -> tuple[Array, Array]:
    """The first half of each line plus and minus the other half in reverse; both have the cell in the middle."""
    n = block.shape[axis]
    half = (n + 1) // 2
    first = lax.slice_in_dim(block, 0, half, axis=axis)
    last = jnp.flip(lax.slice_in_dim(block, n - half, n, axis=axis), axis)
    return first + last, first - last


def unfolded(even: Array, odd: Array, n: int, axis: int) -> Array:
    """Lines of `n` cells, from the first halves of their even parts and of their odd parts."""
    last = lax.slice_in_dim(even - odd, 0, n // 2, axis=axis)
    return jnp.concatenate([even + odd, jnp.flip(last, axis)], axis)


def in_turn(even: Array, odd: Array, axis: int) -> Array:
    """The cells of both in turn: the sum of two paddings, which XLA computes in one pass."""
    more = even.shape[axis] - odd.shape[axis]

    def spread(block: Array, before: int, after: int) -> Array:
        widths = [(0, 0, 0)] * block.ndim
        widths[axis] = (before, after, 1)
        return lax.pad(block, jnp.zeros((), block.dtype), widths)

    return spread(even, 0, 1 - more) + spread(odd, 1, more) if odd.shape[axis] else even
