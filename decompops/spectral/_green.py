"""Green's functions in open space, for `Convolution`."""

import abc
import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec

from .._common.blocks import Blocks
from .._common.box import Number
from .._common.check import check_choice, check_number
from .._common.sharding import axes_to_map, map_blocks
from .._operator.transform import coordinates_along
from .._plan.doubled import lines_plan
from .._plan.route import divided_blocks
from . import _vector
from ._bessel import above, below, j0, j1, k0, k1, polynomial, without_pole
from ._check import check_squares
from ._kernel_lines import KernelLines, mirrored
from ._kernel_pieces import free_axis, in_pieces
from ._kernels import AbstractKernel
from ._open_grid import OpenGrid


Method = Literal["truncated", "sampled"]


class AbstractGreen(AbstractKernel):
    """The base class of Green's functions that are even or odd along each axis. They are computed in two ways.

    `method="truncated"` cuts the Green's function off at a distance that is longer than the diagonal of the box. This
    changes no result, and the symbol of the cut function is smooth, and known in closed form. For smooth fields that
    vanish at the faces of the box, the error falls faster than any power of the spacing (Vico, Greengard and Ferrando,
    J. Comput. Phys. 323, 2016). `method="sampled"` takes the values of the Green's function at the points of the grid,
    and its mean over the cell at zero. The error is of second order in the spacing (Hockney and Eastwood, Computer
    Simulation Using Particles, 1988, section 6-5-4).
    """

    method: eqx.AbstractVar[Method]

    def __check_init__(self):
        check_choice("method", self.method, get_args(Method))

    @abc.abstractmethod
    def truncated(self, axes: int, squared: Array, periodic: Array, reach: Number, area: Number) -> Array:
        """Return the Fourier transform of the Green's function of `axes` open axes, cut off at the distance `reach`.

        `squared` and `periodic` are the squares of the wavenumber along the open axes, and along the periodic axes.
        `area` is the product of the periods along the open axes, which is the mode zero of the constant 1.
        """

    @abc.abstractmethod
    def sampled(self, squared: Array, periodic: Array, spacing: Sequence[Number]) -> Array:
        """Return the values of the Green's function at points whose squared distance from zero is `squared`.

        `spacing` is the spacing of the grid along each open axis.
        """

    @property
    @abc.abstractmethod
    def resonance(self) -> Number | None:
        """The wavenumber along the periodic axes that has no Green's function; `None` if all have one."""

    def spectrum(self, grid: OpenGrid, lengths: Sequence[Number], dtype: np.dtype) -> Array:
        if not 1 <= len(grid.open) <= 3:
            raise ValueError(f"`open` must name one to three axes for this kernel; got {grid.open}.")
        _check_resonance(self.resonance, grid, lengths)
        check_squares(grid.bases, grid.decomposition.shape, lengths, dtype)  # Squares of distances are used, too.
        lengths = [length if isinstance(length, float) else jnp.asarray(length, dtype) for length in lengths]
        components, target = self.odd_axes(len(lengths)), grid.plans.inner.target
        lead = () if len(components) == 1 else (len(components),)
        spec = PartitionSpec(*[None] * len(lead), *target.spec)
        arrays, rest = eqx.partition((self, lengths), eqx.is_array)

        def block(arrays: Any) -> Array:
            kernel, lengths = eqx.combine(arrays, rest)
            parts = [kernel._component(grid, lengths, dtype, odd) for odd in components]
            return jnp.stack(parts) if lead else parts[0]

        mesh, specs = grid.decomposition.mesh, jax.tree.map(lambda _: PartitionSpec(), arrays)
        return map_blocks(block, mesh, axes_to_map(mesh, spec), (specs,), spec, check_types=False)(arrays)

    def _component(self, grid: OpenGrid, lengths: Sequence[Number], dtype: np.dtype, odd: int | None) -> Array:
        """Return one block of a component of the spectrum.

        It is computed piece by piece: before the transforms, the values of a kernel that is cut off take 8 fields or
        more. After all transforms but the last, the values take 2 fields.
        """
        plans, ndim = grid.plans, grid.decomposition.ndim
        lines = [self._lines(grid, lengths, axis, odd) if axis in grid.open else None for axis in range(ndim)]
        modes = plans.inner.target.lengths
        *first, last = [leg for leg in zip(plans.divisions, plans.order) if leg[1] in grid.open]
        counts = tuple(line.count if line else n for line, n in zip(lines, modes))
        source = divided_blocks(counts, (first or [last])[0][0], plans.order[::-1])
        values = functools.partial(self._values, grid, lengths, dtype, odd, lines, source)
        transforms = {axis: (line, line.results) for axis, line in enumerate(lines) if line}
        mirror = None
        if first:
            plan = lines_plan("Convolution", source, first, transforms)
            block, source = in_pieces(grid, plan, last[1], values), plan.target
            _, axis = first[-1]
            if modes[axis] > source.lengths[axis]:
                mirror = axis

            def values(cut: Callable) -> Array:
                piece = cut(block)
                return piece if mirror is None else mirrored(piece, source.position(mirror), -1 if mirror == odd else 1)

            whole = tuple(modes[axis] if axis == mirror else n for axis, n in enumerate(source.lengths))
            source = replace(source, lengths=whole)
        plan = lines_plan("Convolution", source, [last], transforms, plans.inner.target.order)
        return in_pieces(grid, plan, free_axis(plan, mirror), values)

    def _values(
        self,
        grid: OpenGrid,
        lengths: Sequence[Number],
        dtype: np.dtype,
        odd: int | None,
        lines: Sequence[KernelLines | None],
        source: Blocks,
        cut: Callable,
    ) -> Array:
        """Return a piece of the values, or of the symbol, of a component, before all transforms."""
        reach, shape, mesh = _reach(grid, lengths), grid.decomposition.shape, grid.decomposition.mesh

        def coordinate(axis: int, *, nyquist: bool = True) -> Array:
            line, operation = lines[axis], operator.truediv
            if line is None:
                values = grid.bases[axis].wavenumbers(shape[axis], nyquist=nyquist)
            elif self.method == "sampled":
                values, operation = np.arange(line.count) / line.n, operator.mul
            else:
                values = 2 * math.pi / line.period * np.arange(line.count)
            return cut(coordinates_along(operation, source, axis, values, lengths[axis], mesh, dtype))

        coordinates = [coordinate(axis) for axis in range(len(shape))]
        squares, zero = list(map(jnp.square, coordinates)), jnp.zeros((1,) * len(shape), dtype)
        squared = functools.reduce(operator.add, [squares[axis] for axis in grid.open])
        periodic = functools.reduce(operator.add, [s for s, line in zip(squares, lines) if line is None], zero)
        spacing = [lengths[axis] / shape[axis] for axis in grid.open]
        if self.method == "truncated":
            area = math.prod(line.period * lengths[axis] for axis, line in enumerate(lines) if line)
            values = self.truncated(len(grid.open), squared, periodic, reach, area)
            if not isinstance(reach, float):  # The period must be known when the program is compiled.
                fits = [reach <= (line.period - 1 + 1e-6) * lengths[axis] for axis, line in enumerate(lines) if line]
                values = jnp.where(functools.reduce(operator.and_, fits), values, jnp.nan)
        elif odd in grid.open:
            function = functools.partial(self.sampled, periodic=periodic, spacing=spacing)
            # The slope by the squared distance may leave the range of floats, so the tangent has some of its factors.
            tangent = jnp.broadcast_to(2 * coordinates[odd] * spacing[0], squared.shape)
            values = _vector.times_each(spacing[1:], jax.jvp(function, (squared,), (tangent,))[1])
        else:
            values = _vector.times_each(spacing, self.sampled(squared, periodic, spacing))
        if odd is not None and (self.method == "truncated" or odd not in grid.open):
            values = values * coordinate(odd, nyquist=False)
        return values

    def _lines(self, grid: OpenGrid, lengths: Sequence[Number], axis: int, odd: int | None) -> KernelLines:
        n = grid.decomposition.shape[axis]
        # Only the first `n + 1` modes are stored along the axis of the half spectrum, and along the last axis. Along
        # the axis before it, the others are added directly before the last transform.
        whole = axis not in grid.order[-2:] and grid.bases[axis].stored(2 * n) != n + 1
        period = 2 if self.method == "sampled" else _period(_reach(grid, lengths), lengths[axis])
        return KernelLines(n, period, axis == odd, whole)


