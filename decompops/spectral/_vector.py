"""Vector calculus on spectra: `k` are wavenumbers `(kx, ky, kz)`, the components of vectors lie in axis -4."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from .._operator.transform import Wavenumbers
from .._sharding import whole_along


Parts = tuple[Array, Array, Array]


def components(vector: Array) -> Parts:
    """The three components of a vector field or of its spectrum."""
    vector = whole_along(vector, -4)  # JAX does not slice an axis that Explicit mesh axes shard.
    return vector[..., 0, :, :, :], vector[..., 1, :, :, :], vector[..., 2, :, :, :]


def stack(*parts: Array) -> Array:
    """The vector of these components."""
    return jnp.stack(parts, axis=-4)


def times(factor: Array, spectrum: Array) -> Array:
    """`factor * spectrum` in the spectrum's precision; a real factor costs no complex product."""
    if jnp.issubdtype(factor.dtype, jnp.complexfloating):
        return factor.astype(spectrum.dtype) * spectrum
    factor = factor.astype(spectrum.real.dtype)
    return lax.complex(factor * spectrum.real, factor * spectrum.imag)


def times_i(factor: Array, spectrum: Array) -> Array:
    """`1j * factor * spectrum` for a real factor."""
    return lax.complex(-factor * spectrum.imag, factor * spectrum.real)


def gradient(k: Wavenumbers, scalar: Array) -> Array:
    """The spectrum of the gradient, `i k s`. Take wavenumbers without Nyquist modes, as for all first derivatives."""
    return stack(*(times_i(component, scalar) for component in k))


def divergence(k: Wavenumbers, vector: Array) -> Array:
    """The spectrum of the divergence, `i k·v`."""
    x, y, z = map(times_i, k, components(vector))
    return x + y + z


def cross(a: Parts, b: Parts) -> Parts:
    """The cross product of two real vector fields, given by their components."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def curl(k: Wavenumbers, vector: Array) -> Array:
    """The spectrum of the curl, `i k × v`."""
    x, y, z = components(vector)
    return stack(
        times_i(k[1], z) - times_i(k[2], y), times_i(k[2], x) - times_i(k[0], z), times_i(k[0], y) - times_i(k[1], x)
    )


def squared(k: Wavenumbers) -> Array:
    """k², minus the symbol of the Laplacian."""
    return k[0] ** 2 + k[1] ** 2 + k[2] ** 2


def length(k: Wavenumbers) -> Array:
    """|k|. Where it is zero, at the mean and in padding, so is its derivative, and not infinite."""
    square = squared(k)
    return jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))


def inverse(symbol: Array) -> Array:
    """1 / symbol, and zero where the symbol is zero: at the mean, and in padding."""
    return jnp.where(symbol == 0, 0, 1 / jnp.where(symbol == 0, 1, symbol))


def projection(k: Wavenumbers, vector: Array) -> Array:
    """The divergence-free part, `v - k (k·v) / k²`."""
    parts = components(vector)
    x, y, z = map(times, k, parts)
    longitudinal = times(inverse(squared(k)), x + y + z)
    return stack(*(part - times(component, longitudinal) for component, part in zip(k, parts)))


def cast(value: Any, like: Array) -> Array:
    """A real parameter, such as a viscosity, in the precision of the spectrum `like`."""
    return jnp.asarray(value, jnp.finfo(like.dtype).dtype)
