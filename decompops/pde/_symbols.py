"""Factors for each mode that several equations share."""

import math

import jax.numpy as jnp
from jax import Array

from .._operator.transform import AbstractTransform, Wavenumbers
from ..spectral import _vector
from ..spectral._check import check_fft


def fourth_power(k: Wavenumbers, isotropic: bool) -> Array:
    """The symbol of ∇⁴; without `isotropic` that of the sum of the fourth derivatives along the axes."""
    return _vector.squared(k) ** 2 if isotropic else _vector.total(component**4 for component in k)


def third_power(k: Wavenumbers, coefficients: tuple[Array, ...], isotropic: bool) -> Array:
    """`c·k k²`, or without `isotropic` the sum of `c_i k_i³`. The symbol of the third derivative is `-i` times that."""
    if isotropic:
        return _vector.total(c * component for c, component in zip(coefficients, k)) * _vector.squared(k)
    return _vector.total(c * component**3 for c, component in zip(coefficients, k))


def size_of_constant(transform: AbstractTransform) -> float:
    """The only coefficient of the spectrum of the field 1, which is at the mean."""
    shape = check_fft(transform)
    points = 1 / math.prod(transform.bases[axis].inverse_scale(shape[axis]) for axis in transform.transformed)
    return {"backward": points, "ortho": math.sqrt(points), "forward": 1.0}[transform.norm]


def constant(transform: AbstractTransform, like: Array) -> Array:
    """The spectrum of the field 1, real, in the precision of `like`."""
    dtype = jnp.finfo(like.dtype).dtype
    # The wavenumbers of padding are zero, and so is its multiplicity; that of the mean is one.
    mean = jnp.where(_vector.squared(transform.wavenumbers(dtype=dtype)) == 0, transform.multiplicity(dtype=dtype), 0)
    return size_of_constant(transform) * mean
