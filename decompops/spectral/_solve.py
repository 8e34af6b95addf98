"""Inverses of differential operators on periodic fields, and the projection onto divergence-free ones."""

import functools
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Complex

from .._box import Box, Number, check_box
from .._check import check_number
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft
from ._modes import Components
from ._operator import AbstractSpectralOperator


class Poisson(AbstractSpectralOperator):
    """The zero-mean solution u of Poisson's equation `∇²u = f` for a periodic right-hand side f.

    The mean of f, for which there is no solution, is ignored.
    """

    fft: AbstractTransform
    box: Box = Box()

    def multiply(self, spectrum: Complex[Array, "*spectrum"]) -> Complex[Array, "*spectrum"]:
        return _vector.times(-_vector.inverse(_vector.squared(self.wavenumbers(spectrum))), spectrum)


class InverseDivergence(AbstractSpectralOperator):
    """The curl-free vector field v with `∇·v = f`, for a periodic scalar f: `∇ (∇²)⁻¹ f`.

    A force from its source, a displacement from a density. The means of f and v are ignored and zero.
    """

    fft: AbstractTransform
    box: Box = Box()
    components: ClassVar[tuple[Components, Components]] = ("scalar", "vector")

    def multiply(self, spectrum: Complex[Array, "*spectrum"]) -> Complex[Array, "*result"]:
        k = self.wavenumbers(spectrum, nyquist=False)
        return _vector.gradient(k, _vector.times(-_vector.inverse(_vector.squared(k)), spectrum))


class InverseCurl(AbstractSpectralOperator):
    """The divergence-free vector field v with `∇×v = w`, for a periodic, divergence-free w: `-∇× (∇²)⁻¹ w`.

    A velocity from its vorticity (Biot and Savart), a magnetic field from its current. The mean of v is zero. On a grid
    of two axes w is a scalar, `(*batch, nx, ny)` to `(*batch, 2, nx, ny)`.

    **Raises:** `ValueError` for a grid of another number of axes than two or three.
    """

    fft: AbstractTransform
    box: Box = Box()
    components: ClassVar[tuple[Components, Components]] = ("axial", "vector")

    def multiply(self, spectrum: Complex[Array, "*spectrum"]) -> Complex[Array, "*result"]:
        k = self.wavenumbers(spectrum, nyquist=False)
        return _vector.curl_of_axial(k, _vector.times(_vector.inverse(_vector.squared(k)), spectrum))


class Helmholtz(AbstractSpectralOperator):
    """The solution u of `(shift - ∇²) u = f` for a periodic right-hand side f.

    With a positive `shift` this is the screened (modified) equation, such as that of an implicit step of diffusion;
    with `shift = -κ²`, Helmholtz' own `(∇² + κ²) u = -f`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `shift`: a real number, in inverse units of length squared. May be traced, to differentiate by.
    - `box`: the periodic box.

    **Raises:** `ValueError` for a `shift` at a resonance, where `-shift` is the square of a wavenumber of the grid,
    which zero always is.
    """

    fft: AbstractTransform
    shift: Number
    box: Box = Box()

    def __check_init__(self):
        check_number("shift", self.shift)
        if isinstance(self.shift, Tracer) or self.box.is_traced:
            return
        if _has_resonance(self.fft, float(self.shift), self.box):
            raise ValueError(
                "`shift` must not be minus the square of a wavenumber of the grid, because there the "
                f"operator has no inverse; got {self.shift!r}."
            )

    def multiply(self, spectrum: Complex[Array, "*spectrum"]) -> Complex[Array, "*spectrum"]:
        squared = _vector.squared(self.wavenumbers(spectrum))
        return _vector.times(1 / (jnp.asarray(self.shift, squared.dtype) + squared), spectrum)


class LerayProjection(AbstractSpectralOperator):
    """The divergence-free part of a periodic vector field, such as `(*batch, 3, nx, ny, nz)`: `v - ∇ (∇²)⁻¹ ∇·v`.

    The mean is divergence-free, and kept. So are Nyquist modes as far as their derivative is not known.
    """

    fft: AbstractTransform
    box: Box = Box()
    components: ClassVar[tuple[Components, Components]] = ("vector", "vector")

    def multiply(self, spectrum: Complex[Array, "*spectrum"]) -> Complex[Array, "*spectrum"]:
        return _vector.projection(self.wavenumbers(spectrum, nyquist=False), spectrum)


def _has_resonance(fft: AbstractTransform, shift: float, box: Box) -> bool:
    if shift >= 0:
        return shift == 0
    shape = fft.modes or check_fft(fft)
    lengths: Any = check_box(box, len(shape)).lengths
    squares = [
        np.unique((2 * np.pi * np.arange(n // 2 + 1) / length) ** 2) if axis in fft.transformed else np.zeros(1)
        for axis, (n, length) in enumerate(zip(shape, lengths))
    ]
    *others, last = squares
    sums = functools.reduce(lambda sums, more: np.unique(np.add.outer(sums, more)), others, np.zeros(1))
    needed = -shift - sums[sums <= -shift * (1 + 1e-12)]  # along the last axis
    nearest = last[np.minimum(np.searchsorted(last, needed - 1e-12 * -shift), len(last) - 1)]
    return bool((np.abs(nearest - needed) <= 1e-12 * -shift).any())
