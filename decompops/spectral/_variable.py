"""`VariableLaplacian`: the divergence of a coefficient times the gradient."""

from dataclasses import replace
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Inexact, Shaped

from .._common.byte_order import device_array
from .._core.decomposition import Decomposition
from .._core.reductions import cleared
from .._core.structure import Structure
from .._operator.base import Compose
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.multiply import Multiply
from .._operator.placed import Placed
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft, check_periodic
from ._modes import AbstractSpectral, Components
from ._operator import AbstractSpectralOperator
from ._solve import Poisson


class VariableLaplacian(AbstractSpectral, AbstractDerivable):
    """The divergence of a coefficient times the gradient, `∇·(a ∇u)`, of a periodic scalar field u.

    The operator is symmetric, and negative definite but for constants, which it maps to zero: `solve.CG` inverts it.

    **The Nyquist mode.** First derivatives at the points of the grid drop modes with a Nyquist wavenumber. So
    `Divergence(fft) @ Multiply(dec, a) @ Gradient(fft)` maps some modes to zero and others nearly to zero, and no
    method solves its systems for every right-hand side. This operator instead takes first derivatives half a cell
    beside the points, where they are exact for all modes: `∂u/∂x` and a at `x + h/2`, for cells of length h, and
    likewise along the other axes. With a constant a, the result is `a * Laplacian(fft)(u)` in all modes.

    !!! example

        ```python
        laplacian = spectral.VariableLaplacian(fft, a)
        u = solve.CG(laplacian, laplacian.approximate_inverse)(f)
        ```
    """

    fft: AbstractTransform
    coefficient: Float[Array, "*coefficient"]
    midway: Float[Array, "*vector"]  # The coefficient half a cell beside the points, one component for each axis.

    def __init__(self, fft: AbstractTransform, coefficient: Float[Array | np.ndarray, "*coefficient"]):
        """**Arguments:**

        - `fft`: the transform, periodic along every axis, and built with a `shape`; with `real=True` for real fields.
        - `coefficient`: the field a, real and positive, of shape `(*batch, *shape)`. With batch axes, each field of a
            batch has its own coefficient. Between the points, `log(a)` is interpolated by its Fourier series.

        **Returns** (when called): `∇·(a ∇u)`, of the shape and dtype of u.

        **Raises:** `ValueError` if `fft` is not periodic, does not transform all axes or does not keep all modes, or if
        `coefficient` does not have the shape of the grid; `TypeError` if `coefficient` is not real.
        """
        check_fft(fft)
        check_periodic(fft)
        if len(fft.transformed) < fft.decomposition.ndim or fft.modes not in (None, fft.decomposition.shape):
            raise ValueError(f"`fft` must transform all axes of the grid, and keep all modes; got {fft!r}.")
        coefficient = device_array(coefficient)
        if not jnp.issubdtype(coefficient.dtype, jnp.floating):
            raise TypeError(f"`coefficient` must be real; got {coefficient.dtype}.")
        fft.decomposition.layout().check(coefficient, "coefficient")
        self.fft = fft
        self.coefficient = Placed(fft.decomposition)(coefficient)
        self.midway = jnp.exp(_Midway(fft)(jnp.log(self._positive)).real)

    @property
    def null_space(self) -> Literal["constants"]:
        """The fields that the operator maps to zero: constants."""
        return "constants"

    @property
    def approximate_inverse(self) -> Compose:
        """The preconditioner `(1/√a) ∇⁻² (1/√a)`, which is the inverse if a is constant.

        With a smooth a, it is close to the inverse for nearly all modes, because `√a u` fulfils an equation whose
        highest derivative is the plain Laplacian.

        **Source:** Concus and Golub, SIAM J. Numer. Anal. 10 (1973).
        """
        root = Multiply(self.decomposition, 1 / jnp.sqrt(self._positive))
        return root @ Poisson(self.fft) @ root

    @property
    def decomposition(self) -> Decomposition:
        return self.fft.decomposition

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        field, _ = self.transform.structures(UNCHANGED, given)
        field = replace(field, components=())
        return field, field

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        del form  # The operator is real and symmetric.
        slope = _SlopesMidway(self.fft)
        if local:
            return -slope.T.local(_vector.times(self.midway, slope.local(device_array(x))))
        return -slope.T(_vector.times(self.midway, slope(x)))

    @property
    def _positive(self) -> Array:
        """The coefficient, with ones in its padding, where its logarithm would be infinite."""
        return cleared(self.coefficient, self.decomposition.shape, filling=1.0)


class _SlopesMidway(AbstractSpectralOperator):
    """The first derivative along each axis, half a cell beside the points of the grid along this axis."""

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = ("scalar", "vector")

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        along = zip(self.wavenumbers(spectrum), _half_cells(self, spectrum))
        parts = (
            _vector.times(lax.complex(-k * jnp.sin(k * half), k * jnp.cos(k * half)), spectrum) for k, half in along
        )
        return _vector.stack(parts, self.decomposition.ndim)


class _Midway(AbstractSpectralOperator):
    """The field half a cell beside the points of the grid, along each axis in turn."""

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = ("scalar", "vector")

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        # A Nyquist mode is zero half a cell beside the points: its cosine is zero, and its sine is not known.
        along = zip(*(self.wavenumbers(spectrum, nyquist=n) for n in (True, False)), _half_cells(self, spectrum))
        parts = (_vector.times(lax.complex(jnp.cos(k * half), jnp.sin(q * half)), spectrum) for k, q, half in along)
        return _vector.stack(parts, self.decomposition.ndim)


def _half_cells(operator: AbstractSpectral, spectrum: Array) -> tuple[Array, ...]:
    return tuple(_vector.cast(length / 2, spectrum) for length in operator.fft.decomposition.spacing)