def _check_resonance(resonance: Number | None, grid: OpenGrid, lengths: Sequence[Number]) -> None:
    axes = [axis for axis in range(len(lengths)) if axis not in grid.open]
    known = all(isinstance(lengths[axis], float) for axis in axes)
    if resonance is None or isinstance(resonance, Tracer) or not known:
        return
    if not axes:
        if resonance == 0 and len(grid.open) < 3:
            raise ValueError(f"`wavenumber` must not be zero on {len(grid.open)} open axes; got {resonance}.")
        return
    squares = [(grid.bases[axis].wavenumbers(grid.shape[axis]) / float(lengths[axis])) ** 2 for axis in axes]
    q = np.sqrt(functools.reduce(np.add.outer, squares))
    if np.any(abs(q - abs(resonance)) <= 1e-12 * abs(q).max()):
        raise ValueError(
            f"`wavenumber` must differ from the wavenumbers of the periodic axes; got {resonance}, for which there is "
            "no solution. Change it, or the box, a little."
        )


def _reach(grid: OpenGrid, lengths: Sequence[Number]) -> Number:
    """Return the diagonal of the box along the open axes."""
    sides = [lengths[axis] for axis in grid.open]
    if all(isinstance(side, float) for side in sides):
        return math.hypot(*sides)
    return jnp.sqrt(functools.reduce(operator.add, map(jnp.square, sides)))


