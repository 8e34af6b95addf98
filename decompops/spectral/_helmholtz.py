"""`HelmholtzKernel`: the outgoing Green's function of the Helmholtz equation in open space."""

import math
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._common.box import Number
from .._common.check import check_number
from ._bessel import j0, j1, y0, y1
from ._green import (
    AbstractGreen,
    Method,
    mean_of_inverse,
    mean_of_logarithm,
    root,
    screened_symbol,
    screened_values,
    sinc,
)


class HelmholtzKernel(AbstractGreen):
    """The outgoing Green's function of the Helmholtz equation: the solution u of `(-κ² - ∇²) u = f` that radiates.

    With three open axes, the kernel is `exp(iκr) / 4πr`; with two, `i H0(κr) / 4` with the Hankel function of the first
    kind; with one, `i exp(iκ|x|) / 2κ`. Fields are complex. Waves have the time factor `exp(-iωt)`. A wave along the
    periodic axes with the wavenumber q leaves the others `κ² - q²`: it radiates if `q < κ`, and decays if `q > κ`. If
    q equals κ, there is no solution (the anomaly of Rayleigh and Wood).

    **Arguments:**

    - `wavenumber`: κ, a real number with the unit 1/length. It may be traced, as in `YukawaKernel`. A negative one
        gives the incoming wave.
    - `method`: the same as in `PoissonKernel`.

    **Raises:** `ValueError`, where the `Convolution` is built, if a wave along the periodic axes has the wavenumber κ.
    If κ or the box is traced, the result is then not finite.
    """

    wavenumber: Number
    method: Method = eqx.field(static=True, default="truncated")
    is_complex: ClassVar[bool] = True

    def __check_init__(self):
        check_number("wavenumber", self.wavenumber)

    @property
    def resonance(self) -> Number:
        return self.wavenumber

    def odd_axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None,)

    def truncated(self, axes: int, squared: Array, periodic: Array, reach: Number, area: Number) -> Array:
        if axes == 3:
            return _radiating_symbol(3, squared, jnp.asarray(self.wavenumber, squared.dtype), reach, area)
        kappa, q = self._parts(periodic)
        decays = screened_symbol(axes, squared, q, reach, area)
        return self._joined(_radiating_symbol(axes, squared, kappa, reach, area), decays, periodic)

    def sampled(self, squared: Array, periodic: Array, spacing: Sequence[Number]) -> Array:
        if len(spacing) == 3:
            return _radiating_values(squared, jnp.asarray(self.wavenumber, squared.dtype), spacing)
        kappa, q = self._parts(periodic)
        decays = screened_values(squared, q, spacing)
        return self._joined(_radiating_values(squared, kappa, spacing), decays, periodic)

    def _remaining(self, periodic: Array) -> Array:
        """Return the square of the wavenumber that is left for the open axes."""
        return jnp.square(jnp.asarray(self.wavenumber, periodic.dtype)) - periodic

    def _parts(self, periodic: Array) -> tuple[Array, Array]:
        """Return the wavenumber of waves that radiate, and the screening of the others. Unused values are 1."""
        left = self._remaining(periodic)
        return jnp.sqrt(jnp.where(left >= 0, left, 1)), jnp.sqrt(jnp.where(left < 0, -left, 1))

    def _joined(self, radiates: Array, decays: Array, periodic: Array) -> Array:
        sign = jnp.sign(jnp.asarray(self.wavenumber, periodic.dtype))
        is_wave = self._remaining(periodic) >= 0
        real = jnp.where(is_wave, radiates.real, decays)
        return lax.complex(real, jnp.where(is_wave, sign * radiates.imag, jnp.zeros_like(real)))


