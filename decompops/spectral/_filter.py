"""Filters: operators that weaken or remove modes."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Complex

from .._operator.fft import FFT3D
from .._operator.transform import Lengths, Number, box
from . import _vector
from ._operator import AbstractSpectralOperator, check_number, grid_of, internal_transform, multiplied


Rule = Literal["2/3", "3/2"]


class IsotropicFilter(AbstractSpectralOperator):
    """Multiply each mode of a field by a function of the length of its wavevector."""

    fft: FFT3D
    function: Callable
    lengths: Lengths

    def __init__(self, fft: FFT3D, function: Callable, lengths: Lengths = 2 * math.pi):
        """**Arguments:**

        - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
        - `function`: of an array of lengths |k|, in radians per unit of `lengths`; returns an array of factors.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all.
        """
        if not callable(function):
            raise TypeError(f"`function` must be a function of |k|; got {function!r}.")
        self.fft = internal_transform(fft)
        self.function = function
        self.lengths = box(lengths)

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return multiplied(spectrum, self.function(_vector.length(self.wavenumbers(spectrum))), "function")


class GaussianFilter(AbstractSpectralOperator):
    """Convolve with a normalised Gaussian of standard deviation `width`: multiply by `exp(-k² width² / 2)`."""

    fft: FFT3D = eqx.field(converter=internal_transform)
    width: Number
    lengths: Lengths = eqx.field(converter=box, default=2 * math.pi)

    def __check_init__(self):
        check_number("width", self.width, least=0)

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        squared = _vector.squared(self.wavenumbers(spectrum))
        return _vector.times(jnp.exp(squared * (-0.5 * jnp.asarray(self.width, squared.dtype) ** 2)), spectrum)


class Dealias(AbstractSpectralOperator):
    """Remove the modes that products of two fields alias onto: the projection of the 2/3 rule (Orszag 1971).

    What it keeps is known in advance, so nothing else is communicated: see `dealiased`.
    """

    fft: FFT3D = eqx.field(converter=lambda fft: dealiased(internal_transform(fft)))
    lengths: Lengths = eqx.field(converter=box, default=2 * math.pi)

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        return spectrum


def dealiased(fft: FFT3D, rule: Rule = "2/3") -> FFT3D:
    """A transform between a grid and the modes for which products of two fields on that grid are free of aliasing.

    Products of modes below n/3 alias, on a grid of n points, only onto modes above n/3. So with
    `padded = dealiased(fft, "3/2")` the modes of `padded(padded.inverse(a) * padded.inverse(b))` are exact. Give `fft`
    `norm="forward"` where spectra go from one grid to another: the scale of the others depends on the grid.

    **Arguments:**

    - `fft`: the transform, built with a `shape`.
    - `rule`: "2/3" keeps the grid of `fft` and its modes below a third of it; "3/2" keeps the modes of `fft` and
        takes a grid of 3/2 times as many points, or just more.

    **Returns:** an `FFT3D` with `modes`. A transform that keeps few enough modes already is returned as it is.

    **Raises:** `ValueError` for an `fft` without shape and another rule.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"`rule` must be one of {get_args(Rule)}; got {rule!r}.")
    shape = grid_of(fft)
    modes = fft.modes or shape
    if rule == "2/3":
        # The highest mode below n / 3, on both sides of zero.
        return fft.replace(modes=tuple(min(m, 2 * math.ceil(n / 3) - 1) for m, n in zip(modes, shape)))
    return fft.replace(shape=tuple(max(n, 3 * m // 2 + m % 2) for m, n in zip(modes, shape)), modes=modes)
