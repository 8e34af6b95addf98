"""Inverses of differential operators on periodic fields, and the projection onto divergence-free ones."""

import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Complex

from .._operator.fft import FFT3D
from .._operator.transform import Lengths, Number, box
from . import _vector
from ._operator import AbstractSpectralOperator, Components, check_number, grid_of, internal_transform


class Poisson(AbstractSpectralOperator):
    """The zero-mean solution u of Poisson's equation `∇²u = f` for a periodic right-hand side f.

    The mean of f, for which there is no solution, is ignored.
    """

    fft: FFT3D = eqx.field(converter=internal_transform)
    lengths: Lengths = eqx.field(converter=box, default=2 * math.pi)

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return _vector.times(-_vector.inverse(_vector.squared(self.wavenumbers(spectrum))), spectrum)


class InverseDivergence(AbstractSpectralOperator):
    """The curl-free vector field v with `∇·v = f`, for a periodic scalar f: `∇ (∇²)⁻¹ f`.

    A force from its source, a displacement from a density. The means of f and v are ignored and zero.
    """

    fft: FFT3D = eqx.field(converter=internal_transform)
    lengths: Lengths = eqx.field(converter=box, default=2 * math.pi)
    components: ClassVar[tuple[Components, Components]] = ("scalar", "vector")

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        k = self.wavenumbers(spectrum, nyquist=False)
        return _vector.gradient(k, _vector.times(-_vector.inverse(_vector.squared(k)), spectrum))


class InverseCurl(AbstractSpectralOperator):
    """The divergence-free vector field v with `∇×v = w`, for a periodic, divergence-free w: `-∇× (∇²)⁻¹ w`.

    A velocity from its vorticity (Biot and Savart), a magnetic field from its current. The mean of v is zero.
    """

    fft: FFT3D = eqx.field(converter=internal_transform)
    lengths: Lengths = eqx.field(converter=box, default=2 * math.pi)
    components: ClassVar[tuple[Components, Components]] = ("vector", "vector")

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        k = self.wavenumbers(spectrum, nyquist=False)
        return _vector.curl(k, _vector.times(_vector.inverse(_vector.squared(k)), spectrum))


class Helmholtz(AbstractSpectralOperator):
    """The solution u of `(shift - ∇²) u = f` for a periodic right-hand side f.

    With a positive `shift` this is the screened (modified) equation, such as that of an implicit step of diffusion;
    with `shift = -κ²`, Helmholtz' own `(∇² + κ²) u = -f`.
    """

    fft: FFT3D
    shift: Number
    lengths: Lengths

    def __init__(self, fft: FFT3D, shift: Number, lengths: Lengths = 2 * math.pi):
        """**Arguments:**

        - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
        - `shift`: a real number, in inverse units of `lengths` squared. May be traced, to differentiate by.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all.

        **Raises:** `ValueError` or `TypeError` for an `fft` without shape, lengths that are not positive, and a `shift`
        for which there is a resonance: `-shift` is the square of a wavenumber of the grid, zero among them.
        """
        self.fft = internal_transform(fft)
        self.shift = check_number("shift", shift)
        self.lengths = box(lengths)
        known = not any(isinstance(value, Tracer) for value in (shift, *self.lengths))
        if known and _has_resonance(self.fft, float(shift), self.lengths):
            raise ValueError(
                "`shift` must not be minus the square of a wavenumber of the grid, because there the "
                f"operator has no inverse; got {shift!r}."
            )

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        squared = _vector.squared(self.wavenumbers(spectrum))
        return _vector.times(1 / (jnp.asarray(self.shift, squared.dtype) + squared), spectrum)


class LerayProjection(AbstractSpectralOperator):
    """The divergence-free part of a periodic vector field `(*batch, 3, nx, ny, nz)`: `v - ∇ (∇²)⁻¹ ∇·v`.

    The mean is divergence-free, and kept. So are Nyquist modes as far as their derivative is not known.
    """

    fft: FFT3D = eqx.field(converter=internal_transform)
    lengths: Lengths = eqx.field(converter=box, default=2 * math.pi)
    components: ClassVar[tuple[Components, Components]] = ("vector", "vector")

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return _vector.projection(self.wavenumbers(spectrum, nyquist=False), spectrum)


def _has_resonance(fft: FFT3D, shift: float, lengths: tuple) -> bool:
    if shift >= 0:
        return shift == 0
    shape = fft.modes or grid_of(fft)
    squares = [np.unique((2 * np.pi * np.arange(n // 2 + 1) / length) ** 2) for n, length in zip(shape, lengths)]
    plane = np.unique(np.add.outer(squares[0], squares[1]))
    needed = -shift - plane[plane <= -shift * (1 + 1e-12)]  # along z
    nearest = squares[2][np.minimum(np.searchsorted(squares[2], needed - 1e-12 * -shift), len(squares[2]) - 1)]
    return bool((np.abs(nearest - needed) <= 1e-12 * -shift).any())
