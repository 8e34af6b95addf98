"""Two primitives, each the other's transpose: `deposit` adds values to a block at points, `read` reads it there.

Both are linear in values and fields, and nonlinear in the coordinates of the points. The derivative by a coordinate is
the same primitive with the derivative of the window along that axis. So all derivatives, of every order, are again
these two primitives, and nothing of the size of points times touched cells is ever stored.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._backend.native.points import has_kernel, run_points
from .._common.broadcast import aligned
from .window import Window


@dataclass(frozen=True)
class Cloud:
    """How points touch the cells of a block.

    - `window`: the window along each axis.
    - `shape`: the lengths of the block, its halo included.
    - `wraps`: for each axis, whether cells outside of the block are those at its other end. Otherwise they do not
        exist: what a point deposits there is dropped, and it reads zero there.
    - `orders`: the order of the derivative of the window along each axis.
    - `threads`: the number of threads of the compiled kernel; `None` if XLA deposits and reads.
    """

    window: Window
    shape: tuple[int, ...]
    wraps: tuple[bool, ...]
    orders: tuple[int, ...]
    threads: int | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def derivative(self, axis: int) -> "Cloud":
        """Return the cloud whose shares are the derivatives by the coordinate along `axis`."""
        return replace(self, orders=tuple(order + (i == axis) for i, order in enumerate(self.orders)))


def deposit(cloud: Cloud, points: Array, values: Array) -> Array:
    """Return the sum of the clouds of all points.

    **Arguments:**

    - `points`: coordinates of shape `(n, ndim)`, in cells from the first cell of the block.
    - `values`: real or complex numbers of shape `(*batch, n)`.

    **Returns:** an array of shape `(*batch, *cloud.shape)` and of the dtype of `values`.
    """
    return deposit_p.bind(points, values, cloud=cloud)


def read(cloud: Cloud, points: Array, block: Array) -> Array:
    """Return the sum of the cells that each point touches, times their shares: the transpose of `deposit`.

    **Arguments:**

    - `points`: coordinates of shape `(n, ndim)`, in cells from the first cell of the block.
    - `block`: real or complex numbers of shape `(*batch, *cloud.shape)`.

    **Returns:** an array of shape `(*batch, n)` and of the dtype of `block`.
    """
    return read_p.bind(points, block, cloud=cloud)


deposit_p, read_p = Primitive("deposit"), Primitive("read")


def _deposit(points: Array, values: Array, *, cloud: Cloud) -> Array:
    cells, shares = _touched(cloud, points, values.dtype)
    zeros = jnp.zeros((*values.shape[:-1], *cloud.shape), values.dtype)

    def add(number: Array | int, block: Array) -> Array:
        where, share = _corner(cloud, cells, shares, number)
        return block.at[(..., *where)].add(values * aligned(share, values).astype(values.dtype), mode="drop")

    return jax.lax.fori_loop(0, cloud.window.width**cloud.ndim, add, zeros)


def _read(points: Array, block: Array, *, cloud: Cloud) -> Array:
    cells, shares = _touched(cloud, points, block.dtype)
    zeros = jnp.zeros((*block.shape[: -cloud.ndim], points.shape[0]), block.dtype)

    def add(number: Array | int, total: Array) -> Array:
        where, share = _corner(cloud, cells, shares, number)
        return total + block.at[(..., *where)].get(mode="fill", fill_value=0) * aligned(share, total).astype(
            total.dtype
        )

    return jax.lax.fori_loop(0, cloud.window.width**cloud.ndim, add, zeros)


def _touched(cloud: Cloud, points: Array, dtype: np.dtype) -> tuple[list[Array], list[Array]]:
    """Return, for each axis, the cells that each point touches and their shares: arrays of shape `(width, n)`."""
    width, real = cloud.window.width, jnp.finfo(dtype).dtype
    # XLA would fuse the coordinates into both the cells and the shares. If the two round differently, a point on the
    # edge of a cell would have the cells of one side and the shares of the other side.
    points = jax.lax.optimization_barrier(points)
    cells, shares = [], []
    for axis, (length, wraps, order) in enumerate(zip(cloud.shape, cloud.wraps, cloud.orders)):
        s = points[:, axis] - (width / 2 - 1)
        first = jnp.floor(s)
        shares.append(jnp.stack(cloud.window.shares(s - first, order)).astype(real))
        touched = first.astype(np.int32)[None] + np.arange(width, dtype=np.int32)[:, None]
        # JAX would count a negative index from the end of the axis.
        cells.append(touched % length if wraps else jnp.where(touched < 0, length, touched))
    return cells, shares


def _corner(cloud: Cloud, cells: list[Array], shares: list[Array], number: Array | int) -> tuple[list[Array], Array]:
    """Return the cell number `number` of the cloud of each point, and its share."""
    width, where, found = cloud.window.width, [], []
    for axis in range(cloud.ndim):
        j = number // width ** (cloud.ndim - 1 - axis) % width
        where.append(cells[axis][j])
        found.append(shares[axis][j])
    return where, functools.reduce(jnp.multiply, found)


def _run(by_xla: Callable, points: Array, x: Array, *, cloud: Cloud) -> Array:
    """Deposit or read by the compiled kernel where there is one, else by XLA."""
    if cloud.threads is None or not has_kernel(points.dtype, x.dtype, cloud.ndim, cloud.window.width):
        return by_xla(points, x, cloud=cloud)
    result = jax.ShapeDtypeStruct(_result_shape(by_xla, points, x, cloud), x.dtype)
    pieces = [cloud.window.derivative(order) for order in cloud.orders]
    options = {"shape": cloud.shape, "wraps": cloud.wraps, "pieces": pieces, "threads": cloud.threads}
    return run_points(points, x, result, deposits=by_xla is _deposit, **options)


def _lower(by_xla: Callable, ctx, points, x, *, cloud: Cloud):
    """Lower to a kernel, or for an exported program to operations of XLA, which other installations have as well."""
    if ctx.module_context.lowering_parameters.for_export:
        cloud = replace(cloud, threads=None)
    run = functools.partial(_run, by_xla)
    return mlir.lower_fun(run, multiple_results=False)(ctx, points, x, cloud=cloud)


def _register(primitive: Primitive, function: Callable, transpose: Primitive) -> None:
    primitive.def_impl(jax.jit(functools.partial(_run, function), static_argnames="cloud"))
    primitive.def_abstract_eval(functools.partial(_abstract_value, function))
    mlir.register_lowering(primitive, functools.partial(_lower, function))
    batching.primitive_batchers[primitive] = functools.partial(_batching_rule, primitive)
    ad.primitive_jvps[primitive] = functools.partial(_derivative, primitive)
    ad.primitive_transposes[primitive] = functools.partial(_transposed, transpose)


def _result_shape(function: Callable, points, x, cloud: Cloud) -> tuple[int, ...]:
    return (*x.shape[:-1], *cloud.shape) if function is _deposit else (*x.shape[: -cloud.ndim], points.shape[0])


def _abstract_value(function: Callable, points, x, *, cloud: Cloud):
    return x.update(shape=_result_shape(function, points, x, cloud), weak_type=False)


def _batching_rule(primitive: Primitive, args, dims, *, cloud: Cloud):
    (points, x), (along, of_x) = args, dims
    if along is None:  # The same points for all values or fields: these are one batch axis more.
        return primitive.bind(points, jnp.moveaxis(x, of_x, 0), cloud=cloud), 0
    moved = [jnp.moveaxis(points, along, 0), x if of_x is None else jnp.moveaxis(x, of_x, 0)]
    one = lambda i: primitive.bind(moved[0][i], x if of_x is None else moved[1][i], cloud=cloud)
    return jax.lax.map(one, jnp.arange(moved[0].shape[0])), 0


def _derivative(primitive: Primitive, primals, tangents, *, cloud: Cloud):
    (points, x), (along, of_x) = primals, tangents
    result, terms = primitive.bind(points, x, cloud=cloud), []
    if type(of_x) is not ad.Zero:
        terms.append(primitive.bind(points, of_x, cloud=cloud))
    if type(along) is not ad.Zero:
        for axis in range(cloud.ndim):
            factor = aligned(along[:, axis].astype(x.dtype), result if primitive is read_p else x)
            of_axis = functools.partial(primitive.bind, points, cloud=cloud.derivative(axis))
            terms.append(of_axis(x * factor) if primitive is deposit_p else of_axis(x) * factor)
    return result, functools.reduce(jnp.add, terms)


def _transposed(transpose: Primitive, cotangent, points, x, *, cloud: Cloud):
    assert not ad.is_undefined_primal(points)
    if type(cotangent) is ad.Zero:
        return None, ad.Zero(x.aval)
    return None, transpose.bind(points, cotangent, cloud=cloud)


_register(deposit_p, _deposit, read_p)
_register(read_p, _read, deposit_p)
