"""Derivatives of periodic fields, exact for every mode that the grid has."""

import math
import operator
from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Complex

from .._box import Box
from .._operator.fft import FFT
from . import _vector
from ._modes import Components, check_fft
from ._operator import AbstractSpectralOperator


def _check_orders(orders: Any) -> tuple[int, ...]:
    try:
        a, b, c = (operator.index(order) for order in orders)
        valid = min(a, b, c) >= 0
    except (TypeError, ValueError):
        a, b, c, valid = 0, 0, 0, False
    if not valid:
        raise ValueError(f"`orders` must be three integers of at least zero, along x, y, z; got {orders!r}.")
    return a, b, c


class Derivative(AbstractSpectralOperator):
    """A partial derivative of a periodic scalar field, or of each component: `∂^(a+b+c) / ∂x^a ∂y^b ∂z^c`.

    Where the order along an axis is odd, the Nyquist mode of an even grid is dropped: its derivative is not known.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `orders`: the orders `(a, b, c)` along x, y, z.
    - `box`: the periodic box.

    **Raises:** `ValueError` for orders that are not three integers of at least zero.
    """

    fft: FFT
    orders: tuple[int, ...] = eqx.field(static=True, converter=_check_orders)
    box: Box = Box()

    def multiply(self, spectrum: Complex[Array, "*batch kx ky kz"]) -> Complex[Array, "*batch kx ky kz"]:
        even, odd = (self.wavenumbers(spectrum, nyquist=nyquist) for nyquist in (True, False))
        for order, k_even, k_odd in zip(self.orders, even, odd):
            if order:
                spectrum = _vector.times((k_odd if order % 2 else k_even) ** order, spectrum)
        along = zip(self.fft.bases, check_fft(self.fft), self.orders)
        return math.prod(basis.derivative(n, order).factor for basis, n, order in along) * spectrum


class Gradient(AbstractSpectralOperator):
    """The gradient of a periodic scalar field: `(*batch, nx, ny, nz)` to `(*batch, 3, nx, ny, nz)`."""

    fft: FFT
    box: Box = Box()
    components: ClassVar[tuple[Components, Components]] = ("scalar", "vector")

    def multiply(self, spectrum: Complex[Array, "*batch kx ky kz"]) -> Complex[Array, "*batch 3 kx ky kz"]:
        return _vector.gradient(self.wavenumbers(spectrum, nyquist=False), spectrum)


class Divergence(AbstractSpectralOperator):
    """The divergence of a periodic vector field: `(*batch, 3, nx, ny, nz)` to `(*batch, nx, ny, nz)`."""

    fft: FFT
    box: Box = Box()
    components: ClassVar[tuple[Components, Components]] = ("vector", "scalar")

    def multiply(self, spectrum: Complex[Array, "*batch 3 kx ky kz"]) -> Complex[Array, "*batch kx ky kz"]:
        return _vector.divergence(self.wavenumbers(spectrum, nyquist=False), spectrum)


class Curl(AbstractSpectralOperator):
    """The curl of a periodic vector field `(*batch, 3, nx, ny, nz)`."""

    fft: FFT
    box: Box = Box()
    components: ClassVar[tuple[Components, Components]] = ("vector", "vector")

    def multiply(self, spectrum: Complex[Array, "*batch 3 kx ky kz"]) -> Complex[Array, "*batch 3 kx ky kz"]:
        return _vector.curl(self.wavenumbers(spectrum, nyquist=False), spectrum)


class Laplacian(AbstractSpectralOperator):
    """The Laplacian of a periodic scalar field, or of each component of a vector field.

    It keeps Nyquist modes, which `Divergence` of `Gradient` drops.
    """

    fft: FFT
    box: Box = Box()

    def multiply(self, spectrum: Complex[Array, "*batch kx ky kz"]) -> Complex[Array, "*batch kx ky kz"]:
        return _vector.times(-_vector.squared(self.wavenumbers(spectrum)), spectrum)
