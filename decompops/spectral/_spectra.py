"""Power spectra, cross-spectra, multipoles and energy spectra."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from .._basis.cosine import AbstractSeries
from .._basis.fourier import Fourier
from .._basis.points import Points
from .._common.blocks import axis_names
from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import check_axis
from .._common.host import host_array
from .._core.layout import check_global
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import as_field, check_fft, of_transformed, points_of_others
from ._shells import (
    Coordinates,
    modes_of,
    shell_sums,
    statistics_transform,
    step_along,
    wavenumber_bounds,
)


class PowerSpectrum(NamedTuple):
    """A power spectrum: averages over shells of |k|.

    - `k`: the mean |k| of the modes in each shell, in radians per unit of length, of shape `(bins,)`.
    - `power`: the mean power of the modes in each shell, of shape `(*batch, bins)`; zero for shells without modes.
    - `modes`: the number of modes of the full spectrum in each shell, of shape `(bins,)`.
    """

    k: Array
    power: Array
    modes: Array


def power_spectrum(
    fft: AbstractTransform, u: Shaped[Array | np.ndarray, "*field"], *, edges: Any = None
) -> PowerSpectrum:
    """Return the power spectrum of fields: `V |û(k)|² / N²`, averaged over shells of |k|.

    V is the volume of the box (the area in two dimensions), N is the number of points, and û is the unscaled discrete
    Fourier transform, `norm="backward"`. In three dimensions, the integral of the power spectrum over d³k / (2π)³ is
    the mean of |u|²; the power spectrum is an estimate of P(k) in the convention of cosmology. V and N include only the
    axes that `fft` transforms. The result is averaged over the other axes, with the quadrature weights of their bases.

    Between walls, where the basis is `Cosine` or `Sine`, the field continues beyond the walls like its cosines or
    sines. V and N belong to the continued field, which is twice as long, and the integral is again the mean of |u|²
    over the volume, as `fft.volume_mean` computes it. All components of u are expanded in the bases of `fft`. Fields
    with the basis `Chebyshev` have spectra along the periodic axes only: see `plane_spectra`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `u`: fields, such as `(*batch, nx, ny, nz)`.
    - `edges`: the bounds of the shells, in increasing order, in radians per unit of length. A mode belongs to a shell
        if `lower <= |k| < upper`. By default, the shells are centred on the multiples of the smallest wavenumber of the
        box, up to the smallest Nyquist wavenumber.

    **Returns:** a `PowerSpectrum`. Modes that `fft` does not keep belong to no shell.

    **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` has no `shape`, if one of its bases is
    `Chebyshev` or an orthogonal series, or if `edges` do not increase or are traced.
    """
    fft = transform_of_modes(fft)
    return _spectrum(fft, as_field("u", u, fft), None, wavenumber_bounds(fft, edges))


def cross_spectrum(
    fft: AbstractTransform,
    u: Shaped[Array | np.ndarray, "*u"],
    v: Shaped[Array | np.ndarray, "*v"],
    *,
    edges: Any = None,
) -> PowerSpectrum:
    """Return the cross-spectrum of two fields: the real part of `V û(k) conj(v̂(k)) / N²`, averaged over shells of |k|.

    Everything else is as in `power_spectrum`; the power spectrum of a field is its cross-spectrum with itself. In three
    dimensions, the integral of the cross-spectrum over d³k / (2π)³ is the mean of `Re(u conj(v))`. If both fields are
    real, the imaginary parts of the modes k and -k cancel in each shell.

    !!! example

        ```python
        cross = spectral.cross_spectrum(fft, u, v).power
        own, other = spectral.power_spectrum(fft, u).power, spectral.power_spectrum(fft, v).power
        coherence = cross / jnp.sqrt(own * other)  # -1 to 1
        transfer = cross / own  # The filter of u that is closest to v, by least squares.
        ```

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `u`, `v`: fields, such as `(*batch, nx, ny, nz)`, whose batch axes broadcast.
    - `edges`: the bounds of the shells, as for `power_spectrum`.

    **Returns:** a `PowerSpectrum`, whose `power` is the cross-spectrum.

    **Raises:** the errors of `power_spectrum`.
    """
    fft = transform_of_modes(fft)
    return _spectrum(fft, as_field("u", u, fft), as_field("v", v, fft), wavenumber_bounds(fft, edges))


def power_multipoles(
    fft: AbstractTransform,
    u: Shaped[Array | np.ndarray, "*u"],
    v: Shaped[Array | np.ndarray, "*v"] | None = None,
    *,
    axis: str | int = "z",
    orders: Sequence[int] = (0, 2, 4),
    edges: Any = None,
) -> PowerSpectrum:
    """Return the Legendre multipoles of the power spectrum about an axis: `(2l + 1) <P(k) L_l(μ)>` over shells of |k|.

    P(k) is the power of each mode in the convention of `power_spectrum`, or with `v` of `cross_spectrum`. L_l is the
    Legendre polynomial of order l, and μ is the cosine of the angle between k and the axis. The mean is over the modes
    of the shell. So the multipole of order 0 is the power spectrum, and the power in the direction μ is about the sum
    of `P_l(|k|) L_l(μ)` over l. The mode k = 0 has no direction, and contributes to the order 0 only.

    Source: the estimator of Yamamoto et al., Publ. Astron. Soc. Japan 58, 93 (2006), with the factor 2l + 1 as in Hand
    et al., J. Cosmol. Astropart. Phys. 07 (2017) 002, and with one line of sight for the whole box. In a shell of few
    modes, Legendre polynomials are not orthogonal: an isotropic spectrum has multipoles of order 2 and more there.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `u`: fields, such as `(*batch, nx, ny, nz)`.
    - `v`: other fields, for the multipoles of a cross-spectrum. Batch axes of u and v broadcast.
    - `axis`: the axis, such as the line of sight: its name or its number. `fft` must transform it.
    - `orders`: the orders l: even integers. Odd multipoles of real fields are zero.
    - `edges`: the bounds of the shells, as for `power_spectrum`.

    **Returns:** a `PowerSpectrum`, whose `power` has the shape `(*batch, orders, bins)`.

    **Raises:** the errors of `power_spectrum`; `ValueError` if the axis is unknown or not transformed, or if `orders`
    are not even integers of at least zero.
    """
    fft = transform_of_modes(fft)
    about = check_axis("axis", axis, fft.decomposition.ndim)
    if about not in fft.transformed:
        raise ValueError(f"`axis` must be an axis that `fft` transforms; got {axis!r} and the bases {fft.bases}.")
    numbers = host_array(orders, "orders")
    fits = numbers.ndim == 1 and numbers.size and np.issubdtype(numbers.dtype, np.integer)
    if not fits or (numbers < 0).any() or (numbers % 2).any():
        raise ValueError(f"`orders` must be one or more even integers of at least zero; got {orders!r}.")
    other = None if v is None else as_field("v", v, fft)
    return _spectrum(fft, as_field("u", u, fft), other, wavenumber_bounds(fft, edges), tuple(numbers.tolist()), about)


class EnergySpectrum(NamedTuple):
    """An energy spectrum: densities of energy in shells of |k|.

    - `k`: the mean |k| of the modes in each shell, in radians per unit of length, of shape `(bins,)`.
    - `energy`: the energy per unit of wavenumber in each shell, of shape `(*batch, bins)`.
    - `width`: the width of each shell, in radians per unit of length, of shape `(bins,)`.
    """

    k: Array
    energy: Array
    width: Array


def energy_spectrum(
    fft: AbstractTransform, u: Shaped[Array | np.ndarray, "*field"], *, edges: Any = None
) -> EnergySpectrum:
    """Return the energy spectrum E(k) of a vector field: the energy of the modes in each shell, per unit of wavenumber.

    The energy of a mode is half of its contribution to the mean of |u|². So the sum of `energy * width` over all shells
    is half of the mean of |u|² over the volume, exactly: the kinetic energy of a velocity field, per unit of mass.
    This is the discrete form of the energy-spectrum function of Pope, Turbulent Flows (2000), section 6.5.

    The energy is summed over the modes of a shell, as it is, and not scaled to the volume of the shell. As the number
    of modes in a thin shell varies, so does the spectrum of white noise. For a smoother curve, scale the mean:
    in three dimensions, `2π k² P(k) / (2π)³` with P(k) of `power_spectrum`, summed over the components.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `u`: fields of one or more components, such as `(*batch, 3, nx, ny, nz)`.
    - `edges`: the bounds of the shells, as for `power_spectrum`. By default, the shells have the width of the smallest
        wavenumber and are centred on its multiples, from zero on, and every mode has a shell. The shell of number n is
        then about n times the smallest wavenumber. The first shell has the mean flow alone. Beyond the smallest
        Nyquist wavenumber, the grid has only some of the modes of each shell.

    **Returns:** an `EnergySpectrum`.

    **Raises:** the errors of `power_spectrum`; `ValueError` if u has no axis of components, or if an edge is infinite.
    """
    fft = transform_of_modes(fft)
    u = as_field("u", u, fft)
    if u.ndim <= fft.decomposition.ndim:
        lengths = ", ".join(f"n{axis}" for axis in axis_names(fft.decomposition.ndim))
        raise ValueError(
            f"`u` must have an axis of components before the grid, such as (*batch, 3, {lengths}); got {u.shape}. For "
            "a scalar, pass `u[None]`."
        )
    return _energy_spectrum(fft, u, wavenumber_bounds(fft, edges, complete=True))


def plane_spectra(
    fft: AbstractTransform, u: Shaped[Array | np.ndarray, "*field"], *, edges: Any = None
) -> PowerSpectrum:
    """Return the power spectrum in each plane parallel to the walls: see `power_spectrum`.

    All axes except one must be periodic. The other axis may have any basis, such as `Chebyshev`, `Cells`, `Cosine` or
    `Points`. Each of its points has a plane, and each plane has a spectrum along the periodic axes. V and N include
    only these axes. The integral of a spectrum is the mean of |u|² over its plane.

    !!! example

        ```python
        basis = dops.Chebyshev()
        bases = (basis, dops.Fourier(), dops.Fourier(half=True))
        fft = dops.Transform(mesh, shape=u.shape, bases=bases, box=dops.Box((2.0, 6.0, 3.0)))
        spectra = spectral.plane_spectra(fft, u)  # power of shape (nx, bins)
        heights = 2 * basis.points(u.shape[0])
        near_the_wall = spectra.power[np.abs(heights - 0.1).argmin()]
        over_the_volume = (basis.weights(u.shape[0])[:, None] * spectra.power).sum(axis=0)
        ```

    **Arguments:**

    - `fft`: the transform, built with a `shape`, such as the transform of a `pde.Channel`.
    - `u`: fields, such as `(*batch, nx, ny, nz)`.
    - `edges`: the bounds of the shells of |k|, as for `power_spectrum`; k has components along the periodic axes only.

    **Returns:** a `PowerSpectrum`, whose `power` has the shape `(*batch, n, bins)` for n planes. `modes` counts the
    modes of one plane.

    **Raises:** the errors of `power_spectrum`; `ValueError` unless all axes except one are periodic.
    """
    shape = check_fft(fft)
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    walls = [axis for axis, basis in enumerate(fft.bases) if not isinstance(basis, Fourier)]
    if len(walls) != 1 or len(shape) == 1:
        raise ValueError(
            f"`fft` must have one axis that is not periodic, and one or more with the basis `Fourier`; got the bases "
            f"{fft.bases}. For the spectrum along all axes, call `power_spectrum`."
        )
    (across,) = walls
    options: dict[str, Any] = {"norm": "forward", "nyquist": False, "axis_contiguous": False}
    if fft.bases[across].is_transformed:
        options["bases"] = _replaced(fft.bases, across, Points())
        options["modes"] = fft.modes and _replaced(fft.modes, across, shape[across])
    fft = fft.replace(**options)
    return _spectrum(fft, as_field("u", u, fft), None, wavenumber_bounds(fft, edges), across=across)


def _replaced(values: tuple, place: int, value: Any) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


def transform_of_modes(fft: AbstractTransform) -> AbstractTransform:
    """Return the transform to compute with. Raises an error unless each of its modes has one wavenumber."""
    check_fft(fft)
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    for axis, name in enumerate(axis_names(fft.decomposition.ndim)):
        basis = fft.bases[axis]
        if not basis.is_diagonal:
            raise ValueError(
                f"`fft` must have bases whose modes each have one wavenumber, such as `Fourier` or `Cosine`; got "
                f"{basis} along {name}. For the spectrum in each plane parallel to the walls, call `plane_spectra`."
            )
        if isinstance(basis, AbstractSeries) and basis.orthogonal:
            raise ValueError(
                f"`fft` must have bases without orthogonal weights; got {basis} along {name}. Use "
                f"`{type(basis).__name__}({basis.type})`."
            )
    return statistics_transform(fft)


def real_product(a: Array, b: Array) -> Array:
    """Return the real part of `a conj(b)`. Batch axes broadcast."""
    a, b = aligned(a, b), aligned(b, a)
    return a.real * b.real + a.imag * b.imag


@eqx.filter_jit
def _spectrum(
    fft: AbstractTransform,
    u: Array,
    v: Array | None,
    bounds: tuple[float, ...],
    orders: tuple[int, ...] | None = None,
    about: int = -1,
    across: int | None = None,
) -> PowerSpectrum:
    """Return the power spectrum of u, or the cross-spectrum of u and v.

    With `orders`, return the multipoles about the axis `about`. With `across`, return one spectrum for each point along
    this axis instead of the mean.
    """
    spectrum = fft(u)
    product = real_product(spectrum, spectrum if v is None else fft(v))
    factors = None if orders is None else lambda k: _legendre(orders, k, about)
    return shell_means(fft, product, bounds, factors=factors, across=across)


def shell_means(fft: AbstractTransform, product: Array, bounds: tuple[float, ...], **options: Any) -> PowerSpectrum:
    """Return the power spectrum from a `product` of spectra of `fft`, such as squares of absolute values.

    The norm of `fft` must be "forward". `options` are those of `shell_sums`.
    """
    total, k, modes = shell_sums(modes_of(fft, options.get("across")), product, bounds, **options)
    if options.get("across") is not None:
        k, modes = k[0], modes[0]  # All planes have the same modes.
    mean = 1 / jnp.maximum(modes, 1)
    return PowerSpectrum(k * mean, _vector.times_each(_periods(fft), _vector.times(mean, total)), modes)


def _legendre(orders: tuple[int, ...], k: Coordinates, axis: int) -> list[Array]:
    """Return `(2l + 1) L_l(μ)` for each order l; at k = 0, one for the order 0 and zero for the others."""
    length = _vector.length(k)
    cosine = k[axis] / jnp.where(length == 0, 1, length)
    found = [jnp.ones_like(length), cosine]
    for n in range(1, max(orders)):  # Bonnet's recursion.
        found.append(((2 * n + 1) * cosine * found[n] - n * found[n - 1]) / (n + 1))
    return [jnp.where(length == 0, float(order == 0), (2 * order + 1) * found[order]) for order in orders]


@eqx.filter_jit
def _energy_spectrum(fft: AbstractTransform, u: Array, bounds: tuple[float, ...]) -> EnergySpectrum:
    spectrum = fft(u)
    total, k, modes = shell_sums(modes_of(fft), real_product(spectrum, spectrum), bounds)
    dtype, width = modes.dtype, np.diff(bounds)
    # Every point along an axis that is not transformed has its own modes.
    share = jnp.asarray(1 / (2 * points_of_others(fft) * width), dtype)
    return EnergySpectrum(
        k / jnp.maximum(modes, 1), _vector.times(share, jnp.sum(total, -2)), jnp.asarray(width, dtype)
    )


def _periods(fft: AbstractTransform) -> list[Number]:
    """Return the length of one period of a field of `fft`, along each axis that `fft` transforms."""
    # Modes have the distance `step` along an axis of length one. So a field that continues beyond its walls repeats
    # itself at the distance `2π / step`.
    along = zip(*(of_transformed(fft, values) for values in (fft.box_lengths, fft.bases, check_fft(fft))))
    return [length * (2 * math.pi / step_along(basis, n)) for length, basis, n in along]
