"""Burgers' equation."""

import equinox as eqx
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ._convection import AbstractConvection, Convected
from ._equation import Walls


class Burgers(AbstractConvection):
    """Burgers' equation for a velocity u with a component for each axis of the grid: `∂u/∂t = -s (u·∇)u + ν ∇²u`.

    The convection is evaluated as `u × (∇ × u) - ∇|u|²/2`, which needs ten transforms in 3D; `(u·∇)u` would need
    fifteen.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `viscosity`: ν, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it.
    - `scale`: s, a number.
    - `components`: "vector", or "scalar" for one field with `∂u/∂t = -s u (∂u/∂x + ∂u/∂y + ...) + ν ∇²u`.
    - `conservative`: whether the convection of a vector is `s ∇·(u u)/2`, which conserves the mean, instead of
        `s (u·∇)u`.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** the errors of `AbstractEquation`; `ValueError` if `fft` takes complex fields; `ValueError` or
    `TypeError` if a number is invalid.
    """

    fft: AbstractTransform
    viscosity: Number
    scale: Number = eqx.field(kw_only=True, default=1.0)
    components: Convected = eqx.field(kw_only=True, default="vector", static=True)
    conservative: bool = eqx.field(kw_only=True, default=False, static=True)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_number("viscosity", self.viscosity, least=0)

    @property
    def walls(self) -> Walls:
        return "even" if self.components == "vector" else "none"

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return -_vector.cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))
