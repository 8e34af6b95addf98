"""`Geometry`: cells, faces and walls along each axis of a grid; and `Robin`, a boundary condition."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float, Shaped

from .._basis.cells import Cells
from .._common.blocks import axis_names
from .._common.box import Number
from .._common.broadcast import along
from .._common.check import brief, check_number, is_one_of
from .._common.host import device_array, host_array
from .._common.placement import place
from .._common.remember import in_new_program
from .._core.decomposition import Decomposition, check_decomposition
from ._cut import Cut, precise, scaled


class Robin(eqx.Module):
    """The boundary condition `a ∂u/∂n + coefficient * u = g` at a wall, with the outward derivative `∂u/∂n`.

    **Arguments:**

    - `coefficient`: a positive number, in units of a per length. It may be traced.

    **Raises:** `TypeError` if `coefficient` is not one real number, and `ValueError` if it is not positive.
    """

    coefficient: Number

    def __check_init__(self):
        check_number("coefficient", self.coefficient, positive=True)


Condition = Literal["dirichlet", "neumann"] | Robin
# The conditions of one axis: no walls, one condition at both walls, or a pair.
Boundary = Literal["periodic"] | Condition | tuple[Condition, Condition]
# The cells along one axis: `None` for equal widths.
AxisCells = Cells | Array | np.ndarray | None


class Faces(NamedTuple):
    """The faces across one axis: arrays of shape `(parts, cells + 1)`, the faces of each block.

    - `below`, `above`: the distance from the face to the centre of the cell before it, and behind it; zero at walls.
    - `live`: 1 for a face that u has a flux through, else 0: at "neumann" walls and in the padding.
    - `resistance`: the resistance that a Robin condition adds at its wall.
    """

    below: Array
    above: Array
    live: Array
    resistance: Array


class Geometry(eqx.Module):
    """The cells of a grid and the conditions at its walls.

    - `conditions`: for each axis `None` if it is periodic, else the kinds of the conditions at both walls.
    - `robin`: for each axis the coefficients at both walls; `None` for other conditions.
    - `cells`, `widths`: for each axis the cells, or an array of relative widths; `None` for cells of equal widths.
    """

    decomposition: Decomposition
    conditions: tuple[tuple[str, str] | None, ...] = eqx.field(static=True)
    robin: tuple[tuple[Number | None, Number | None], ...]
    cells: tuple[Cells | None, ...] = eqx.field(static=True)
    widths: tuple[Array | None, ...]

    @property
    def periodic(self) -> tuple[bool, ...]:
        """Whether each axis is periodic."""
        return tuple(pair is None for pair in self.conditions)

    def cut(self, *, local: bool) -> Cut:
        """Return how fields on this grid are cut into blocks."""
        return Cut(self.decomposition.mesh, self.decomposition.blocks(), local)

    def is_stretched(self, axis: int) -> bool:
        """Whether the cells along an axis may differ in width."""
        return self.cells[axis] is not None or self.widths[axis] is not None

    def relative(self, axis: int, dtype: Any) -> Float[Array, " n"]:
        """Return the widths of the cells along an axis, in units of their mean."""
        n, cells, widths = self.decomposition.shape[axis], self.cells[axis], self.widths[axis]
        if cells is not None:
            return jnp.asarray(cells.weights(n) * n, dtype)
        return jnp.ones(n, dtype) if widths is None else (widths / jnp.mean(widths)).astype(dtype)

    def mean_width(self, axis: int, dtype: Any) -> Float[Array, ""]:
        """Return the mean width of the cells along an axis."""
        length = jnp.asarray(self.decomposition.box_lengths[axis], dtype)
        return length / jnp.asarray(self.decomposition.shape[axis], dtype)

    def sampled(self, name: str, function: Callable[..., Any], dtype: Any, *, corners: bool) -> Shaped[Array, "..."]:
        """Return the values of a function of the coordinates at the centres of the cells, or at the corners.

        A block of n cells has n + 1 corners along each axis, so neighbouring blocks both hold those between them.
        Each eager call calls the function: it may read variables that change. Raises `ValueError`, with the `name` of
        the function, unless its result is a number or an array that broadcasts to the points.
        """
        dec, cut, lines = self.decomposition, self.cut(local=False), []
        shape = tuple(parts * (cells + corners) for parts, cells in zip(cut.blocks.parts, cut.core))
        for axis, n in enumerate(dec.shape):
            widths, numbers = self.relative(axis, dtype), cut.numbers(axis, 0, int(corners))
            edges = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(widths)])
            points = edges if corners else edges[:-1] + widths / 2
            # A periodic function may have rounding errors: the corners at both ends are the same.
            points = points[numbers % n if self.periodic[axis] else np.minimum(numbers, len(points) - 1)]
            line = along((points * self.mean_width(axis, dtype)).reshape(-1), axis - dec.ndim, dec.ndim)
            names = [name if i == axis else None for i, name in enumerate(cut.blocks.names)]
            lines.append(place(line, NamedSharding(dec.mesh, PartitionSpec(*names))))
        sharding = NamedSharding(dec.mesh, dec.spec())

        def of_lines(lines: tuple[Array, ...]) -> Array:
            values = function(*lines)
            try:
                whole = jnp.broadcast_to(jnp.asarray(values), shape)
            except (TypeError, ValueError):
                raise ValueError(
                    f"`{name}` must return a number or an array that broadcasts to the coordinates of the points, of "
                    f"shape {shape}; got {brief(values)}."
                ) from None
            # A function that is constant ignores the lines. They still tell the program its devices.
            return lax.optimization_barrier((whole, lines))[0]

        return in_new_program(lambda lines: place(of_lines(lines), sharding), tuple(lines))

    def volumes(self, axes: Sequence[int], cut: Cut, dtype: Any) -> list[Array]:
        """Return the relative widths along `axes` as lines; zero in the padding. Lines of ones are left out."""
        found = []
        for axis in axes:
            if self.is_stretched(axis) or cut.blocks.is_padded(axis):
                n, numbers = self.decomposition.shape[axis], cut.numbers(axis)
                inside = jnp.asarray(numbers < n)
                widths = self.relative(axis, dtype)[np.minimum(numbers, n - 1)]
                found.append(cut.line(jnp.where(inside, widths, 0), axis))
        return found

    def faces(self, axis: int, cut: Cut, dtype: Any) -> Faces:
        """Return the faces across an axis."""
        n, numbers = self.decomposition.shape[axis], cut.numbers(axis, 0, 1)
        half = self.relative(axis, dtype) * self.mean_width(axis, dtype) / 2
        below, above, resistance = half[(numbers - 1) % n], half[numbers % n], jnp.zeros(numbers.shape, dtype)
        live = numbers <= n
        if (pair := self.conditions[axis]) is not None:
            below, above = jnp.where(numbers == 0, 0, below), jnp.where(numbers == n, 0, above)
            for wall, kind, coefficient in zip((0, n), pair, self.robin[axis]):
                if kind == "neumann":
                    live = live & (numbers != wall)
                if coefficient is not None:
                    resistance = jnp.where(numbers == wall, 1 / jnp.asarray(coefficient, dtype), resistance)
        return Faces(below, above, jnp.asarray(live, dtype), resistance)

    def conductances(self, axis: int, length: Array, a: Array, cut: Cut) -> Array:
        """Return the conductance of each face across an axis, over the mean volume of cells, as a split array.

        `length / a` is the resistance between the two centres. That of Robin walls is added.
        """
        dtype = a.dtype
        real = jnp.finfo(dtype).dtype
        _, _, live, at_walls = (cut.line(values, axis).astype(dtype) for values in self.faces(axis, cut, real))
        areas = self.volumes([other for other in range(self.decomposition.ndim) if other != axis], cut, real)
        # In units of the width: JAX's derivative of a quotient squares what it divides by.
        width = self.mean_width(axis, real).astype(dtype)
        conductance = live * (a / width) / (length / width + at_walls * (a / width))
        return scaled(areas, conductance / width)


def harmonic_mean(before: Array, behind: Array, below: Array, above: Array) -> Array:
    """Return the harmonic mean of the coefficients `before` and `behind` each face.

    Their weights `below` and `above` add up to one. The weight of a side outside of the grid is zero, and the
    coefficient there is one. Where a coefficient is zero, the mean is zero, and has a derivative.
    """
    # The product of two coefficients may leave the range of 32 bits, so they are in units of the larger one.
    sides = [(below, before), (above, behind)]
    sizes = [jnp.where(weight == 0, 0, jnp.abs(lax.stop_gradient(a))) for weight, a in sides]
    unit = jnp.maximum(*sizes).astype(before.dtype)
    unit = jnp.where(unit == 0, 1, unit)
    lower, upper = (jnp.where(weight == 0, 1, a / unit) for weight, a in sides)
    total = below * upper + above * lower
    return unit * (lower * upper / jnp.where(total == 0, 1, total))


def geometry_of(decomposition: Any, boundary: Any, cells: Any) -> Geometry:
    """Return the geometry that arguments of an operator describe. Raises an error if one is not valid."""
    ndim = check_decomposition(decomposition).ndim
    names = axis_names(ndim)
    each = boundary if isinstance(boundary, tuple | list) else (boundary,) * ndim
    if len(each) != ndim:
        raise ValueError(
            f"`boundary` must be one entry for all axes, or one for each of {', '.join(names)}; got {boundary!r}. For "
            'different conditions at two walls, pass a pair for the axis, as in `("periodic", ("dirichlet", '
            '"neumann"))`.'
        )
    conditions, robin = [], []
    for name, entry in zip(names, each):
        pair = tuple(entry) if isinstance(entry, tuple | list) else (entry, entry)
        if is_one_of(entry, ("periodic",)):
            conditions.append(None)
            robin.append((None, None))
            continue
        if len(pair) != 2 or not all(
            is_one_of(one, ("dirichlet", "neumann")) or isinstance(one, Robin) for one in pair
        ):
            raise ValueError(
                f'`boundary` must be "periodic", "dirichlet", "neumann", `Robin(coefficient)`, or a pair of the last '
                f"three, along {name}; got {entry!r}."
            )
        conditions.append(tuple("robin" if isinstance(one, Robin) else one for one in pair))
        robin.append(tuple(jnp.asarray(one.coefficient) if isinstance(one, Robin) else None for one in pair))
    each = cells if isinstance(cells, tuple | list) else (cells,) * ndim
    if len(each) != ndim:
        raise ValueError(f"`cells` must have one entry for each of {', '.join(names)}; got {cells!r}.")
    for name, n, entry in zip(names, decomposition.shape, each):
        if isinstance(entry, Cells):
            entry.stored(n)
        elif entry is not None and (not hasattr(entry, "dtype") or jnp.shape(entry) != (n,)):
            raise ValueError(
                f"`cells` must be None, `Cells`, or an array of {n} widths along {name}; got {brief(entry)}."
            )
        elif entry is not None and (jnp.iscomplexobj(entry) or jnp.result_type(entry) == np.bool_):
            raise TypeError(f"`cells` must be real widths along {name}; got {brief(entry)}.")
        elif entry is not None and not isinstance(entry, Tracer):
            widths = host_array(entry, "cells")
            if not (np.isfinite(widths) & (widths > 0)).all():
                raise ValueError(f"`cells` must have positive, finite widths along {name}; got {widths!r}.")
    static = tuple(entry if isinstance(entry, Cells) else None for entry in each)
    widths = tuple(
        None if entry is None or isinstance(entry, Cells) else precise(device_array(entry, "cells", decomposition.mesh))
        for entry in each
    )
    return Geometry(decomposition, tuple(conditions), tuple(robin), static, widths)
