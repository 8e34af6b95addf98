"""Vector calculus on spectra, in any number of dimensions.

`k` are wavenumbers, such as `(kx, ky, kz)`: as many as the grid has axes. The components of a vector stand right before
these axes, as many. An *axial vector*, such as a vorticity, has a component for each of the `planes`.

Between walls, where fields are cosines along an axis, slopes along that axis are sines: component i of a vector is a
slope along axis i, and the component of an axial vector in a plane is one along both axes of the plane.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._operator.transform import Wavenumbers
from .._sharding import whole_along


Parts = tuple[Array, ...]
# The entries (i, j) with i <= j of a symmetric tensor.
Tensor = dict[tuple[int, int], Array]


def components(vector: Array, ndim: int) -> Parts:
    """The components of a vector field on a grid of `ndim` axes, or of its spectrum."""
    axis = -ndim - 1
    vector = whole_along(vector, axis)  # JAX does not slice an axis that Explicit mesh axes shard.
    # The transpose of a split is one concatenation, that of single slices a sum of padded arrays.
    parts = lax.split(vector, (1,) * vector.shape[axis], axis % vector.ndim)
    return tuple(lax.squeeze(part, (axis % vector.ndim,)) for part in parts)


def stack(parts: Iterable[Array], ndim: int) -> Array:
    """The vector of these components, on a grid of `ndim` axes."""
    return jnp.stack(tuple(parts), axis=-ndim - 1)


def total(terms: Iterable[Array]) -> Array:
    """The sum of one or more terms."""
    return functools.reduce(operator.add, terms)


def times(factor: Array, spectrum: Array) -> Array:
    """`factor * spectrum` in the spectrum's precision; a real factor costs no complex product."""
    if jnp.issubdtype(factor.dtype, jnp.complexfloating):
        return factor.astype(np.result_type(spectrum.dtype, np.complex64)) * spectrum
    factor = factor.astype(jnp.finfo(spectrum.dtype).dtype)
    if not jnp.iscomplexobj(spectrum):
        return factor * spectrum
    return lax.complex(factor * spectrum.real, factor * spectrum.imag)


def times_unit(unit: complex | float, factor: Array, spectrum: Array) -> Array:
    """`unit * factor * spectrum` for a real factor and a unit that is ±1 or ±i."""
    if not complex(unit).imag:
        return times(factor if unit == 1 else -factor, spectrum)
    factor = factor.astype(jnp.finfo(spectrum.dtype).dtype) * complex(unit).imag
    return lax.complex(-factor * spectrum.imag, factor * spectrum.real)


def planes(ndim: int) -> tuple[tuple[int, int], ...]:
    """The planes (i, j) of rotation, for each component of an axial vector; in three dimensions yz, zx and xy."""
    return ((1, 2), (2, 0), (0, 1)) if ndim == 3 else tuple(itertools.combinations(range(ndim), 2))


def cross(a: Sequence[Any], axial: Parts, product: Callable[[Any, Array], Array] = operator.mul) -> Parts:
    """The cross product `a × w` of a vector and an axial vector, given by their components, in two or more dimensions.

    In two dimensions, w is one number, and `a × w = (a_y w, -a_x w)`.
    """
    turns = tuple(enumerate(planes(len(a))))

    def component(axis: int) -> Array:
        plus = [product(a[j], axial[n]) for n, (i, j) in turns if i == axis]
        minus = [product(a[i], axial[n]) for n, (i, j) in turns if j == axis]
        return functools.reduce(operator.sub, minus, total(plus)) if plus else -total(minus)

    return tuple(map(component, range(len(a))))


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


def cast(value: Any, like: Array) -> Array:
    """A real parameter, such as a viscosity, in the precision of the spectrum `like`."""
    return jnp.asarray(value, jnp.finfo(like.dtype).dtype)


class Nabla(NamedTuple):
    """First derivatives of spectra: wavenumbers without Nyquist modes, and a unit for each axis.

    A derivative along an axis multiplies by `unit * k` what is no slope along it, and by `-k / unit` a slope: the unit
    of Fourier modes is i, that of cosines -1, because their derivatives are `-k sin`.

    `across`, if there is one, is the derivative along the first axis, where that does not multiply each mode.
    """

    k: Wavenumbers
    units: tuple[complex, ...]
    across: Callable[[Array], Array] | None = None

    @property
    def ndim(self) -> int:
        return len(self.k)

    def rise(self, axis: int, part: Array) -> Array:
        """The derivative along an axis of what is no slope along it."""
        if axis == 0 and self.across is not None:
            return self.across(part)
        return times_unit(self.units[axis], self.k[axis], part)

    def fall(self, axis: int, part: Array) -> Array:
        """The derivative along an axis of a slope along it."""
        if axis == 0 and self.across is not None:
            return self.across(part)
        return times_unit(-1 / self.units[axis], self.k[axis], part)

    def gradient(self, scalar: Array) -> Array:
        """The spectrum of the gradient of a scalar."""
        return stack((self.rise(axis, scalar) for axis in range(self.ndim)), self.ndim)

    def divergence(self, vector: Array) -> Array:
        """The spectrum of the divergence."""
        return total(map(self.fall, range(self.ndim), components(vector, self.ndim)))

    def divergence_of_tensor(self, tensor: Tensor) -> Array:
        """The spectrum of the divergence of a symmetric tensor, whose entry (i, j) is a slope along both axes.

        Entries that the tensor does not have are zero.
        """

        def row(i: int) -> Array:
            parts = ((j, tensor.get((min(i, j), max(i, j)))) for j in range(self.ndim))
            return total(self.rise(j, part) if i == j else self.fall(j, part) for j, part in parts if part is not None)

        return stack(map(row, range(self.ndim)), self.ndim)

    def rotation(self, vector: Array) -> Parts:
        """The spectrum of the vorticity `∂v_j/∂x_i - ∂v_i/∂x_j`, for each of the `planes`."""
        v = components(vector, self.ndim)
        return tuple(self.rise(i, v[j]) - self.rise(j, v[i]) for i, j in planes(self.ndim))

    def curl(self, vector: Array) -> Array:
        """The spectrum of the curl: in three dimensions a vector, in two a scalar."""
        parts = self.rotation(vector)
        return stack(parts, self.ndim) if self.ndim == 3 else parts[0]

    def curl_of_axial(self, axial: Array) -> Array:
        """The spectrum of the curl of what `curl` returns: a vector. In two dimensions `(∂s/∂y, -∂s/∂x)`."""
        parts = components(axial, self.ndim) if self.ndim == 3 else (axial,)
        return stack(cross(range(self.ndim), parts, self.fall), self.ndim)

    def projection(self, vector: Array) -> Array:
        """The divergence-free part, `v - ∇ (∇²)⁻¹ ∇·v`."""
        parts = components(vector, self.ndim)
        units = [unit / self.units[0] for unit in self.units]  # so that of Fourier modes nothing is left
        along = total(times_unit(1 / unit, k, part) for unit, k, part in zip(units, self.k, parts))
        longitudinal = times(inverse(squared(self.k)), along)
        return stack(
            (part - times_unit(unit, k, longitudinal) for unit, k, part in zip(units, self.k, parts)), self.ndim
        )