def _radiating_symbol(axes: int, squared: Array, kappa: Array, reach: Number, area: Number) -> Array:
    """Return the Fourier transform of the outgoing Green's function of `-κ² - ∇²` on `axes` axes, cut off at `reach`.

    `squared` is the square of the wavenumber along the open axes, and `area` the product of the periods along them.
    """
    s = root(squared)

    def integral(k: Array) -> Array:  # of exp(ikr) up to the reach
        half = k * reach / 2
        return _wave(half, reach * sinc(half))

    if axes != 2:  # The integral of sin(s r) exp(iκr) / s, as a difference of two integrals without singularities.
        safe = jnp.where(s == 0, 1, s)
        waves = (integral(kappa + s) - integral(kappa - s)) / lax.complex(jnp.zeros_like(safe), 2 * safe)
        symbol = jnp.where(s == 0, _first_moment(kappa * reach) * reach**2, waves)
        if axes == 3:
            return symbol
        # Without the jump at the reach, as in `screened_symbol`.
        jump = _wave(kappa * reach, area / (2 * kappa))
        return symbol + jnp.where(s == 0, lax.complex(-jump.imag, jump.real), 0)

    # The integral of i π r J0(s r) H0(κr) / 2 (Gradshteyn and Ryzhik, 5.54).
    edge = kappa * reach
    hankel = [(j0(edge), y0(edge)), (kappa * reach * j1(edge), kappa * reach * y1(edge))]

    def times_hankel(first: Array | float, second: Array | float) -> Array:  # i π / 2 (first H0 + second H1)
        real, imag = (first * h0 + second * h1 for h0, h1 in zip(*hankel))
        return lax.complex(-imag, real) * (math.pi / 2)

    near = jnp.abs(s - kappa) * reach < 1
    y = s * reach
    far = _times(1 + times_hankel(y * j1(y), -j0(y)), 1 / jnp.where(near, 1, (s - kappa) * (s + kappa)))
    # Near κ, the numerator is the integral of its derivative, so that nothing cancels. A loop compiles in less time.
    rule = [jnp.asarray(values, s.dtype) / 2 for values in np.polynomial.legendre.leggauss(6)]

    def add(i: Array, total: Array) -> Array:
        node, weight = rule[0][i] + 0.5, rule[1][i]
        z = (kappa + node * jnp.where(near, s - kappa, 0)) * reach
        return total + _times(times_hankel(z * j0(z), j1(z)), weight)

    total = lax.fori_loop(np.int32(0), np.int32(6), add, jnp.zeros_like(far))
    symbol = jnp.where(near, _times(total, reach / (s + kappa)), far)
    bessel = jnp.where(s == 0, 0.5, j1(y) / jnp.where(s == 0, 1, y))  # J1(y) / y
    return symbol + _times(times_hankel(1.0, 0.0), jnp.where(s == 0, area / (2 * math.pi), 0) - reach**2 * bessel)


def _radiating_values(squared: Array, kappa: Array, spacing: Sequence[Number]) -> Array:
    """Return the outgoing Green's function at distances whose square is `squared`.

    At the distance zero, return the mean over a cell with sides `spacing`.
    """
    here = squared == 0
    r = jnp.sqrt(jnp.where(here, 1, squared))
    if len(spacing) == 3:
        centre = lax.complex(*jnp.broadcast_arrays(mean_of_inverse(spacing), kappa + jnp.zeros_like(r)))
        return jnp.where(here, centre, _wave(kappa * r, 1 / r)) / (4 * math.pi)
    if len(spacing) == 2:
        mean = -(jnp.log(kappa / 2) + np.euler_gamma + mean_of_logarithm(spacing)) / (2 * math.pi)
        z = kappa * r
        return jnp.where(here, lax.complex(*jnp.broadcast_arrays(mean, 0.25 + 0 * r)), lax.complex(-y0(z), j0(z)) / 4)
    waves = _wave(kappa * jnp.where(here, 0, r), 1 / (2 * kappa) + jnp.zeros_like(r))
    return lax.complex(-waves.imag, waves.real)


def _wave(phase: Array, amplitude: Array) -> Array:
    return lax.complex(amplitude * jnp.cos(phase), amplitude * jnp.sin(phase))


def _times(x: Array, factor: Array) -> Array:
    return lax.complex(x.real * factor, x.imag * factor)


def _first_moment(x: Array) -> Array:
    """Return the integral of `t exp(ixt)` from 0 to 1."""
    safe = jnp.where(jnp.abs(x) < 0.5, 1, x)
    half = safe / 2
    far = (_wave(safe, jnp.ones_like(safe)) - _wave(half, sinc(half))) / lax.complex(jnp.zeros_like(safe), safe)
    terms = [x**k / float(math.factorial(k) * (k + 2)) for k in range(13)]  # Beyond 32 bits, JAX refuses integers.
    real, imag = (sum((-1) ** (k // 2) * terms[k] for k in range(first, 13, 2)) for first in (0, 1))
    return jnp.where(jnp.abs(x) < 0.5, lax.complex(real, imag), far)
