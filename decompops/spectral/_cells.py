"""Poisson's and Helmholtz' equations between two walls: finite volumes across, modes along the walls."""

import abc
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Inexact, Shaped

from .._basis.cells import Cells
from .._blocks import axis_names
from .._box import Box, Number, check_box
from .._check import check_number
from .._decomposition import Decomposition
from .._layout import check_global
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.transform import Transform
from .._remember import remembered
from .._sharding import place
from .._structure import Structure
from ._tridiagonal import times, tridiagonal_solve


Wall = Literal["dirichlet", "neumann"]


def _check_walls(walls: Any) -> tuple[Wall, Wall]:
    pair = (walls, walls) if isinstance(walls, str) else tuple(walls) if isinstance(walls, tuple | list) else ()
    if len(pair) != 2 or not set(pair) <= {"dirichlet", "neumann"}:
        raise ValueError(f'`walls` must be "dirichlet" or "neumann", or one for each of both walls; got {walls!r}.')
    return cast(tuple[Wall, Wall], pair)


class AbstractCellsSolver(AbstractDerivable):
    """An equation with the Laplacian of finite volumes along the first axis and of modes along the others.

    Fields are transformed along the other axes, and one tridiagonal system along the first axis is solved for each
    mode, where that axis is whole on each device. The transforms communicate, and nothing else does.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as an argument of every constructor.
        transform: ClassVar[Transform]
        walls: ClassVar[tuple[Wall, Wall]]
        box: ClassVar[Box]
    else:
        transform: AbstractVar[Transform]
        walls: AbstractVar[tuple[Wall, Wall]]
        box: AbstractVar[Box]

    def __check_init__(self):
        if not isinstance(self.transform, Transform):
            raise TypeError(f"`transform` must be a `Transform`; got {self.transform!r}.")
        if self.decomposition.shape is None:
            raise ValueError("`transform` must be built with a `shape`; got one without.")
        check_box(self.box, self.decomposition.ndim)
        first, *others = zip(self.transform.bases, axis_names(self.decomposition.ndim))
        for basis, name in others:
            if isinstance(basis, Cells):
                raise ValueError(
                    f"`transform` must have its `Cells` along {first[1]}, the only axis that is whole on each device "
                    f"in spectra; got {basis} along {name}. Put the walls along the first axis of the grid."
                )
            if not basis.is_diagonal:
                raise ValueError(
                    f"`transform` must have bases such as `Fourier`, `Cosine` or `Sine` along all axes but "
                    f"{first[1]}; got {basis} along {name}."
                )
        if not isinstance(first[0], Cells):
            raise ValueError(f"`transform` must have the basis `Cells` along {first[1]}; got {first[0]}.")

    @property
    @abc.abstractmethod
    def sign(self) -> int:
        """The sign of `constant - ∇²` in the equation."""

    @property
    @abc.abstractmethod
    def constant(self) -> Number:
        """What is added to `-∇²`, a number of at least zero."""

    def with_wall_values(
        self, field: Inexact[Array, "*field"], first: Any = 0.0, last: Any = 0.0
    ) -> Inexact[Array, "*field"]:
        """Add to a right-hand side what other values, or slopes, than zero at the walls amount to.

        `operator(operator.with_wall_values(f, 1.0))` solves the equation with the right-hand side f for a u that is one
        at the first wall. Nothing is communicated.

        **Arguments:**

        - `field`: the right-hand side, a field in real space.
        - `first`, `last`: at a "dirichlet" wall the value of u, at a "neumann" wall its slope `∂u/∂x`. One number, or
            an array for the axes behind the first one: `(ny, nz)`, or `(*batch, ny, nz)`.

        **Returns:** a field of the shape of `field`.

        **Raises:** `ValueError` for a field of another shape, for values that do not fit it, and inside a `shard_map`
        over a mesh axis of the grid.
        """
        check_global("field", self.decomposition.mesh_axes)
        self.in_layout.check(field)
        layout, ndim, dtype = self.in_layout, self.decomposition.ndim, jnp.finfo(field.dtype).dtype
        names = layout.blocks.names if field.shape[-ndim:] == layout.shape else (None,) * ndim
        spec = lambda *entries: NamedSharding(self.decomposition.mesh, PartitionSpec(*entries))
        for name, side, wall, values in zip(("first", "last"), (-1, 1), self.walls, (first, last)):
            row = 0 if side == -1 else len(self._widths) - 1
            width, line = self._widths[row], np.zeros((field.shape[-ndim], *[1] * (ndim - 1)))
            # A value stands half a cell from the centre; the slope at the first wall is minus that out of the cell.
            line[row] = self.sign * (2 / width**2 if wall == "dirichlet" else side / width)
            factor = jnp.asarray(line, dtype) / jnp.asarray(self._length, dtype) ** (2 if wall == "dirichlet" else 1)
            values = _padded(name, jnp.asarray(values, field.dtype), field.shape, ndim)
            # Both factors are sharded, so that no device makes the whole product.
            factor = place(factor, spec(*names[:1], *[None] * (ndim - 1)))
            if values.ndim >= ndim > 1 and values.shape[1 - ndim :] == field.shape[1 - ndim :]:
                values = place(values, spec(*[None] * (values.ndim - ndim + 1), *names[1:]))
            field = field + factor.astype(field.dtype) * values
        return field

    def solve(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """The solution for a spectrum in natural order, or for one block of it inside a `shard_map`."""
        dtype = jnp.finfo(spectrum.dtype).dtype
        k = _natural(self.transform).wavenumbers(box=self.box, dtype=dtype)
        ndim = len(k)
        lower, sums, upper = (values.reshape(-1, *[1] * (ndim - 1)) for values in self._laplacian(dtype))
        added = jnp.asarray(self.constant, dtype) + sum((along**2 for along in k[1:]), start=jnp.zeros((), dtype))
        solve = functools.partial(tridiagonal_solve, axis=-ndim, row_sums=True)
        if not self._may_be_singular:
            return self.sign * solve(lower, sums + added, upper, spectrum)
        # Where a constant may be added to the solution, an entry in the first row makes the matrix regular. A solution
        # w of that system is one of f without its mean, plus w in the first cell times the known solution for a
        # constant right-hand side.
        free = added == 0
        widths = jnp.asarray(self._widths, dtype).reshape(lower.shape)
        first = jnp.arange(len(lower)).reshape(lower.shape) == 0
        entry = jnp.where(first, 1 / jnp.asarray(self._length * self._widths[0], dtype) ** 2, jnp.zeros((), dtype))
        w = solve(lower, sums + added + jnp.where(free, entry, jnp.zeros((), dtype)), upper, spectrum)
        mean = jnp.sum(times(widths, w), -ndim, keepdims=True)
        of_constant = jnp.asarray(self._solution_for_a_constant(), dtype).reshape(lower.shape)
        excess = mean + times(of_constant, jax.lax.slice_in_dim(w, 0, 1, axis=-ndim))
        return self.sign * (w - jnp.where(free, excess, jnp.zeros((), w.dtype)))

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        transform = _natural(self.transform)
        there, back = (transform.inverse, transform) if form.transposed else (transform, transform.inverse)
        spectrum = there.apply(x, form, local=local)
        if form.transposed:  # Where cells differ in width, the real matrix is not symmetric.
            (spectrum,) = jax.linear_transpose(self.solve, spectrum)(spectrum)
        else:
            spectrum = self.solve(spectrum)
        return back.apply(spectrum, form, local=local)

    @property
    def decomposition(self) -> Decomposition:
        return self.transform.decomposition

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        field = replace(self.transform.structures(UNCHANGED, given)[0], box=self.box)
        return field, field

    @property
    def _widths(self) -> np.ndarray:
        """The widths of the cells, for walls at a distance of one."""
        return self.transform.bases[0].weights(self._shape[0])

    @property
    def _shape(self) -> tuple[int, ...]:
        return cast(tuple, self.decomposition.shape)

    @property
    def _length(self) -> Number:
        """The distance of the walls."""
        return cast(tuple, check_box(self.box, self.decomposition.ndim).lengths)[0]

    @property
    def _may_be_singular(self) -> bool:
        """Whether the solution for some mode, or in padding, may be known up to a constant only."""
        if "dirichlet" in self.walls or not (isinstance(self.constant, Tracer) or self.constant == 0):
            return False
        kept = self.transform.modes or self._shape
        others = tuple(zip(self.transform.bases, kept))[1:]
        has_mean = all((basis.wavenumbers(n) == 0).any() for basis, n in others)
        return has_mean or bool(self.transform.out_layout.blocks.padded_axes)

    def _laplacian(self, dtype: np.dtype) -> tuple[Array, Array, Array]:
        """The coefficients of `-∇²` along the first axis, one for each cell: lower, the sum of each row, upper."""
        widths = self._widths
        between = (widths[1:] + widths[:-1]) / 2  # the distances of the centres
        lower = np.append(0, -1 / (widths[1:] * between))
        upper = np.append(-1 / (widths[:-1] * between), 0)
        sums = np.zeros(len(widths))
        for row, wall in zip((0, -1), self.walls):
            if wall == "dirichlet":
                sums[row] += 2 / widths[row] ** 2  # The wall is half a cell from the centre.
        scale = 1 / jnp.asarray(self._length, dtype) ** 2
        return jnp.asarray(lower, dtype) * scale, jnp.asarray(sums, dtype) * scale, jnp.asarray(upper, dtype) * scale

    def _solution_for_a_constant(self) -> np.ndarray:
        """The solution of the system of `solve` with the entry in its first row, one in its first cell, less its mean.

        Fluxes decrease linearly from the first wall to zero at the last one.
        """
        widths = self._widths
        faces, between = np.cumsum(widths)[:-1], (widths[1:] + widths[:-1]) / 2
        values = np.append(1, 1 + np.cumsum(between * (1 - faces)) / widths[0])
        return values - widths @ values


class CellsPoisson(AbstractCellsSolver):
    """The solution u of Poisson's equation `∇²u = f` between two walls, by finite volumes across.

    Fields `(*batch, nx, ny, nz)` hold the means over cells between walls along the first axis, x. Second differences on
    these cells stand for `∂²/∂x²`, of second order in their widths; along the other axes derivatives are exact. One
    tridiagonal system is solved for each mode, where x is whole on each device.

    Between two "neumann" walls, where all other bases have a constant mode, u has zero mean over the volume, and the
    mean of f, for which there is no solution, is ignored.

    !!! example

        ```python
        bases = (dops.Cells.clustered(96, 2.0), dops.Fourier(), dops.Fourier(half=True))
        transform = dops.Transform(mesh, shape=(96, 128, 128), bases=bases)
        pressure = CellsPoisson(transform, "neumann", dops.Box((2.0, 6.0, 3.0)))(f)
        ```

    **Arguments:**

    - `transform`: built with a `shape`, with the basis `Cells` along the first axis and `Fourier`, `Cosine`, `Sine` or
        `Points` along the others.
    - `walls`: the condition at both walls, or one for each: "dirichlet" for u = 0, "neumann" for `∂u/∂x = 0`. Other
        values: `with_wall_values`.
    - `box`: the lengths; along the first axis it is the distance of the walls.

    **Raises:** `TypeError` for a `transform` that is not a `Transform`, and a `box` that is not a `Box`; `ValueError`
    for a `transform` without shape, with other bases, or with `Cells` along another axis, and for unknown `walls`.
    """

    transform: Transform
    walls: tuple[Wall, Wall] = eqx.field(static=True, converter=_check_walls)
    box: Box = Box()

    @property
    def sign(self) -> int:
        return -1

    @property
    def constant(self) -> Number:
        return 0.0


class CellsHelmholtz(AbstractCellsSolver):
    """The solution u of `(shift - ∇²) u = f` between two walls, by finite volumes across: see `CellsPoisson`.

    An implicit step of diffusion is such an equation. At `shift = 0` it is `-∇²u = f`, with a mean of zero where that
    is free.

    **Arguments:**

    - `transform`, `walls`, `box`: as for `CellsPoisson`.
    - `shift`: a real number of at least zero, in inverse units of length squared. May be traced, to differentiate by.

    **Raises:** as `CellsPoisson`; `ValueError` for a negative `shift`, because the systems are solved without pivoting.
    """

    transform: Transform
    shift: Number
    walls: tuple[Wall, Wall] = eqx.field(static=True, converter=_check_walls)
    box: Box = Box()

    def __check_init__(self):
        check_number("shift", self.shift, least=0)

    @property
    def sign(self) -> int:
        return 1

    @property
    def constant(self) -> Number:
        return self.shift


@remembered
def _natural(transform: Transform) -> Transform:
    """`transform` with spectra in natural order, where planes across the first axis are contiguous."""
    return transform.replace(axis_contiguous=False) if transform.axis_contiguous else transform


def _padded(name: str, values: Array, shape: tuple[int, ...], ndim: int) -> Array:
    """Values on a wall as an array that broadcasts against a field of `shape`, zero in the padding of the field."""
    behind = shape[len(shape) - ndim + 1 :]
    own = values.shape[max(0, values.ndim - len(behind)) :]
    if any(have > want for have, want in zip(own[::-1], behind[::-1])):
        raise ValueError(f"`{name}` must be a number, or values for the axes {behind}; got shape {values.shape}.")
    widths = [(0, want - have if have > 1 else 0) for have, want in zip(own[::-1], behind[::-1])][::-1]
    if any(after for _, after in widths):
        values = jnp.pad(values, [(0, 0)] * (values.ndim - len(own)) + widths)
    return jnp.expand_dims(values, -ndim) if values.ndim >= ndim - 1 else values
