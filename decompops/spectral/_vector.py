"""Vector calculus on spectra, in any number of dimensions.

`k` holds the wavenumbers, such as `(kx, ky, kz)`: one array for each axis of the grid. A vector has one component for
each axis of the grid. The components lie along the axis right before the grid axes. An *axial vector*, such as a
vorticity, has one component for each of the `planes`.

Between walls, a field may be a series of cosines along an axis. Its slope along this axis is then a series of sines.
Here, a spectrum *is a slope along an axis* if it has the basis of such a slope along that axis. Component i of a vector
is a slope along axis i. The component of an axial vector in a plane is a slope along both axes of the plane.

**Nyquist modes.** One rule holds for all operators and equations. An odd derivative along an axis is zero for a mode
that has the Nyquist wavenumber along this axis, and an even derivative is exact. So first derivatives multiply by `q`:
the wavenumbers `k`, with zero in place of Nyquist wavenumbers. Inverses divide by k², the symbol of the Laplacian with
all wavenumbers, and never by q². For the mode (n/2, 1, 0), q² is one, but k² is `(n/2)² + 1`: a division by q² would
amplify this mode. Only `Nabla.projection` and the pressure between walls divide by q², because they also multiply by q
twice: the projection is orthogonal, and amplifies nothing. With k², the result would have a divergence. The table in
docs/spectral_operators.md says which identities of vector calculus follow, and in which modes.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._basis.fourier import field_dtype
from .._common.broadcast import aligned
from .._common.typed import whole_along
from .._operator.transform import Wavenumbers


Parts = tuple[Array, ...]
# The entries (i, j) with i <= j of a symmetric tensor.
Tensor = dict[tuple[int, int], Array]


def components(vector: Array, ndim: int) -> Parts:
    """Return the components of a vector field, or of its spectrum, on a grid of `ndim` axes."""
    axis = -ndim - 1
    vector = whole_along(vector, axis)  # JAX does not slice an axis that Explicit mesh axes shard.
    # In a reverse-mode derivative, one split becomes one concatenation, but several slices become a sum of padded
    # arrays.
    parts = lax.split(vector, (1,) * vector.shape[axis], axis % vector.ndim)
    return tuple(lax.squeeze(part, (axis % vector.ndim,)) for part in parts)


def stack(parts: Iterable[Array], ndim: int) -> Array:
    """Return the vector whose components are `parts`, on a grid of `ndim` axes."""
    return jnp.stack(tuple(parts), axis=-ndim - 1)


def with_zeros(vector: Array, count: int, ndim: int) -> Array:
    """Return a vector with `count` more components, which are zero.

    If `jax.vmap` maps over a sharded axis, the components are sharded along it, and an array of zeros is not. JAX
    refuses to stack the two, but it pads.
    """
    return jnp.pad(vector, [(0, count if axis == -ndim - 1 else 0) for axis in range(-vector.ndim, 0)])


def joined(vectors: Iterable[Array], ndim: int) -> Array:
    """Return the components of all `vectors` as one vector, on a grid of `ndim` axes."""
    # JAX concatenates only arrays of one type, and the results of `stack` are whole along the components.
    return jnp.concatenate([whole_along(vector, -ndim - 1) for vector in vectors], axis=-ndim - 1)


def total(terms: Iterable[Array]) -> Array:
    """Return the sum of one or more terms."""
    return functools.reduce(lambda a, b: aligned(a, b) + aligned(b, a), terms)


def times(factor: Array, spectrum: Array) -> Array:
    """Return `factor * spectrum` in the precision of `spectrum`. A real factor needs no complex product."""
    factor = aligned(factor, spectrum)
    if jnp.issubdtype(factor.dtype, jnp.complexfloating):
        return factor.astype(np.result_type(spectrum.dtype, np.complex64)) * spectrum
    factor = factor.astype(jnp.finfo(spectrum.dtype).dtype)
    if not jnp.iscomplexobj(spectrum):
        return factor * spectrum
    return lax.complex(factor * spectrum.real, factor * spectrum.imag)


def times_each(factors: Iterable[Any], values: Array) -> Array:
    """Multiply `values` by one of the `factors` after the other. These are real numbers, such as the lengths of a box.

    In single precision, the product of the lengths, a volume, may be zero or infinite where the result is not.
    """
    # Without the barrier, XLA may multiply constant factors first.
    opaque = (lax.optimization_barrier(jnp.asarray(factor)) for factor in factors)
    return functools.reduce(lambda product, factor: times(factor, product), opaque, values)


def times_unit(unit: complex | float, factor: Array, spectrum: Array) -> Array:
    """Return `unit * factor * spectrum`, for a real `factor` and a `unit` that is ±1 or ±i."""
    if not complex(unit).imag:
        return times(factor if unit == 1 else -factor, spectrum)
    factor = aligned(factor, spectrum).astype(jnp.finfo(spectrum.dtype).dtype) * complex(unit).imag
    return lax.complex(-factor * spectrum.imag, factor * spectrum.real)


def planes(ndim: int) -> tuple[tuple[int, int], ...]:
    """Return the plane of rotation (i, j) of each component of an axial vector: yz, zx and xy in three dimensions."""
    return ((1, 2), (2, 0), (0, 1)) if ndim == 3 else tuple(itertools.combinations(range(ndim), 2))


def cross(a: Sequence[Any], axial: Parts, product: Callable[[Any, Array], Array] = operator.mul) -> Parts:
    """Return the components of `a × w`, from the components of a vector a and an axial vector w.

    The number of dimensions is two or more. In two dimensions, w is one number, and `a × w = (a_y w, -a_x w)`.
    """
    turns = tuple(enumerate(planes(len(a))))

    def component(axis: int) -> Array:
        plus = [product(a[j], axial[n]) for n, (i, j) in turns if i == axis]
        minus = [product(a[i], axial[n]) for n, (i, j) in turns if j == axis]
        return functools.reduce(operator.sub, minus, total(plus)) if plus else -total(minus)

    return tuple(map(component, range(len(a))))


def squared(k: Wavenumbers) -> Array:
    """Return k². The symbol of the Laplacian is -k²."""
    return total(component**2 for component in k)


def length(k: Wavenumbers) -> Array:
    """Return |k|. Where |k| is zero, at the mean and in padding, JAX's derivative of |k| is zero instead of NaN."""
    square = squared(k)
    return jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))


