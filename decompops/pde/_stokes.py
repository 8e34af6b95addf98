"""Implicit steps of flows and of heat between two walls, separately for each Fourier mode along the walls.

The pressure is eliminated as in Kim, Moin and Moser (J. Fluid Mech. 177, 1987). The unknowns are the normal velocity
and the normal vorticity: the components of velocity and vorticity perpendicular to the walls. Together they determine
the velocity along the walls, and make the divergence of the velocity zero up to rounding. The normal velocity has two
conditions at each wall. Solutions of the homogeneous equations are added to satisfy all four conditions (the influence
matrix of Kleiser and Schumann, 1980).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from .._common.box import Number
from .._common.broadcast import aligned
from ..spectral import _vector
from ..spectral._chebyshev import Lines


class WallModes(NamedTuple):
    """The modes of a spectrum between two walls.

    - `lines`: the Chebyshev coefficients of each mode along the first axis.
    - `nabla`: first derivatives. Those along the walls also apply to the arrays that `lines.pairs` returns.
    - `squared`: the sum of the squared wavenumbers along the walls, with Nyquist wavenumbers: minus the symbol of the
        Laplacian along the walls.
    - `slope`: `dξ/dx`, where ξ from -1 to 1 is the argument of the Chebyshev polynomials.
    """

    lines: Lines
    nabla: _vector.Nabla
    squared: Array
    slope: Array

    @property
    def squared_slopes(self) -> Array:
        """Minus the symbol of the divergence of a gradient along the walls."""
        return _vector.squared(self.nabla.k[1:])

    @property
    def is_uniform(self) -> Array:
        """Whether all first derivatives of a mode along the walls are zero, as in the mean."""
        return self.squared_slopes == 0

    def without_unit(self, time: Number) -> tuple["WallModes", Array]:
        """Return these modes, and `time` of `implicit`, in units in which the walls are at ξ = ±1.

        In a long box, products of squares of wavenumbers and small coefficients would underflow.
        """
        half = 1 / jnp.abs(self.slope)
        nabla = self.nabla._replace(k=tuple(k * half for k in self.nabla.k))
        time = jnp.asarray(time, self.slope.dtype) * self.slope * self.slope
        return self._replace(nabla=nabla, squared=self.squared * half * half, slope=self.slope * half), time


def implicit(modes: WallModes, time: Number, integrated: Array | None = None, walls: Array | None = None) -> Array:
    """Return the solution u of `u - time * ∇²u = f`, for `integrated = lines.double_integral(f)`.

    `time` is a time step times a diffusivity. `walls` holds the even and the odd part of u at ξ = 1, as
    `Lines.wall_sums` returns them; `None` if u is zero at the walls. `integrated` is `None` for f = 0.
    """
    time = jnp.asarray(time, modes.slope.dtype)
    return modes.lines.solve(1 + time * modes.squared, time * modes.slope**2, integrated, walls)


def diffuse(modes: WallModes, u: Array, time: Number, walls: Array | None = None) -> Array:
    """Return the coefficients of the solution v of `v - time * ∇²v = u`, with `walls` as in `implicit`."""
    lines = modes.lines
    return lines.coefficients(implicit(modes, time, lines.double_integral(lines.pairs(u)), walls))


def stokes(modes: WallModes, u: Array, time: Number, walls: Sequence[Array] | None = None) -> Array:
    """Return the coefficients of the solution v of `v - time * ∇²v + ∇p = u`, `∇·v = 0`.

    The components of u and v lie along the axis right before the grid axes. At the walls, v is the velocity of the
    walls. `walls` has this velocity along each axis but the first, as `implicit` takes it. It is zero except in the
    mean. `None` stands for walls at rest.
    """
    modes, time = modes.without_unit(time)
    lines, ndim, slope_along = modes.lines, modes.lines.ndim, modes.nabla.rise
    across, *along = map(lines.pairs, _vector.components(u, ndim))
    uniform = aligned(modes.is_uniform, across)
    # The double integral of the Laplacian of the normal velocity needs no derivative along the first axis.
    divergence = _vector.total(slope_along(axis, part) for axis, part in enumerate(along, 1))
    # The pressure is eliminated with the divergence of its gradient, and not with its Laplacian. So the divergence of
    # the velocity is zero in Nyquist modes, too.
    laplacian = -_vector.times(modes.squared_slopes, lines.double_integral(across))
    laplacian = laplacian - _vector.times(modes.slope, lines.integral(divergence))
    # In modes without first derivatives along the walls, the normal velocity and the normal vorticity vanish. In their
    # place, these modes hold the velocities along the walls, which solve the same kind of equation.
    unknown = [jnp.where(uniform, lines.double_integral(along[-1]), laplacian)]
    if ndim == 3:
        vorticity = slope_along(1, along[1]) - slope_along(2, along[0])
        unknown.append(lines.double_integral(jnp.where(uniform, along[0], vorticity)))
    # For the mean over planes, the unknowns are velocities: first along the last axis, then along the second one.
    moving = [None] * len(unknown) if walls is None else walls[::-1]
    solved = [implicit(modes, time, part, wall) for part, wall in zip(unknown, moving)]
    v = _velocity_across(
        modes, solved[0], implicit(modes, time, walls=jnp.ones((1, 2, *[1] * (ndim - 1)), modes.slope.dtype))
    )
    v = jnp.where(uniform, jnp.zeros((), v.dtype), v)
    slope = _vector.times(modes.slope, lines.derivative(v))
    inverse = _vector.inverse(modes.squared_slopes)
    along = [_vector.times(inverse, slope_along(axis, slope)) for axis in range(1, ndim)]
    if ndim == 3:
        turn = _vector.times(inverse, slope_along(2, solved[1])), -_vector.times(inverse, slope_along(1, solved[1]))
        along = [part + other for part, other in zip(along, turn)]
        along[0] = jnp.where(uniform, solved[1], along[0])
    along[-1] = jnp.where(uniform, solved[0], along[-1])
    return _vector.stack(map(lines.coefficients, (v, *along)), ndim)


def _velocity_across(modes: WallModes, laplacian: Array, free: Array) -> Array:
    """Return the normal velocity v whose `∂²v/∂x² - q² v` is `laplacian` plus multiples of `free`.

    q² is `modes.squared_slopes`.

    The multiples are chosen so that v and its normal derivative are zero at both walls. `laplacian` is zero at the
    walls. `free` solves the equation of the implicit step without a right-hand side.
    """
    lines = modes.lines
    v, added = (
        lines.solve(modes.squared_slopes, modes.slope**2, -lines.double_integral(part)) for part in (laplacian, free)
    )
    return v - _vector.times(added, _vector.times(1 / lines.wall_slopes(added), lines.wall_slopes(v)))
