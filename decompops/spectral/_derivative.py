"""Derivatives of periodic fields and of fields between walls, exact for every mode of the grid."""

import math
import operator
from collections.abc import Sequence
from typing import ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact

from .._basis.base import AbstractBasis
from .._basis.chebyshev import Chebyshev
from .._basis.fourier import Fourier
from .._common.blocks import axis_names
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft
from ._modes import Components, SlopeAxes
from ._operator import AbstractSpectralOperator


def _check_orders(orders: Sequence[int] | np.ndarray) -> tuple[int, ...]:
    try:
        found = tuple(operator.index(order) for order in orders)
    except TypeError:
        found = (-1,)
    if min(found, default=0) < 0:
        raise ValueError(f"`orders` must be integers of at least zero, one for each axis of the grid; got {orders!r}.")
    return found


class Derivative(AbstractSpectralOperator):
    """A partial derivative of a scalar field, or of each component of a vector field: `∂^(a+b+c) / ∂x^a ∂y^b ∂z^c`.

    An odd derivative along an axis drops the Nyquist mode of an even grid, because the samples of this mode do not
    determine its odd derivatives.

    The basis of the first axis may be `Chebyshev`. The derivative along this axis is then the exact derivative of the
    polynomial. Each derivative along this axis may multiply rounding errors near the walls by the square of the number
    of points.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `orders`: the order along each axis of the grid, `(a, b, c)` along x, y, z.

    **Returns** (when called): the derivative, of the shape and dtype of the field.

    **Raises:** `ValueError` if `orders` does not have one nonnegative integer for each axis, or if an order is positive
    along an axis that `fft` does not transform.
    """

    fft: AbstractTransform
    orders: Sequence[int] | np.ndarray = eqx.field(static=True, converter=_check_orders)
    first_basis: ClassVar[tuple[type[AbstractBasis], ...]] = (Chebyshev,)

    def __check_init__(self):
        names = axis_names(len(check_fft(self.fft)))
        if len(self.orders) != len(names):
            raise ValueError(
                f"`orders` must have one number for each of the axes {', '.join(names)}; got {self.orders!r}."
            )
        for axis, order in enumerate(self.orders):
            if order and axis not in self.fft.transformed:
                raise ValueError(
                    f"`orders` must be zero along {names[axis]}, which `fft` does not transform; got {self.orders!r}."
                )

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        orders = self.orders
        if not self.fft.bases[0].is_diagonal:
            for _ in range(orders[0]):
                spectrum = self.across(spectrum)
            orders = (0, *orders[1:])
        even, odd = (self.wavenumbers(spectrum, nyquist=nyquist) for nyquist in (True, False))
        for order, k_even, k_odd in zip(orders, even, odd):
            if order:
                spectrum = _vector.times((k_odd if order % 2 else k_even) ** order, spectrum)
        along = zip(self.fft.bases, check_fft(self.fft), orders)
        return _vector.times_unit(
            math.prod(basis.derivative(n, order).factor for basis, n, order in along), jnp.ones(()), spectrum
        )

    @property
    def slopes(self) -> tuple[SlopeAxes, SlopeAxes]:
        return ((),), (tuple(axis for axis, order in enumerate(self.orders) if order % 2),)


class Gradient(AbstractSpectralOperator):
    """The gradient of a scalar field: from `(*batch, nx, ny, nz)` to `(*batch, 3, nx, ny, nz)`.

    On a grid of two axes, the gradient maps `(*batch, nx, ny)` to `(*batch, 2, nx, ny)`, and so on. The basis of the
    first axis may be `Chebyshev`, as for `Derivative`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    """

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = ("scalar", "vector")
    first_basis: ClassVar[tuple[type[AbstractBasis], ...]] = (Chebyshev,)

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        return self.nabla(spectrum).gradient(spectrum)


class Divergence(AbstractSpectralOperator):
    """The divergence of a vector field: from `(*batch, 3, nx, ny, nz)` to `(*batch, nx, ny, nz)`.

    On a grid of two axes, the divergence maps `(*batch, 2, nx, ny)` to `(*batch, nx, ny)`, and so on. The basis of the
    first axis may be `Chebyshev`, as for `Derivative`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    """

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = ("vector", "scalar")
    first_basis: ClassVar[tuple[type[AbstractBasis], ...]] = (Chebyshev,)

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        return self.nabla(spectrum).divergence(spectrum)


class Curl(AbstractSpectralOperator):
    """The curl of a vector field, on a grid of two or three axes.

    In three dimensions, the curl of a field `(*batch, 3, nx, ny, nz)` is a vector of the same shape. On periodic grids,
    the transpose `Curl(fft).T` is the curl itself.

    In two dimensions, the curl is the scalar `∂v_y/∂x - ∂v_x/∂y`: from `(*batch, 2, nx, ny)` to `(*batch, nx, ny)`. The
    transpose is then the curl of a scalar, `(∂ψ/∂y, -∂ψ/∂x)`: the velocity of a stream function ψ.

    The basis of the first axis may be `Chebyshev`, as for `Derivative`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.

    **Raises:** `ValueError` if the grid has neither two nor three axes.
    """

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = ("vector", "axial")
    first_basis: ClassVar[tuple[type[AbstractBasis], ...]] = (Chebyshev,)

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        return self.nabla(spectrum).curl(spectrum)


class Laplacian(AbstractSpectralOperator):
    """The Laplacian of a scalar field, or of each component of a vector field.

    `Laplacian` keeps Nyquist modes; the `Divergence` of a `Gradient` drops them. The basis of the first axis may be
    `Chebyshev`, as for `Derivative`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.

    **Returns** (when called): the Laplacian, of the shape and dtype of the field.
    """

    fft: AbstractTransform
    first_basis: ClassVar[tuple[type[AbstractBasis], ...]] = (Chebyshev,)

    @property
    def null_space(self) -> Literal["constants"] | None:
        """What `decompops.solve` needs to know: "constants" on a periodic grid, whose modes are all kept; else None."""
        kept = self.fft.modes in (None, self.decomposition.shape)
        periodic = all(isinstance(basis, Fourier) for basis in self.fft.bases)
        return "constants" if kept and periodic else None

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        along = _vector.times(-_vector.squared(self.wavenumbers(spectrum)), spectrum)
        return along if self.fft.bases[0].is_diagonal else along + self.across(self.across(spectrum))
