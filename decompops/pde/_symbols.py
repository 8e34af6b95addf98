"""Functions that several equations share: symbols of linear terms, and spectra of constants."""

import math

import jax.numpy as jnp
from jax import Array

from .._operator.transform import AbstractTransform, Wavenumbers
from ..spectral import _vector
from ..spectral._check import check_fft


def fourth_power(k: Wavenumbers, isotropic: bool) -> Array:
    """Return the symbol of ∇⁴, or of `∂⁴/∂x⁴ + ∂⁴/∂y⁴ + ...` if not `isotropic`."""
    return _vector.squared(k) ** 2 if isotropic else _vector.total(component**4 for component in k)


def third_power(k: Wavenumbers, odd: Wavenumbers, coefficients: tuple[Array, ...], isotropic: bool) -> Array:
    """Return `c·k k²`, or the sum of `c_i k_i³` if not `isotropic`.

    The symbol of `(c·∇) ∇²`, or of the sum of `c_i ∂³/∂x_i³`, is `-i` times the result. `odd` are the wavenumbers with
    zero in place of Nyquist wavenumbers. They stand for the derivatives of odd order.
    """
    if isotropic:
        return _vector.total(c * component for c, component in zip(coefficients, odd)) * _vector.squared(k)
    return _vector.total(c * component**3 for c, component in zip(coefficients, odd))


def size_of_constant(transform: AbstractTransform) -> float:
    """Return the coefficient of the mean in the spectrum of the field 1. All other coefficients are zero."""
    shape = check_fft(transform)
    points = 1 / math.prod(transform.bases[axis].inverse_scale(shape[axis]) for axis in transform.transformed)
    return {"backward": points, "ortho": math.sqrt(points), "forward": 1.0}[transform.norm]


def constant(transform: AbstractTransform, like: Array) -> Array:
    """Return the spectrum of the field 1 as a real array in the precision of `like`."""
    dtype = jnp.finfo(like.dtype).dtype
    # Padding has wavenumber zero, like the mean. Only the multiplicity differs: it is zero in the padding, and one for
    # the mean.
    mean = jnp.where(_vector.squared(transform.wavenumbers(dtype=dtype)) == 0, transform.multiplicity(dtype=dtype), 0)
    return size_of_constant(transform) * mean
