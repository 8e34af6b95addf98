"""Vector calculus on spectra, in any number of dimensions.

`k` are wavenumbers, such as `(kx, ky, kz)`: as many as the grid has axes. The components of a vector stand right before
these axes, as many. An *axial vector*, such as a vorticity, has a component for each of the `planes`.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from .._operator.transform import Wavenumbers
from .._sharding import whole_along


Parts = tuple[Array, ...]


def components(vector: Array, ndim: int) -> Parts:
    """The components of a vector field on a grid of `ndim` axes, or of its spectrum."""
    axis = -ndim - 1
    vector = whole_along(vector, axis)  # JAX does not slice an axis that Explicit mesh axes shard.
    return tuple(vector[(..., i, *[slice(None)] * ndim)] for i in range(vector.shape[axis]))


def stack(parts: Iterable[Array], ndim: int) -> Array:
    """The vector of these components, on a grid of `ndim` axes."""
    return jnp.stack(tuple(parts), axis=-ndim - 1)


def total(terms: Iterable[Array]) -> Array:
    """The sum of one or more terms."""
    return functools.reduce(operator.add, terms)


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
    return stack((times_i(component, scalar) for component in k), len(k))


def divergence(k: Wavenumbers, vector: Array) -> Array:
    """The spectrum of the divergence, `i k·v`."""
    return total(map(times_i, k, components(vector, len(k))))


def planes(ndim: int) -> tuple[tuple[int, int], ...]:
    """The planes (i, j) of rotation, for each component of an axial vector; in three dimensions yz, zx and xy."""
    return ((1, 2), (2, 0), (0, 1)) if ndim == 3 else tuple(itertools.combinations(range(ndim), 2))


def rotation(k: Wavenumbers, vector: Array) -> Parts:
    """The spectrum of the vorticity `∂v_j/∂x_i - ∂v_i/∂x_j`, for each of the `planes`."""
    v = components(vector, len(k))
    return tuple(times_i(k[i], v[j]) - times_i(k[j], v[i]) for i, j in planes(len(k)))


def cross(a: Parts, axial: Parts, product: Callable[[Array, Array], Array] = operator.mul) -> Parts:
    """The cross product `a × w` of a vector and an axial vector, given by their components, in two or more dimensions.

    In two dimensions, w is one number, and `a × w = (a_y w, -a_x w)`.
    """
    turns = tuple(enumerate(planes(len(a))))

    def component(axis: int) -> Array:
        plus = [product(a[j], axial[n]) for n, (i, j) in turns if i == axis]
        minus = [product(a[i], axial[n]) for n, (i, j) in turns if j == axis]
        return functools.reduce(operator.sub, minus, total(plus)) if plus else -total(minus)

    return tuple(map(component, range(len(a))))


def curl(k: Wavenumbers, vector: Array) -> Array:
    """The spectrum of the curl, `i k × v`: in three dimensions a vector, in two a scalar."""
    parts = rotation(k, vector)
    return stack(parts, len(k)) if len(k) == 3 else parts[0]


def curl_of_axial(k: Wavenumbers, axial: Array) -> Array:
    """The spectrum of the curl of what `curl` returns: a vector. In two dimensions `i (k_y s, -k_x s)` of a scalar."""
    parts = components(axial, len(k)) if len(k) == 3 else (axial,)
    return stack(cross(k, parts, times_i), len(k))


def squared(k: Wavenumbers) -> Array:
    """k², minus the symbol of the Laplacian."""
    return total(component**2 for component in k)


def length(k: Wavenumbers) -> Array:
    """|k|. Where it is zero, at the mean and in padding, so is its derivative, and not infinite."""
    square = squared(k)
    return jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))


def inverse(symbol: Array) -> Array:
    """1 / symbol, and zero where the symbol is zero: at the mean, and in padding."""
    return jnp.where(symbol == 0, 0, 1 / jnp.where(symbol == 0, 1, symbol))


def projection(k: Wavenumbers, vector: Array) -> Array:
    """The divergence-free part, `v - k (k·v) / k²`."""
    parts = components(vector, len(k))
    longitudinal = times(inverse(squared(k)), total(map(times, k, parts)))
    return stack((part - times(component, longitudinal) for component, part in zip(k, parts)), len(k))


def cast(value: Any, like: Array) -> Array:
    """A real parameter, such as a viscosity, in the precision of the spectrum `like`."""
    return jnp.asarray(value, jnp.finfo(like.dtype).dtype)
