"""Filters: operators that weaken or remove modes."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._box import Box, Number
from .._check import check_number
from .._operator.transform import AbstractTransform
from . import _vector
from ._dealiasing import AbstractDealiasing, Truncate
from ._operator import AbstractSpectralOperator, multiplied


class IsotropicFilter(AbstractSpectralOperator):
    """Multiply each mode of a field by a function of the length of its wavevector.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `function`: takes an array of wavenumbers |k|, in radians per unit of length, and returns an array of factors.
    - `box`: the periodic box.
    """

    fft: AbstractTransform
    function: Callable
    box: Box = Box()

    def __check_init__(self):
        if not callable(self.function):
            raise TypeError(f"`function` must be a function of |k|; got {self.function!r}.")

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return multiplied(spectrum, self.function(_vector.length(self.wavenumbers(spectrum))), "function")


class GaussianFilter(AbstractSpectralOperator):
    """Convolve with a normalised Gaussian of standard deviation `width`: multiply by `exp(-k² width² / 2)`."""

    fft: AbstractTransform
    width: Number
    box: Box = Box()

    def __check_init__(self):
        check_number("width", self.width, least=0)

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        squared = _vector.squared(self.wavenumbers(spectrum))
        return _vector.times(jnp.exp(squared * (-0.5 * jnp.asarray(self.width, squared.dtype) ** 2)), spectrum)


class Dealias(AbstractSpectralOperator):
    """Remove the modes that products of two fields alias onto: the projection of the 2/3 rule (Orszag 1971).

    What it keeps is known in advance, so nothing else is communicated: see `dealiased`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `box`: the periodic box.
    - `dealiasing`: which modes to keep, such as `Truncate(2/3)`.
    """

    fft: AbstractTransform
    box: Box = Box()
    dealiasing: AbstractDealiasing = eqx.field(kw_only=True, default=Truncate(), static=True)

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return self.dealiasing.masked(self.transform, spectrum)
