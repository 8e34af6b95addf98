"""Filters: operators that damp or remove modes."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from . import _vector
from ._dealiasing import AbstractDealiasing, Truncate
from ._operator import AbstractSpectralOperator, multiplied


class IsotropicFilter(AbstractSpectralOperator):
    """Multiply each mode of a field by a function of its wavenumber |k|.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `function`: takes an array of wavenumbers |k|, in radians per unit of length, and returns an array of factors. The
        function may be an `equinox.Module` with parameters.

    **Returns** (when called): the filtered field, of the shape and dtype of the field.

    **Raises:** `TypeError` if `function` cannot be called. Calls raise `ValueError` if the factors do not broadcast
    against the spectrum.
    """

    fft: AbstractTransform
    function: Callable

    def __check_init__(self):
        if not callable(self.function):
            raise TypeError(f"`function` must be a function of |k|; got {self.function!r}.")

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return multiplied(spectrum, self.function(_vector.length(self.wavenumbers(spectrum))), "function")


class GaussianFilter(AbstractSpectralOperator):
    """Convolve with a normalised Gaussian of standard deviation `width`: multiply each mode by `exp(-k² width² / 2)`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `width`: a nonnegative number, in the unit of length of the box. It may be traced, so that JAX can differentiate
        with respect to it.

    **Returns** (when called): the filtered field, of the shape and dtype of the field.

    **Raises:** `TypeError` if `width` is not one real number; `ValueError` if `width` is negative or infinite.
    """

    fft: AbstractTransform
    width: Number

    def __check_init__(self):
        check_number("width", self.width, least=0)

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        squared = _vector.squared(self.wavenumbers(spectrum))
        return _vector.times(jnp.exp(squared * (-0.5 * jnp.asarray(self.width, squared.dtype) ** 2)), spectrum)


class Dealias(AbstractSpectralOperator):
    """Remove the modes that get aliasing errors in products of two fields (Orszag's 2/3 rule, J. Atmos. Sci. 28, 1971).

    Only the modes that are kept are communicated.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `dealiasing`: the rule that says which modes to keep, such as `Truncate(2/3)`.

    **Returns** (when called): the field with only the kept modes, in its old shape and dtype.
    """

    fft: AbstractTransform
    dealiasing: AbstractDealiasing = eqx.field(kw_only=True, default=Truncate(), static=True)

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return self.dealiasing.masked(self.transform, spectrum)
