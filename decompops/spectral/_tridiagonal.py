"""Tridiagonal systems along one axis of an array, one for each index of the other axes.

Elimination and substitution go along the axis, one plane of the array after the other, in place: the Thomas algorithm,
vectorised over all systems. `jax.lax.linalg.tridiagonal_solve` wants the axis last, and calls LAPACK for one system
after the other on CPUs. Times on one CPU, over that of `irfftn(rfftn(u))` of a grid of n³ points, for its spectrum:

| | n = 64 | n = 128 | n = 256 |
|---|---|---|---|
| along the first axis | 0.3 | 0.2 | 0.3 to 0.4 |
| along the last axis | 0.4 to 0.5 | 0.3 to 0.4 | 0.5 to 0.8 |
| the same by `lax.scan`, along the first axis | 0.2 to 0.4 | 0.3 | 0.5 |
| the same by `jax.lax.linalg.tridiagonal_solve` | 1.5 to 2.3 | 1.0 to 2.2 | 1.7 to 3.0 |
| by parallel cyclic reduction | 9 | 21 | 17 |

On GPUs the loop launches two kernels for each plane, and nothing was measured there.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Inexact, Real

from .._sharding import equally_varying


def tridiagonal_solve(
    lower: Real[Array | np.ndarray, "*#b"],
    diagonal: Real[Array | np.ndarray, "*#b"],
    upper: Real[Array | np.ndarray, "*#b"],
    b: Inexact[Array | np.ndarray, "*b"],
    *,
    axis: int,
) -> Inexact[Array, "*b"]:
    """Solve `lower[i] x[i-1] + diagonal[i] x[i] + upper[i] x[i+1] = b[i]` along one axis of `b`.

    There is no pivoting: the systems must be diagonally dominant, or symmetric and definite. Nothing is communicated
    if `axis` is whole on each device and the coefficients are sharded like `b`, or not at all; it works on global
    arrays and on blocks inside a `jax.shard_map`. Derivatives of any order, by the right-hand side and by the
    coefficients, solve systems of the same kind.

    **Arguments:**

    - `lower`, `diagonal`, `upper`: the real coefficients, arrays that broadcast against `b`. `lower[0]` and `upper[-1]`
        along the axis are ignored.
    - `b`: the right-hand side, real or complex. The coefficients are cast to its precision.
    - `axis`: the axis of the systems. All other axes are batch axes. The first axis of a grid takes half of the time of
        the last one.

    **Returns:** the solution, of the shape and dtype of `b`.

    **Raises:** `ValueError` for an axis that `b` does not have, and coefficients that do not broadcast against `b`.

    **Source:** Golub and Van Loan, Matrix Computations (2013), section 4.3.6.
    """
    b, ndim = jnp.asarray(b), b.ndim
    if not -ndim <= axis < ndim:
        raise ValueError(f"`axis` must be an axis of `b`, from {-ndim} to {ndim - 1}; got {axis}.")
    dtype = jnp.finfo(b.dtype).dtype
    coefficients = []
    for name, values in (("lower", lower), ("diagonal", diagonal), ("upper", upper)):
        if values.ndim > ndim or any(n not in (1, m) for n, m in zip(values.shape[::-1], b.shape[::-1])):
            raise ValueError(f"`{name}` must broadcast against `b` of shape {b.shape}; got shape {values.shape}.")
        coefficients.append(jnp.expand_dims(jnp.asarray(values, dtype), tuple(range(ndim - values.ndim))))
    if axis % ndim == ndim - 1 and ndim > 1:  # Planes across the last axis are not contiguous.
        coefficients = [jnp.moveaxis(values, -1, 0) for values in coefficients]
        return jnp.moveaxis(_solved(*coefficients, jnp.moveaxis(b, -1, 0), axis=-ndim), 0, -1)
    return _solved(*coefficients, b, axis=axis % ndim - ndim)  # counted from the end, where `vmap` adds no axes


def tridiagonal_product(lower: Array, diagonal: Array, upper: Array, x: Array, *, axis: int) -> Array:
    """What `tridiagonal_solve` inverts: real coefficients with as many axes as `x`, in its precision."""
    neighbours = times(lower, moved(x, 1, axis)) + times(upper, moved(x, -1, axis))
    return times(diagonal, x) + neighbours


@functools.partial(jax.jit, static_argnames="axis")  # Else an eager call compiles its loops each time.
def _solved(lower: Array, diagonal: Array, upper: Array, b: Array, *, axis: int) -> Array:
    # Else JAX cannot differentiate `custom_linear_solve` inside a `shard_map`.
    lower, diagonal, upper, b = equally_varying(lower, diagonal, upper, b)
    return lax.custom_linear_solve(
        lambda x: tridiagonal_product(lower, diagonal, upper, x, axis=axis),
        b,
        lambda _, b: _thomas(lower, diagonal, upper, b, axis),
        lambda _, b: _thomas(_neighbours(upper, 1, axis), diagonal, _neighbours(lower, -1, axis), b, axis),
    )


def _thomas(lower: Array, diagonal: Array, upper: Array, b: Array, axis: int) -> Array:
    """Each step overwrites one plane of the right-hand side, and one of the diagonal by what elimination leaves."""
    n = b.shape[axis]

    def plane(x: Array, i: Array | int) -> Array:
        return lax.dynamic_index_in_dim(x, i if x.shape[axis] > 1 else 0, axis)

    def with_plane(x: Array, new: Array, i: Array | int) -> Array:
        return lax.dynamic_update_index_in_dim(x, new, i, axis)

    shape = list(jnp.broadcast_shapes(lower.shape, diagonal.shape, upper.shape))
    shape[axis] = n
    # `ratios` are the diagonal where elimination is still to come, and the upper coefficients where it has been.
    inverse = 1 / plane(diagonal, 0)
    ratio, last = plane(upper, 0) * inverse, times(inverse, plane(b, 0))
    ratios, x = with_plane(jnp.broadcast_to(diagonal, shape), jnp.broadcast_to(ratio, _one(shape, axis)), 0), b
    x = with_plane(x, last, 0)

    def eliminate(i: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        ratios, x, ratio, last = state
        below = plane(lower, i)
        inverse = 1 / (plane(ratios, i) - below * ratio)
        ratio = plane(upper, i) * inverse
        last = times(inverse, plane(x, i) - times(below, last))
        return with_plane(ratios, ratio, i), with_plane(x, last, i), ratio, last

    def substitute(step: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, last = state
        i = n - 2 - step
        last = plane(x, i) - times(plane(ratios, i), last)
        return with_plane(x, last, i), last

    ratios, x, _, last = lax.fori_loop(1, n, eliminate, (ratios, x, plane(ratios, 0), last))
    x, _ = lax.fori_loop(0, n - 1, substitute, (x, last))
    return x


def _one(shape: list[int], axis: int) -> list[int]:
    shape = list(shape)
    shape[axis] = 1
    return shape


def times(factor: Array, x: Array) -> Array:
    """`factor * x` for a real factor, without a complex product."""
    return lax.complex(factor * x.real, factor * x.imag) if jnp.iscomplexobj(x) else factor * x


def moved(x: Array, by: int, axis: int) -> Array:
    """The cells of `x` that many places further along `axis`, and zero where none arrive."""
    n, widths = x.shape[axis], [(0, 0)] * x.ndim
    widths[axis] = (max(by, 0), max(-by, 0))
    return jnp.pad(lax.slice_in_dim(x, max(-by, 0), n - max(by, 0), axis=axis), widths)


def _neighbours(values: Array, by: int, axis: int) -> Array:
    """Coefficients of the cells next to each one; of one that stands for all cells, itself."""
    return values if values.shape[axis] == 1 else moved(values, by, axis)