def _period(reach: Number, length: Number) -> int:
    """Return the even period, in boxes, that keeps the images of a kernel of this reach away from the box.

    If a length is traced, return the one of boxes whose diagonal is at most 3 times this side.
    """
    if not isinstance(reach, float):
        return 4
    return max(4, 2 * math.ceil((1 + reach / float(length)) / 2 * (1 - 1e-12)))


def screened_symbol(axes: int, squared: Array, q: Array, reach: Number, area: Number) -> Array:
    """Return the Fourier transform of the Green's function of `q² - ∇²` on `axes` axes, cut off at `reach`.

    - `squared`: the square of the wavenumber along the open axes.
    - `q`: the screening of the other axes; zero or positive.
    - `area`: the product of the periods along the open axes. It is the mode zero of the constant 1.
    """
    is_zero, flat = squared == 0, q == 0
    s = root(squared)
    x, y = q * reach, s * reach
    total = squared + q * q
    total = jnp.where(total == 0, 1, total)
    # On one and two axes, the function is cut off without its jump at the reach, which would be as large as 1 / q or
    # log(q), or depend on the unit of length. The jump is a constant.
    safe = jnp.where(flat, 1, q)
    if axes == 2:
        bessel = jnp.where(is_zero, 0.5, j1(y) / jnp.where(is_zero, 1, y))  # J1(y) / y
        direct = jnp.where(is_zero, reach**2 / 4, (1 - j0(y)) / total)
        z = safe * reach
        screened = (1 - z * k1(z) * j0(y) - z * z * bessel * k0(z)) / total
        screened = jnp.where(is_zero, reach**2 * (_screened_mean(axes, z) - k0(z) / 2), screened)
        jump = jnp.where(flat, -jnp.log(reach), k0(z)) / (2 * math.pi)
    else:  # the integral of sin(s r) exp(-q r) / s
        direct = reach**2 / 2 * sinc(y / 2) ** 2
        screened = (-jnp.expm1(-x) + jnp.exp(-x) * (2 * jnp.sin(y / 2) ** 2 - x * sinc(y))) / total
        screened = jnp.where(is_zero, reach**2 * _screened_mean(3, x), screened)
        jump = jnp.where(flat, -reach / 2, jnp.exp(-x) / (2 * safe)) if axes == 1 else 0
    return jnp.where(flat, direct, screened) + jnp.where(is_zero, jump * area, 0)


def _screened_mean(axes: int, x: Array) -> Array:
    """Return `screened_symbol` on two or three axes at the wavenumber zero, for `reach = 1` and `q = x`.

    For small x, the terms of the general form cancel each other. So below x = 1, this function adds up a power series.
    """
    near, far = below(x, 1.0), above(x, 1.0)
    if axes == 3:
        terms = [(-1.0) ** n * (n + 1) / math.factorial(n + 2) for n in range(20)]
        return jnp.where(x < 1, polynomial(terms, near), (1 - (1 + far) * jnp.exp(-far)) / far**2)
    return jnp.where(x < 1, without_pole(near, 1, 1) / 4, (1 - far * k1(far)) / far**2)


def sinc(x: Array) -> Array:
    return jnp.sinc(x / math.pi)


def screened_values(squared: Array, q: Array, spacing: Sequence[Number]) -> Array:
    """Return the Green's function of `q² - ∇²` at distances whose square is `squared`.

    At the distance zero, return the mean over a cell with sides `spacing`.
    """
    here, flat = squared == 0, q == 0
    r = jnp.sqrt(jnp.where(here, 1, squared))
    safe = jnp.where(flat, 1, q)
    if len(spacing) == 3:
        mean = mean_of_inverse(spacing)
        return jnp.where(here, mean - q, jnp.exp(-q * r) / r) / (4 * math.pi)
    if len(spacing) == 2:
        mean = mean_of_logarithm(spacing)
        near = jnp.where(flat, -mean, -jnp.log(safe / 2) - np.euler_gamma - mean)
        return jnp.where(here, near, jnp.where(flat, -jnp.log(r), k0(safe * r))) / (2 * math.pi)
    r = jnp.where(here, 0, r)
    return jnp.where(flat, -r / 2, jnp.exp(-q * r) / (2 * safe))


