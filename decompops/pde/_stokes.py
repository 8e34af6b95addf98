"""Implicit steps of flows and of heat between two walls, for each Fourier mode along the walls by itself.

Pressure is eliminated, as Kim, Moin and Moser do (J. Fluid Mech. 177, 1987): unknown are the velocity across the
channel and the vorticity about that axis, from which the velocity along the walls follows. Its divergence is then zero
to rounding. Both conditions that each wall sets for the velocity across are met by adding a solution of the homogeneous
equations (the influence matrix of Kleiser and Schumann, 1980).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from .._box import Number
from ..spectral import _vector
from ..spectral._chebyshev import Lines


class WallModes(NamedTuple):
    """The modes of a spectrum between two walls.

    - `lines`: the Chebyshev coefficients of each mode along the first axis.
    - `k`: the wavenumbers along the other axes, broadcastable against coefficients and pairs.
    - `slope`: `dξ/dx`, by which a derivative with respect to ξ is multiplied.
    """

    lines: Lines
    k: tuple[Array, ...]
    slope: Array

    @property
    def squared(self) -> Array:
        """The square of the wavenumbers along the walls."""
        return _vector.squared(self.k)

    @property
    def is_mean(self) -> Array:
        """Where the wavenumbers along the walls are zero."""
        return self.squared == 0

    def across(self, u: Array) -> Array:
        """The derivative across, of coefficients."""
        lines = self.lines
        return lines.coefficients(_vector.times(self.slope, lines.derivative(lines.pairs(u))))

    def along(self, axis: int, u: Array) -> Array:
        """The derivative along axis 1, 2, ... of the grid."""
        return _vector.times_unit(1j, self.k[axis - 1], u)


def implicit(modes: WallModes, time: Number, integrated: Array | None = None, walls: Array | None = None) -> Array:
    """The solution of `u - time * ∇²u = f`, from `double_integral(f)`, with the `wall_sums` `walls`: see `Lines.solve`.

    `time` is a time step times a diffusivity.
    """
    time = jnp.asarray(time, modes.slope.dtype)
    return modes.lines.solve(1 + time * modes.squared, time * modes.slope**2, integrated, walls)


def diffuse(modes: WallModes, u: Array, time: Number, walls: Array | None = None) -> Array:
    """The solution of `v - time * ∇²v = u` with given values at the walls, in coefficients."""
    lines = modes.lines
    return lines.coefficients(implicit(modes, time, lines.double_integral(lines.pairs(u)), walls))


def stokes(modes: WallModes, u: Array, time: Number) -> Array:
    """The divergence-free v, zero at the walls, with `v - time * ∇²v + ∇p = u` for some p, in coefficients.

    Vectors have their components in the axis before the grid.
    """
    lines, ndim, mean = modes.lines, modes.lines.ndim, modes.is_mean
    across, *along = map(lines.pairs, _vector.components(u, ndim))
    # The Laplacian of the velocity across, of which two integrals are known without a derivative.
    divergence = _vector.total(modes.along(axis, part) for axis, part in enumerate(along, 1))
    laplacian = -_vector.times(modes.squared, lines.double_integral(across))
    laplacian = laplacian - _vector.times(modes.slope, lines.integral(divergence))
    # Averaged over the walls, the velocity across and the vorticity vanish. In their place, that mode holds the mean
    # velocities along the walls, which solve the same kind of equation.
    unknown = [jnp.where(mean, lines.double_integral(along[-1]), laplacian)]
    if ndim == 3:
        vorticity = modes.along(1, along[1]) - modes.along(2, along[0])
        unknown.append(lines.double_integral(jnp.where(mean, along[0], vorticity)))
    solved = [implicit(modes, time, part) for part in unknown]
    v = _velocity_across(
        modes, solved[0], implicit(modes, time, walls=jnp.ones((1, 2, *[1] * (ndim - 1)), modes.slope.dtype))
    )
    v = jnp.where(mean, jnp.zeros((), v.dtype), v)
    slope = _vector.times(modes.slope, lines.derivative(v))
    inverse = _vector.inverse(modes.squared)
    along = [_vector.times(inverse, modes.along(axis, slope)) for axis in range(1, ndim)]
    if ndim == 3:
        turn = _vector.times(inverse, modes.along(2, solved[1])), -_vector.times(inverse, modes.along(1, solved[1]))
        along = [part + other for part, other in zip(along, turn)]
        along[0] = jnp.where(mean, solved[1], along[0])
    along[-1] = jnp.where(mean, solved[0], along[-1])
    return _vector.stack(map(lines.coefficients, (v, *along)), ndim)


def _velocity_across(modes: WallModes, laplacian: Array, free: Array) -> Array:
    """The velocity across, from its Laplacian. At both walls the velocity and its derivative across are zero.

    The Laplacian comes with zero at the walls. The velocity meets its four conditions once the right multiples of
    `free`, which solves the implicit step's equation without a right-hand side, are added to the Laplacian.
    """
    lines = modes.lines
    v, added = (lines.solve(modes.squared, modes.slope**2, -lines.double_integral(part)) for part in (laplacian, free))
    return v - _vector.times(added, _vector.times(1 / lines.wall_slopes(added), lines.wall_slopes(v)))
