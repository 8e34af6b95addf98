"""Statistics of turbulent flows: energy transfer, scales and structure functions."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Shaped

from .._basis.fourier import field_dtype
from .._common.box import Number
from .._common.check import check_axes, check_count, check_number
from .._common.host import device_array, host_array
from .._core.decomposition import Decomposition
from .._core.layout import check_global
from .._operator.placed import Placed
from .._operator.transform import AbstractTransform
from .._operator.transpose import Transpose
from . import _vector
from ._check import as_field, check_fft, check_periodic, check_real, points_of_others
from ._dealiasing import AbstractDealiasing, Pad, check_dealiasing
from ._modes import check_components, inner_transform, slope_units
from ._shells import known_lengths, modes_of, shell_sums, summed_over_grid, wavenumber_bounds
from ._spectra import real_product, transform_of_modes


EXACT = Pad(3 / 2)


class EnergyTransfer(NamedTuple):
    """The transfer of energy between shells of |k|.

    - `k`: the mean |k| of the modes in each shell, in radians per unit of length, of shape `(bins,)`.
    - `transfer`: T, the rate at which each shell gains energy from all others, per unit of wavenumber, of shape
        `(*batch, bins)`.
    - `flux`: Π, the rate at which energy leaves all modes below the upper bound of each shell, of shape `(*batch,
        bins)`.
    - `width`: the width of each shell, in radians per unit of length, of shape `(bins,)`.
    """

    k: Array
    transfer: Array
    flux: Array
    width: Array


def energy_transfer(
    fft: AbstractTransform,
    u: Shaped[Array | np.ndarray, "*field"],
    *,
    edges: Any = None,
    dealiasing: AbstractDealiasing | None = EXACT,
) -> EnergyTransfer:
    """Return the transfer of kinetic energy T(k) by the convection of an incompressible flow, and its flux Π(k).

    T(k) is the sum of `-Re(û* · F(∇·(u u)))` over the modes of a shell, per unit of wavenumber, where F is the
    transform. It is the term of convection in the balance `∂E/∂t = T - 2 ν k² E + ...` of the spectrum E(k) of
    `energy_spectrum` (Pope, Turbulent Flows, 2000, section 6.6). The flux through the upper bound of
    a shell is minus the sum of `transfer * width` over all modes below this bound. The convection conserves energy, so
    the flux through the last of the default shells is zero to rounding. The only communication besides the transforms
    is an all-reduce of the sums.

    **Arguments:**

    - `fft`: the periodic transform of the components of u, built with `real=True` and a `shape`.
    - `u`: velocities without divergence, such as `(*batch, 3, nx, ny, nz)`.
    - `edges`: the bounds of the shells, with the meaning and the default of `energy_spectrum`.
    - `dealiasing`: the rule for the products of velocities. `Pad(3/2)` is exact for all modes of `fft`.

    **Returns:** an `EnergyTransfer`.

    **Raises:** the errors of `energy_spectrum`; `TypeError` if `dealiasing` is not a rule; `ValueError` if `fft` is not
    periodic, or if `u` does not have a component for each axis.
    """
    u = as_flow(fft, u)
    check_dealiasing("dealiasing", dealiasing)
    bounds = wavenumber_bounds(fft, edges, complete=True)
    return _transfer(transform_of_modes(fft), u, bounds, dealiasing)


@eqx.filter_jit
def _transfer(fft: AbstractTransform, u: Array, bounds: tuple[float, ...], rule: Any) -> EnergyTransfer:
    transform, ndim = inner_transform(fft, rule), fft.decomposition.ndim
    state = transform(u)
    product = -jnp.sum(real_product(state, _convection(transform, state, rule)), -ndim - 1)
    # The flux through a bound includes the modes below the first shell.
    whole = bounds if bounds[0] <= 0 else (0.0, *bounds)
    total, k, modes = shell_sums(modes_of(transform), product, whole)
    total = total / points_of_others(fft)
    first, width = len(whole) - len(bounds), jnp.asarray(np.diff(bounds), modes.dtype)
    mean = k[first:] / jnp.maximum(modes[first:], 1)
    transfer = _vector.times(1 / width, total[..., first:])
    return EnergyTransfer(mean, transfer, -jnp.cumsum(total, -1)[..., first:], width)


def _convection(transform: AbstractTransform, state: Array, rule: AbstractDealiasing | None) -> Array:
    """Return the spectrum of `∇·(u u)`, from the spectrum of u."""
    masked = (lambda spectrum: spectrum) if rule is None else functools.partial(rule.masked, transform)
    products, ndim = transform if rule is None else rule.of_products(transform), transform.decomposition.ndim
    velocity = _vector.components(products.inverse(masked(state)), ndim)
    pairs = list(itertools.combinations_with_replacement(range(ndim), 2))
    tensor = masked(products(_vector.stack((velocity[i] * velocity[j] for i, j in pairs), ndim)))
    k = transform.wavenumbers(dtype=jnp.finfo(state.dtype).dtype, nyquist=False)
    nabla = _vector.Nabla(k, slope_units(transform))
    return nabla.divergence_of_tensor(dict(zip(pairs, _vector.components(tensor, ndim))))


class TurbulenceScales(NamedTuple):
    """The scales of a turbulent flow: one number for each velocity field, of shape `(*batch,)`.

    - `energy`: K, the kinetic energy of the fluctuations per unit of mass: half the mean of |u|², without the mean
        flow.
    - `dissipation`: ε, the mean of `ν |∇u|²`.
    - `velocity`: u', the root mean square of one component: `√(2 K / 3)` in three dimensions.
    - `integral_scale`: the integral of the longitudinal correlation.
    - `taylor_scale`: λ, from the curvature of the longitudinal correlation at zero: `√(15 ν / ε) u'`.
    - `kolmogorov_scale`, `kolmogorov_time`: η = `(ν³ / ε)^(1/4)`, and `√(ν / ε)`.
    - `turnover_time`: the integral scale divided by u'.
    - `reynolds`: the Reynolds number of the Taylor scale, `u' λ / ν`.
    """

    energy: Array
    dissipation: Array
    velocity: Array
    integral_scale: Array
    taylor_scale: Array
    kolmogorov_scale: Array
    kolmogorov_time: Array
    turnover_time: Array
    reynolds: Array


def turbulence_scales(
    fft: AbstractTransform, u: Shaped[Array | np.ndarray, "*field"], viscosity: Number
) -> TurbulenceScales:
    """Return the energy, the dissipation, and the scales of length and time of an incompressible turbulent flow.

    All of them are sums over the modes, exact for the given field: the sums of E(k), of `k² E(k)` and of `E(k) / k`.
    The integral scale is `π / (2 u'²)` times the last sum. The integral scale and the Taylor scale are the ones of
    isotropic turbulence; for a flow with a direction, they are averages over directions (Pope, Turbulent Flows, 2000,
    sections 6.3 and 6.5). In two dimensions, `u' = √K`, the factor of the integral scale is `2 / u'²`, and 8 replaces
    15 in the Taylor scale. The only communication besides the transform is an all-reduce of the sums.

    **Arguments:**

    - `fft`: the periodic transform of the components of u, built with `real=True` and a `shape`.
    - `u`: velocities without divergence, such as `(*batch, 3, nx, ny, nz)`.
    - `viscosity`: ν, a positive number. It may be traced.

    **Returns:** a `TurbulenceScales`.

    **Raises:** `TypeError` if `fft` is not a transform or `viscosity` is not a number; `ValueError` if `fft` has no
    `shape`, takes complex fields, is not periodic, or does not have two or three axes, or if `u` does not have a
    component for each axis.
    """
    u = as_flow(fft, u)
    if fft.decomposition.ndim not in (2, 3):
        raise ValueError(f"`fft` must transform a grid of two or three axes; got {fft!r}.")
    check_number("viscosity", viscosity, positive=True)
    return _scales(transform_of_modes(fft), u, viscosity)


@eqx.filter_jit
def _scales(fft: AbstractTransform, u: Array, viscosity: Number) -> TurbulenceScales:
    spectrum, ndim = fft(u), fft.decomposition.ndim
    squares = jnp.sum(real_product(spectrum, spectrum), -ndim - 1) / 2

    def factors(k: Any) -> tuple[Array, ...]:
        length = _vector.length(k)
        return jnp.ones_like(length), length**2, _vector.inverse(length)

    # All modes except the mean. The bound is far below all wavenumbers whose squares are normal numbers.
    fluctuations = (1e3 * float(jnp.finfo(squares.dtype).tiny), math.inf)
    sums, _, _ = shell_sums(modes_of(fft), squares, fluctuations, factors=factors)
    energy, strain, long = (sums[..., i, 0] / points_of_others(fft) for i in range(3))
    nu = _vector.cast(viscosity, u)
    velocity = jnp.sqrt(2 * energy / ndim)
    dissipation = 2 * nu * strain
    integral = (math.pi / 2 if ndim == 3 else 2) * long / velocity**2
    taylor = jnp.sqrt(ndim * (ndim + 2) * nu / dissipation) * velocity
    small, short = nu**0.75 / dissipation**0.25, jnp.sqrt(nu / dissipation)  # A cube could leave the range of floats.
    reynolds = velocity * taylor / nu
    return TurbulenceScales(
        energy, dissipation, velocity, integral, taylor, small, short, integral / velocity, reynolds
    )


class StructureFunctions(NamedTuple):
    """Structure functions: moments of the differences of a velocity at two points.

    - `r`: the distances of the two points, of shape `(separations,)`.
    - `longitudinal`: the moments of the component along the separation, of shape `(*batch, orders, separations)`.
    - `transverse`: the moments of the other components, averaged over them, of the same shape; NaN on a
        grid of one axis, which has no other components.
    """

    r: Array
    longitudinal: Array
    transverse: Array


def structure_functions(
    fft: AbstractTransform,
    u: Shaped[Array | np.ndarray, "*field"],
    separations: Sequence[int],
    *,
    orders: Sequence[int] = (2, 3),
    axes: Any = None,
) -> StructureFunctions:
    """Return the longitudinal and the transverse structure functions of a velocity: `<(u_i(x + r e_j) - u_i(x))^p>`.

    The mean is over all points x and over the directions e_j of the given axes. The longitudinal function has i = j,
    the transverse one all i ≠ j. Odd moments have a sign: in the inertial range of isotropic turbulence, the
    longitudinal moment of order 3 is `-4/5 ε r` (Kolmogorov, Dokl. Akad. Nauk SSSR 32, 1941). For each axis, the field
    is transposed once, so that each device has whole lines; the shifts along these lines need no communication.

    **Arguments:**

    - `fft`: the periodic transform of the components of u, built with `real=True` and a `shape`.
    - `u`: velocities such as `(*batch, 3, nx, ny, nz)`.
    - `separations`: the distances of the two points, in cells: integers.
    - `orders`: the powers p: positive integers.
    - `axes`: the axes along which the points are separated, by name or number; by default all. The cells must have the
        same length along these axes.

    **Returns:** a `StructureFunctions`.

    **Raises:** `TypeError` if `fft` is not a transform or `u` is complex; `ValueError` if `fft` has no `shape`, takes
    complex fields or is not periodic, if `u` does not have a component for each axis, if `separations` or `orders` are
    not integers, or if the cells have different lengths along the axes.
    """
    u = as_flow(fft, u)
    ndim = fft.decomposition.ndim
    along = tuple(range(ndim)) if axes is None else check_axes("axes", axes, ndim)
    cells = host_array(separations, "separations")
    if cells.ndim != 1 or not cells.size or not np.issubdtype(cells.dtype, np.integer):
        raise ValueError(f"`separations` must be one or more integers, in cells; got {separations!r}.")
    powers = tuple(check_count("orders", order) for order in orders)
    lengths = [length / n for length, n in zip(known_lengths(fft), check_fft(fft))]
    spacing = [lengths[axis] for axis in along]
    if not np.allclose(spacing, spacing[0], rtol=1e-6):
        raise ValueError(f"`axes` must be axes along which cells have the same length; got the lengths {spacing}.")
    r = spacing[0] * cells
    # Differences of unsigned integers wrap around, and sums in half precision overflow.
    return _structure(fft, u.astype(field_dtype(u.dtype)), tuple(cells.tolist()), tuple(r.tolist()), powers, along)


@eqx.filter_jit
def _structure(
    fft: AbstractTransform,
    u: Array,
    cells: tuple[int, ...],
    r: tuple[float, ...],
    orders: tuple[int, ...],
    axes: tuple[int, ...],
) -> StructureFunctions:
    dec = Decomposition(fft.decomposition, pad=True)  # Lines along another axis may need padding.
    ndim, shifts = dec.ndim, jnp.asarray(cells, np.int32)

    def of_axis(axis: int) -> Array:
        """Return the sums of the powers of the differences of each component, of shape (*batch, components, p, r)."""
        lines = Placed(dec)(u) if axis == ndim - 1 else Transpose(dec, -1, axis)(u)
        blocks = dec.pencil(axis, dec.shape)

        def moments(block: Array) -> tuple[Array]:
            def of_shift(shift: Array) -> Array:
                difference = jnp.roll(block, -shift, axis - ndim) - block  # Padding stays zero.
                return jnp.stack([jnp.sum(difference**p, range(-ndim, 0)) for p in orders], -1)

            return (jnp.moveaxis(lax.map(of_shift, shifts), 0, -1),)

        return summed_over_grid("structure_functions", dec, blocks, moments, lines, (2,))[0]

    moments = [_vector.components(of_axis(axis) / math.prod(dec.shape), 2) for axis in axes]
    own = [parts[axis] for axis, parts in zip(axes, moments)]
    # These are added up, because the sum of all components minus `own` would keep the rounding errors of `own`. They
    # may be larger than the other components.
    others = [part for axis, parts in zip(axes, moments) for i, part in enumerate(parts) if i != axis]
    longitudinal = _vector.total(own) / len(own)
    transverse = _vector.total(others) / len(others) if others else jnp.nan * longitudinal
    return StructureFunctions(jnp.asarray(r, longitudinal.dtype), longitudinal, transverse)


def as_flow(fft: Any, u: Any) -> Array:
    """Return `u` as an array. Raises an error unless it has the shape of a global velocity on a periodic grid."""
    ndim = len(check_periodic(fft, real=True))
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    u = device_array(u, "u")
    check_components("vector", u, ndim, "u")
    check_real("u", u)
    return as_field("u", u, fft)
