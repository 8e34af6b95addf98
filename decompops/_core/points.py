"""A primitive with which points deposit values on a block and read it, and all derivatives of both.

Its results are the partial derivatives of two numbers that depend on arrays with one entry for each point and on a
block. The first is the sum of what all points read, times their values. It is linear in the values and in the block.
Its derivative by the block is a deposit, that by the values is a read. The second number is the change of the first as
the coordinates of the points move along given directions, and has one linear argument more. Its derivative by the
directions are slopes. So the transposes of these operators are again these operators. Their derivatives by coordinates
are, too, with the derivative of the window along an axis: derivatives of every order need nothing else, and nothing of
the size of points times touched cells is ever stored.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._backend.native.points import has_kernel, run_points
from .._common.broadcast import aligned
from .window import Window


# The arrays of one call, in this order: directions of shape `(n, ndim)`, values of shape `(*batch, n)` and blocks of
# shape `(*batch, *cloud.shape)`. The result is one of them; the others are operands. Without directions, points do not
# move.
Kind = Literal["along", "values", "block"]
KINDS: tuple[Kind, ...] = get_args(Kind)


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


class Frame(NamedTuple):
    """The positions of the points in a device's slots, and how they become coordinates in cells of its block.

    Compiled programs round differently, so a point on the edge of a block may come out a rounding error outside. It is
    moved onto the edge. Points that are farther outside, or not finite, are not at home, and all results are NaN.

    - `positions`: numbers of shape `(n, ndim)`.
    - `scale`: the number of cells in a unit of length along each axis.
    - `lines`: seven numbers for each axis, `(first, period, start, low, high, tolerance, shift)`. A coordinate is
        `position * scale - first`. If `period` is positive, it is brought between `start` and `start + period`. Then it
        is at home from `low` to below `high`, or outside by at most `tolerance`. At last, `shift` is added.
    - `live`: the number of points, which are in the first slots. What other slots contain has no meaning.
    """

    positions: Array
    scale: Array
    lines: Array
    live: Array


def deposit(cloud: Cloud, frame: Frame, values: Array) -> Array:
    """Return the sum of the clouds of all points.

    **Arguments:** `values`, real or complex numbers of shape `(*batch, n)`.

    **Returns:** an array of shape `(*batch, *cloud.shape)` and of the dtype of `values`.
    """
    return points_p.bind(*frame, values, cloud=cloud, takes=("values",), gives="block")


def read(cloud: Cloud, frame: Frame, block: Array) -> Array:
    """Return the sum of the cells that each point touches, times their shares: the transpose of `deposit`.

    **Arguments:** `block`, real or complex numbers of shape `(*batch, *cloud.shape)`.

    **Returns:** an array of shape `(*batch, n)` and of the dtype of `block`: zero in slots without a point.
    """
    return points_p.bind(*frame, block, cloud=cloud, takes=("block",), gives="values")


points_p = Primitive("points")


class _Call(NamedTuple):
    """The static parameters of the primitive."""

    cloud: Cloud
    takes: tuple[Kind, ...]
    gives: Kind


def _result(frame: Frame, operands: Any, call: _Call) -> tuple[Any, tuple[int, ...]]:
    """Return the argument that the result resembles, and the shape of the result."""
    like, cloud = operands[-1], call.cloud
    batch = like.shape[: -cloud.ndim] if call.takes[-1] == "block" else like.shape[:-1]
    slots = frame.positions.shape[0]
    shapes = {"along": (slots, cloud.ndim), "values": (*batch, slots), "block": (*batch, *cloud.shape)}
    return frame.positions if call.gives == "along" else like, shapes[call.gives]


def _run(*arguments: Array, **parameters: Any) -> Array:
    """Compute the result by the compiled kernel where there is one, else by XLA."""
    frame, operands, call = Frame(*arguments[:4]), arguments[4:], _Call(**parameters)
    cloud, x, moves = call.cloud, operands[-1], len(operands) == 2
    real = jnp.finfo(x.dtype).dtype
    if cloud.threads is None or not has_kernel(
        frame.positions.dtype, x.dtype, cloud.ndim, cloud.window.width, moves=moves
    ):
        return _along_axes(frame, operands, call) if moves else _by_xla(frame, x, call)
    like, shape = _result(frame, operands, call)
    result = jax.ShapeDtypeStruct(shape, x.dtype)
    operands = [y.astype(real) if kind == "along" else y for kind, y in zip(call.takes, operands)]
    pieces = [cloud.window.derivative(order) for order in cloud.orders]
    options = {"shape": cloud.shape, "wraps": cloud.wraps, "pieces": pieces, "threads": cloud.threads}
    return run_points(frame, operands, result, gives=call.gives, **options).astype(like.dtype)


def _along_axes(frame: Frame, operands: Any, call: _Call) -> Array:
    """Return the sum over the axes of deposits or reads with the derivative of the window."""
    cloud, given, terms = call.cloud, dict(zip(call.takes, operands)), []
    for axis in range(cloud.ndim):
        run = functools.partial(_run, *frame, cloud=cloud.derivative(axis))
        if call.gives == "block":
            x = given["values"] * _beside(given["along"][:, axis], given["values"])
            terms.append(run(x, takes=("values",), gives="block"))
            continue
        x = run(given["block"], takes=("block",), gives="values")
        if call.gives == "values":
            terms.append(x * _beside(given["along"][:, axis], x))
        else:
            products = jnp.real(x * given["values"])
            terms.append(jnp.sum(products.reshape(-1, products.shape[-1]), axis=0).astype(frame.positions.dtype))
    if call.gives == "block":
        return functools.reduce(jnp.add, terms)
    live = jnp.arange(frame.positions.shape[0], dtype=np.int32) < frame.live  # Other slots may hold NaN.
    if call.gives == "values":
        total = functools.reduce(jnp.add, terms)
        return jnp.where(aligned(live, total), total, 0)
    return jnp.where(live[:, None], jnp.stack(terms, axis=1), 0)


def _beside(factor: Array, x: Array) -> Array:
    """Return one number for each point as a factor of `x`, of shape `(*batch, n)`."""
    return aligned(factor.astype(x.dtype), x)


def _by_xla(frame: Frame, x: Array, call: _Call) -> Array:
    """Deposit or read, by operations of XLA."""
    cloud = call.cloud
    coordinates, live, astray = _coordinates(frame)
    cells, shares = _touched(cloud, coordinates, live, x.dtype)
    total = jnp.zeros(_result(frame, (x,), call)[1], x.dtype)

    def add(number: Array | int, total: Array) -> Array:
        where, share = _corner(cloud, cells, shares, number)
        if call.gives == "block":
            return total.at[(..., *where)].add(x * _beside(share, x), mode="drop")
        return total + x.at[(..., *where)].get(mode="fill", fill_value=0) * _beside(share, total)

    total = jax.lax.fori_loop(0, cloud.window.width**cloud.ndim, add, total)
    return jnp.where(jnp.broadcast_to(astray, total.shape), jnp.asarray(np.nan, total.dtype), total)


def _coordinates(frame: Frame) -> tuple[Array, Array, Array]:
    """Return the coordinates of all points, which slots hold a point, and whether a point is not at home."""
    live = jnp.arange(frame.positions.shape[0], dtype=np.int32) < frame.live
    found, astray = [], jnp.zeros((), bool)
    for axis in range(frame.positions.shape[1]):
        first, period, start, low, high, tolerance, shift = frame.lines[axis]
        s = jnp.where(live, frame.positions[:, axis], 0) * frame.scale[axis] - first
        turns = jnp.floor((s - start) / jnp.where(period > 0, period, 1))
        s = jnp.where(period > 0, s - turns * period, s)
        last = high * (1 - float(jnp.finfo(s.dtype).eps))
        moved = jnp.where(s < low, low, jnp.where(s >= high, last, s))
        astray = astray | jnp.any(live & ~(jnp.abs(moved - s) <= tolerance))
        found.append(moved + shift)
    return jnp.stack(found, axis=1), live, astray


def _touched(cloud: Cloud, points: Array, live: Array, dtype: np.dtype) -> tuple[list[Array], list[Array]]:
    """Return, for each axis, the cells that each point touches and their shares: arrays of shape `(width, n)`.

    Slots without a point touch no cell: they have the number of cells as their number. If each of them added a zero to
    the same cell, the threads of a GPU would wait for each other there.
    """
    width, real = cloud.window.width, jnp.finfo(dtype).dtype
    # XLA would fuse the coordinates into both the cells and the shares. If the two round differently, a point on the
    # edge of a cell would have the cells of one side and the shares of the other side.
    points = jax.lax.optimization_barrier(points)
    cells, shares = [], []
    for axis, (length, wraps, order) in enumerate(zip(cloud.shape, cloud.wraps, cloud.orders)):
        s = points[:, axis] - (width / 2 - 1)
        first = jnp.floor(s)
        fraction = (s - first).astype(np.promote_types(s.dtype, real))  # Shares add up to one in both precisions.
        shares.append(jnp.stack(cloud.window.shares(fraction, order)).astype(real))
        touched = first.astype(np.int32)[None] + np.arange(width, dtype=np.int32)[:, None]
        # JAX would count a negative index from the end of the axis.
        exists = live[None] if wraps else live[None] & (touched >= 0)
        cells.append(jnp.where(exists, touched % length if wraps else touched, length))
    return cells, shares


def _corner(cloud: Cloud, cells: list[Array], shares: list[Array], number: Array | int) -> tuple[list[Array], Array]:
    """Return the cell number `number` of the cloud of each point, and its share."""
    width, where, found = cloud.window.width, [], []
    for axis in range(cloud.ndim):
        j = number // width ** (cloud.ndim - 1 - axis) % width
        where.append(cells[axis][j])
        found.append(shares[axis][j])
    return where, functools.reduce(jnp.multiply, found)


def _lower(ctx, *arguments, **parameters):
    """Lower to a kernel, or for an exported program to operations of XLA, which other installations have as well."""
    if ctx.module_context.lowering_parameters.for_export:
        parameters["cloud"] = replace(parameters["cloud"], threads=None)
    return mlir.lower_fun(_run, multiple_results=False)(ctx, *arguments, **parameters)


def _abstract_value(*arguments, **parameters):
    like, shape = _result(Frame(*arguments[:4]), arguments[4:], _Call(**parameters))
    return like.update(shape=shape, weak_type=False)


def _batching_rule(arguments, dims, **parameters):
    bind, batched = functools.partial(points_p.bind, **parameters), [dim is not None for dim in dims]
    if parameters["gives"] != "along" and not any(batched[:-1]):
        # The same points for all values or blocks: these are one batch axis more.
        return bind(*arguments[:-1], jnp.moveaxis(arguments[-1], dims[-1], 0)), 0
    each = [jnp.moveaxis(x, dim, 0) for x, dim in zip(arguments, dims) if dim is not None]

    def one(rows: list[Array]) -> Array:
        remaining = iter(rows)
        return bind(*(next(remaining) if has else x for x, has in zip(arguments, batched)))

    return jax.lax.map(one, each), 0


def _derivative(primals, tangents, *, cloud: Cloud, takes: tuple[Kind, ...], gives: Kind):
    frame, operands = Frame(*primals[:4]), primals[4:]
    bind = functools.partial(points_p.bind, *frame, takes=takes, gives=gives)
    result, terms = bind(*operands, cloud=cloud), []
    for i, tangent in enumerate(tangents[4:]):
        if type(tangent) is not ad.Zero:
            terms.append(bind(*operands[:i], tangent, *operands[i + 1 :], cloud=cloud))
    along = _direction(frame, *tangents[:2])
    if along is not None and len(operands) == 1:
        terms.append(points_p.bind(*frame, along, *operands, cloud=cloud, takes=("along", *takes), gives=gives))
    elif along is not None:
        linear, *others = operands
        for axis in range(cloud.ndim):
            factor = along[:, axis]
            scaled = linear * (factor[:, None] if takes[0] == "along" else _beside(factor, linear))
            terms.append(bind(scaled, *others, cloud=cloud.derivative(axis)))
    return result, functools.reduce(jnp.add, terms or [jnp.zeros_like(result)])


def _direction(frame: Frame, of_positions: Any, of_scale: Any) -> Array | None:
    """Return how the coordinates change with positions and scale. Slots without a point may hold NaN."""
    live = jnp.arange(frame.positions.shape[0], dtype=np.int32)[:, None] < frame.live
    terms = []
    if type(of_positions) is not ad.Zero:
        terms.append(of_positions * frame.scale[None])
    if type(of_scale) is not ad.Zero:
        terms.append(jnp.where(live, frame.positions, 0) * of_scale[None])
    return jnp.where(live, functools.reduce(jnp.add, terms), 0) if terms else None


def _transposed(cotangent, *arguments, cloud: Cloud, takes: tuple[Kind, ...], gives: Kind):
    """The transpose by one operand takes the cotangent, in the place of the result, and gives this operand."""
    frame = arguments[:4]
    given: dict[Kind, Any] = dict(zip(takes, arguments[4:]))
    assert not any(map(ad.is_undefined_primal, frame))
    linear: Kind = next(kind for kind in takes if ad.is_undefined_primal(given[kind]))
    if type(cotangent) is ad.Zero:
        result = ad.Zero(given[linear].aval)
    else:
        given[gives] = cotangent
        others: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind in given and kind != linear)
        result = points_p.bind(*frame, *(given[kind] for kind in others), cloud=cloud, takes=others, gives=linear)
    return [None] * 4 + [result if kind == linear else None for kind in takes]


points_p.def_impl(jax.jit(_run, static_argnames=("cloud", "takes", "gives")))
points_p.def_abstract_eval(_abstract_value)
mlir.register_lowering(points_p, _lower)
batching.primitive_batchers[points_p] = _batching_rule
ad.primitive_jvps[points_p] = _derivative
ad.primitive_transposes[points_p] = _transposed
