"""`tridiagonal_solve`: tridiagonal systems along one axis of an array, one system for each index of the other axes.

This is the Thomas algorithm, vectorised over all systems: elimination and substitution process one plane of the array
after the other, in place. `jax.lax.linalg.tridiagonal_solve` solves only along the last axis; on CPUs, it calls LAPACK
for one system after the other. The table shows the time to solve the systems along one axis of the half spectrum of n³
points, divided by the time of `irfftn(rfftn(u))`, in single precision (two cores of a busy machine, smallest to largest
of several runs):

| | n = 64 | n = 128 | n = 256 |
|---|---|---|---|
| this function, along the first axis | 0.2 to 0.5 | 0.1 to 0.2 | 0.3 to 0.5 |
| this function, along the last axis | 0.2 to 0.5 | 0.2 to 0.5 | 0.5 to 0.9 |
| the same algorithm by `lax.scan`, along the first axis | 0.2 to 0.4 | 0.2 to 0.3 | 0.5 to 0.8 |
| `jax.lax.linalg.tridiagonal_solve` | 1.3 to 2.3 | 1.0 to 2.2 | 1.7 to 3.0 |
| parallel cyclic reduction | 9 | 21 | 17 |

No times were measured on GPUs. On a GPU, the loops of this function launch a few kernels for each plane.
`jax.lax.linalg.tridiagonal_solve` calls a batched routine of cuSPARSE there (jax-ml/jax#28544).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Inexact, Real

from .._common.broadcast import along
from .._common.check import as_number, check_flag, check_inexact
from .._common.host import device_array
from .._common.sharding import mesh_of_type
from .._common.typed import equally_varying, on_one_mesh, sharded_like, zeros_like
from ._vector import times


def tridiagonal_solve(
    lower: Real[Array | np.ndarray, "*#b"],
    diagonal: Real[Array | np.ndarray, "*#b"],
    upper: Real[Array | np.ndarray, "*#b"],
    b: Inexact[Array | np.ndarray, "*b"],
    *,
    axis: int,
    row_sums: bool = False,
) -> Inexact[Array, "*b"]:
    """Solve `lower[i] x[i-1] + diagonal[i] x[i] + upper[i] x[i+1] = b[i]` along one axis of `b`.

    The algorithm does not pivot, so the systems must be diagonally dominant, or symmetric and definite. The function
    takes global arrays or, inside a `jax.shard_map`, blocks. It communicates nothing if each device has the whole
    `axis`, and if each coefficient is either replicated or sharded like `b`. Derivatives of any order, with respect to
    `b` or the coefficients, also solve tridiagonal systems.

    **Arguments:**

    - `lower`, `diagonal`, `upper`: the real coefficients, arrays that broadcast against `b`. `lower[0]` and `upper[-1]`
        along the axis are ignored.
    - `b`: the right-hand side, real or complex. The coefficients are cast to the precision of `b`.
    - `axis`: the axis of the systems. All other axes are batch axes. Systems along the first axis of a grid take about
        half of the time of systems along the last axis.
    - `row_sums`: if true, the argument `diagonal` holds the sum of each row of the matrix in place of the diagonal
        entry. Use this if all row sums are at least zero, and `lower` and `upper` are at most zero, as in diffusion
        equations. Then no terms cancel, and rounding errors do not grow with the condition number of the matrix.

    **Returns:** the solution, of the shape and dtype of `b`.

    **Raises:** `ValueError` if `b` does not have the `axis`, or if a coefficient does not broadcast against `b`;
    `TypeError` if `b` is neither real nor complex floating point, or if a coefficient is complex.

    **Source:** Golub and Van Loan, Matrix Computations (2013), section 4.3.6; for row sums, Alfa, Xue and Ye, Math.
    Comp. 71 (2002).
    """
    b = device_array(b, "b")
    ndim = b.ndim
    check_inexact("b", b)
    axis = as_number(axis)
    if not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise ValueError(f"`axis` must be an axis of `b`, from {-ndim} to {ndim - 1}; got {axis!r}.")
    check_flag("row_sums", row_sums)
    # The axis is counted from the end, because `vmap` adds axes in front.
    axis, dtype = axis % ndim - ndim, jnp.finfo(b.dtype).dtype
    if b.shape[axis] == 0:
        return b
    coefficients = []
    for name, values in (("lower", lower), ("diagonal", diagonal), ("upper", upper)):
        values = device_array(values, name)
        if jnp.iscomplexobj(values):
            raise TypeError(f"`{name}` must be real; got dtype {values.dtype}.")
        if values.ndim > ndim or any(n not in (1, m) for n, m in zip(values.shape[::-1], b.shape[::-1])):
            raise ValueError(f"`{name}` must broadcast against `b` of shape {b.shape}; got shape {values.shape}.")
        coefficients.append(jnp.expand_dims(values.astype(dtype), tuple(range(ndim - values.ndim))))
    lower, sums, upper = coefficients
    cell = along(jnp.arange(b.shape[axis], dtype=np.int32), axis, ndim)
    lower = jnp.where(cell == 0, jnp.zeros((), dtype), lower)
    upper = jnp.where(cell == b.shape[axis] - 1, jnp.zeros((), dtype), upper)
    sums = sums if row_sums else lower + sums + upper
    if axis == -1:  # Planes across the last axis are not contiguous, so move this axis to the front.
        first = (jnp.moveaxis(values, -1, 0) for values in (lower, sums, upper, b))
        return jnp.moveaxis(_solved(*first, axis=-ndim), 0, -1)
    return _solved(lower, sums, upper, b, axis=axis)


@functools.partial(jax.jit, static_argnames="axis")  # Without `jit`, each eager call would compile its loops again.
def _solved(lower: Array, sums: Array, upper: Array, b: Array, *, axis: int) -> Array:
    # JAX differentiates `custom_linear_solve` inside a `shard_map` only if all operands vary over the same mesh axes.
    lower, sums, upper, b = equally_varying(*on_one_mesh(lower, sums, upper, b))

    def product(x: Array) -> Array:
        before, after = moved(x, 1, axis) - x, moved(x, -1, axis) - x
        return times(sums, x) + times(lower, before) + times(upper, after)

    return lax.custom_linear_solve(
        product,
        b,
        lambda _, b: _thomas(lower, sums, upper, b, axis, transposed=False),
        lambda _, b: _thomas(lower, sums, upper, b, axis, transposed=True),
    )


def _thomas(lower: Array, sums: Array, upper: Array, b: Array, axis: int, *, transposed: bool) -> Array:
    """Factorise each matrix into L U and solve `L U x = b`, or `Uᵀ Lᵀ x = b` if `transposed`.

    The diagonal of U is one; the diagonal of L holds the pivots. Each step overwrites one plane of `b` with the result,
    and one plane of the row sums with the inverse pivots.
    """
    n = b.shape[axis]

    def plane(x: Array, i: Array | int) -> Array:
        return lax.dynamic_index_in_dim(x, i if x.shape[axis] > 1 else 0, axis)

    def with_plane(x: Array, new: Array, i: Array | int) -> Array:
        # If a plane holds one number, JAX forgets the mesh axis of one device that shards `x`.
        return lax.dynamic_update_index_in_dim(x, sharded_like(new, x), i, axis)

    def factorised(i: Array | int, sums: Array, rest: Array) -> tuple[Array, Array]:
        """Return the inverse pivot of row i and the sum of row i of U. `rest` is the sum of row i - 1 of U."""
        total = plane(sums, i) - plane(lower, i) * rest
        inverse = 1 / (total - plane(upper, i))
        return inverse, total * inverse

    def eliminated(i: Array | int, x: Array, inverse: Array, last: Array) -> tuple[Array, Array]:
        """Return the solution of the first triangular system in row i, and the value that row i + 1 needs as `last`."""
        if transposed:
            here = plane(x, i) - last
            return here, times(plane(upper, i) * inverse, here)
        here = times(inverse, plane(x, i) - times(plane(lower, i), last))
        return here, here

    if sums.shape != jnp.broadcast_shapes(lower.shape, sums.shape, upper.shape):
        sums = sums + 0 * (lower + upper)
    inverse, rest = factorised(0, sums, jnp.zeros((), sums.dtype))
    here, last = eliminated(0, b, inverse, jnp.zeros((), b.dtype))
    inverses, x = with_plane(sums, inverse, 0), with_plane(b, here, 0)

    def eliminate(i: Array | int, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        inverses, x, rest, last = state
        inverse, rest = factorised(i, inverses, rest)
        here, last = eliminated(i, x, inverse, last)
        return with_plane(inverses, inverse, i), with_plane(x, here, i), rest, last

    def substitute(step: Array | int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, last = state
        i = n - 1 - step
        inverse, here = plane(inverses, i), plane(x, i)
        if transposed:
            here = times(inverse, here - last)
            last = times(plane(lower, i), here)
        else:
            here = last = here - times(plane(upper, i) * inverse, last)
        return with_plane(x, here, i), last

    with mesh_of_type(x):
        inverses, x, _, _ = lax.fori_loop(1, n, eliminate, (inverses, x, rest, last))
        x, _ = lax.fori_loop(0, n, substitute, (x, jnp.zeros_like(last)))
    return x


def moved(x: Array, by: int, axis: int) -> Array:
    """Shift `x` by `by` places along `axis`, and fill with zeros."""
    if x.shape[axis] <= abs(by):
        return zeros_like(x)
    widths = [(0, 0, 0)] * x.ndim
    widths[axis] = (by, -by, 0)  # A negative width removes places.
    return lax.pad(x, jnp.zeros((), x.dtype), widths)