def mean_of_inverse(sides: Sequence[Number]) -> Number:
    """Return the mean of 1/r over a box with these sides, with r the distance from its centre."""
    a, b, c = (side / sides[0] for side in sides)  # The cubes of short or long sides leave the range of floats.
    r = jnp.sqrt(a * a + b * b + c * c)
    total = 0
    for x, y, z in ((a, b, c), (b, c, a), (c, a, b)):
        total += y * z * jnp.arcsinh(x / jnp.sqrt(y * y + z * z)) - x * x / 2 * jnp.arctan(y * z / (x * r))
    return 2 * total / (a * b * c) / sides[0]


def mean_of_logarithm(sides: Sequence[Number]) -> Number:
    """Return the mean of log(r) over a rectangle with these sides, with r the distance from its centre."""
    a, b = (side / 2 for side in sides)
    squared = a * a + b * b
    angles = a * a * jnp.arctan(b / a) + b * b * jnp.arctan(a / b)
    return (a * b * jnp.log(squared) - 3 * a * b + angles) / (2 * a * b)


class PoissonKernel(AbstractGreen):
    """The Green's function of Poisson's equation: the convolution is the solution u of `∇²u = f` in open space.

    With three open axes, the kernel is `-1 / 4πr`, and u is zero at infinity. With two open axes, it is `log(r) / 2π`,
    and with one, `|x| / 2`. Along periodic axes, u is periodic.

    **Arguments:**

    - `method`: "truncated", whose error falls faster than any power of the spacing, or "sampled", of second order: see
        docs/open_boundaries.md.
    """

    method: Method = eqx.field(static=True, default="truncated")

    @property
    def resonance(self) -> None:
        return None

    def odd_axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None,)

    def truncated(self, axes: int, squared: Array, periodic: Array, reach: Number, area: Number) -> Array:
        return -screened_symbol(axes, squared, root(periodic), reach, area)

    def sampled(self, squared: Array, periodic: Array, spacing: Sequence[Number]) -> Array:
        return -screened_values(squared, root(periodic), spacing)


class YukawaKernel(AbstractGreen):
    """The Green's function of the screened Poisson equation: the solution u of `(λ² - ∇²) u = f` in open space.

    With three open axes, the kernel is `exp(-λr) / 4πr`; with two, `K0(λr) / 2π`; with one, `exp(-λ|x|) / 2λ`. The
    equation is the one of `Helmholtz` with `shift = λ²`.

    **Arguments:**

    - `screening`: λ, a positive number with the unit 1/length. It may be traced: JAX differentiates with respect to it
        where the `Convolution` is built inside the differentiated function.
    - `method`: the same as in `PoissonKernel`.

    **Raises:** `ValueError` if `screening` is not positive.
    """

    screening: Number
    method: Method = eqx.field(static=True, default="truncated")

    def __check_init__(self):
        check_number("screening", self.screening, positive=True)

    @property
    def resonance(self) -> None:
        return None

    def odd_axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None,)

    def truncated(self, axes: int, squared: Array, periodic: Array, reach: Number, area: Number) -> Array:
        return screened_symbol(axes, squared, self._screening(periodic), reach, area)

    def sampled(self, squared: Array, periodic: Array, spacing: Sequence[Number]) -> Array:
        return screened_values(squared, self._screening(periodic), spacing)

    def _screening(self, periodic: Array) -> Array:
        return jnp.sqrt(periodic + jnp.square(jnp.asarray(self.screening, periodic.dtype)))


class BiotSavartKernel(AbstractGreen):
    """The kernel of Biot and Savart: the velocity v of a vorticity w in open space: `v = ∇× (-∇²)⁻¹ w`.

    Fields are vectors on a grid of three axes, of shape `(*batch, 3, nx, ny, nz)`. For a current w, v is its magnetic
    field. If w is divergence-free and vanishes at the faces of the box, `∇×v = w`: this is `InverseCurl` in open space.

    **Arguments:**

    - `method`: the same as in `PoissonKernel`.
    """

    method: Method = eqx.field(static=True, default="truncated")

    @property
    def resonance(self) -> None:
        return None

    def odd_axes(self, ndim: int) -> tuple[int | None, ...]:
        if ndim != 3:
            raise ValueError(f"`fft` must transform a grid of three axes, for a curl; got a grid of {ndim} axes.")
        return (0, 1, 2)

    def truncated(self, axes: int, squared: Array, periodic: Array, reach: Number, area: Number) -> Array:
        return screened_symbol(axes, squared, root(periodic), reach, area)

    def sampled(self, squared: Array, periodic: Array, spacing: Sequence[Number]) -> Array:
        return screened_values(squared, root(periodic), spacing)


def root(squared: Array) -> Array:
    """Return the square root; its derivative at zero is zero."""
    is_zero = squared == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, squared)))