def inverse(symbol: Array) -> Array:
    """Return 1 / symbol, and zero where the symbol is zero: at the mean and in padding."""
    return jnp.where(symbol == 0, 0, 1 / jnp.where(symbol == 0, 1, symbol))


def inverse_laplacian(k: Wavenumbers, spectrum: Array) -> Array:
    """Return the spectrum of the solution u of `∇²u = f`, from the spectrum of f. The mean of u is zero.

    `k` must include Nyquist wavenumbers.
    """
    return times(-inverse(squared(k)), spectrum)


def cast(value: Any, like: Array) -> Array:
    """Return a real parameter, such as a viscosity, in the precision of `like`, a spectrum or a field."""
    return jnp.asarray(value, field_dtype(like.dtype))


class Nabla(NamedTuple):
    """First derivatives of spectra.

    The derivative along an axis multiplies a spectrum by `unit * k`. If the spectrum is already a first derivative
    along that axis, the next derivative multiplies it by `-k / unit`. The unit of Fourier modes is i. The unit of
    cosines is -1, because their derivatives are `-k sin`.

    - `k`: the wavenumbers, with zero in place of Nyquist wavenumbers. Inverses must not divide by the squares of these
        wavenumbers: see `inverse_laplacian`.
    - `units`: the unit of each axis.
    - `across`: the derivative along the first axis if its basis is `Chebyshev`; otherwise `None`.
    """

    k: Wavenumbers
    units: tuple[complex, ...]
    across: Callable[[Array], Array] | None = None

    @property
    def ndim(self) -> int:
        return len(self.k)

    def rise(self, axis: int, part: Array) -> Array:
        """Return the derivative of a spectrum along an axis. The spectrum must not be a slope along that axis."""
        if axis == 0 and self.across is not None:
            return self.across(part)
        return times_unit(self.units[axis], self.k[axis], part)

    def fall(self, axis: int, part: Array) -> Array:
        """Return the derivative of a spectrum along an axis. The spectrum must be a slope along that axis."""
        if axis == 0 and self.across is not None:
            return self.across(part)
        return times_unit(-1 / self.units[axis], self.k[axis], part)

    def gradient(self, scalar: Array) -> Array:
        """Return the spectrum of the gradient of a scalar."""
        return stack((self.rise(axis, scalar) for axis in range(self.ndim)), self.ndim)

    def divergence(self, vector: Array) -> Array:
        """Return the spectrum of the divergence of a vector."""
        return total(map(self.fall, range(self.ndim), components(vector, self.ndim)))

    def divergence_of_tensor(self, tensor: Tensor) -> Array:
        """Return the spectrum of the divergence of a symmetric tensor. Missing entries are zero.

        An off-diagonal entry (i, j) is a slope along both axes; a diagonal entry is not a slope.
        """

        def row(i: int) -> Array:
            parts = ((j, tensor.get((min(i, j), max(i, j)))) for j in range(self.ndim))
            return total(self.rise(j, part) if i == j else self.fall(j, part) for j, part in parts if part is not None)

        return stack(map(row, range(self.ndim)), self.ndim)

    def rotation(self, vector: Array) -> Parts:
        """Return the spectrum of the vorticity `∂v_j/∂x_i - ∂v_i/∂x_j` for each of the `planes`."""
        v = components(vector, self.ndim)
        return tuple(self.rise(i, v[j]) - self.rise(j, v[i]) for i, j in planes(self.ndim))

    def curl(self, vector: Array) -> Array:
        """Return the spectrum of the curl: a vector in three dimensions, a scalar in two."""
        parts = self.rotation(vector)
        return stack(parts, self.ndim) if self.ndim == 3 else parts[0]

    def curl_of_axial(self, axial: Array) -> Array:
        """Return the spectrum of the curl of an axial vector, or of a scalar s in two dimensions: `(∂s/∂y, -∂s/∂x)`."""
        parts = components(axial, self.ndim) if self.ndim == 3 else (axial,)
        return stack(cross(range(self.ndim), parts, self.fall), self.ndim)

    def projection(self, vector: Array) -> Array:
        """Return the spectrum of the divergence-free part of a vector: `v - ∇ (∇·∇)⁻¹ ∇·v`.

        Here `∇·∇` is the divergence of the gradient, and not the Laplacian, so that the result has no divergence in any
        mode.
        """
        parts = components(vector, self.ndim)
        units = [unit / self.units[0] for unit in self.units]  # All units of Fourier modes become one.
        along = total(times_unit(1 / unit, k, part) for unit, k, part in zip(units, self.k, parts))
        longitudinal = times(inverse(squared(self.k)), along)
        return stack(
            (part - times_unit(unit, k, longitudinal) for unit, k, part in zip(units, self.k, parts)), self.ndim
        )
