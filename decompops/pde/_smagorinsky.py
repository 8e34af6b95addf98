"""Smagorinsky's model of the scales that the grid does not resolve."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft, of_transformed, varying_axes
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components
from ._equation import Time
from ._forcing import check_term_state
from ._products import AbstractProducts
from ._stress import viscous_force


class Smagorinsky(AbstractProducts):
    """The force of Smagorinsky's model on a velocity u: `∇·(2 (C Δ)² |S| S)` (Mon. Weather Rev. 91, 1963).

    S is the rate of strain `(∇u + (∇u)ᵀ)/2`, and `|S|` is `√(2 S:S)`. Pass the force as the argument `forcing` of
    `NavierStokes`. Each evaluation takes twelve transforms in two batched calls, or six transforms in 2D.

    !!! example

        ```python
        equation = pde.NavierStokes(fft, 1e-4, forcing=pde.Smagorinsky(fft, 0.17))
        ```

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `constant`: C, a nonnegative number, usually between 0.1 and 0.2. It may be traced, so that JAX can differentiate
        with respect to it.
    - `width`: Δ, a nonnegative number. The default is the geometric mean of the grid spacings of `fft` along the
        transformed axes of more than one cell.

    **Raises:** the errors of `AbstractEquation`; `ValueError` if `fft` takes complex fields, or if a number is
    negative.
    """

    fft: AbstractTransform
    constant: Number
    components: ClassVar[Components] = "vector"
    width: Number | None = eqx.field(kw_only=True, default=None)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("constant", self.constant, least=0)
        check_number("width", 0.0 if self.width is None else self.width, least=0)

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        return viscous_force(self, u, (), self._viscosity)

    def _viscosity(self, square: Array, scalars: _vector.Parts) -> Array:
        # The square root has no derivative at zero, so zeros are replaced by one before the root is taken.
        size = jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))
        return (_vector.cast(self.constant, square) * _vector.cast(self._width(), square)) ** 2 * size

    def _width(self) -> Number:
        if self.width is not None:
            return self.width
        shape, lengths = check_fft(self.fft), self.fft.box_lengths
        lengths, shape = of_transformed(self.fft, lengths), of_transformed(self.fft, shape)
        cells = [lengths[axis] / shape[axis] for axis in varying_axes(shape)]
        return math.prod(cells[1:], start=cells[0]) ** (1 / len(cells))
