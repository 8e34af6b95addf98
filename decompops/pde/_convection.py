"""The convection of a velocity, or of a scalar, by itself."""

from typing import TYPE_CHECKING, Any, Literal, get_args

from equinox import AbstractVar
from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.box import Number
from .._common.check import check_choice, check_flag, check_number
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._modes import slope_axes
from ._equation import AbstractEquation, Time
from ._products import symmetric_from_grid, velocity_and_vorticity


# A velocity with a component for each axis, or a scalar u that moves with the velocity (u, u, ...).
Convected = Literal["vector", "scalar"]


class AbstractConvection(AbstractEquation):
    """An equation in which a velocity, or a scalar, carries itself. No other term is a product of fields.

    The convection of a velocity is `(u·∇)u`, or `∇·(u u)/2` if `conservative`. The two are equal only in one dimension.
    The convection of a scalar is the sum of `∂(u²/2)/∂x_i` over all axes. It is multiplied by `scale`.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as an argument of every constructor.
        scale: Number
        components: Convected
        conservative: bool
    else:
        scale: AbstractVar[Number]
        components: AbstractVar[Convected]
        conservative: AbstractVar[bool]

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("scale", self.scale)
        check_choice("components", self.components, get_args(Convected))
        check_flag("conservative", self.conservative)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        factor, nabla = _vector.cast(self.scale, u), self.nabla(u)
        nabla = nabla._replace(k=tuple(factor * component for component in nabla.k))
        ndim = nabla.ndim
        if self.components == "scalar":
            return _vector.times_unit(1j, -_vector.total(nabla.k) / 2, self.from_grid(self.to_grid(u) ** 2))
        if self.conservative:
            velocity = _vector.components(self.to_grid(u, slope_axes("vector", ndim)), ndim)
            tensor = symmetric_from_grid(self, lambda i, j: velocity[i] * velocity[j], ndim)
            return -nabla.divergence_of_tensor(tensor) / 2
        velocity, vorticity = velocity_and_vorticity(self, nabla, u)  # The vorticity is multiplied by `scale`.
        half_square = _vector.total(part**2 for part in velocity) / 2
        if not vorticity:  # In one dimension, the velocity has no vorticity.
            return -nabla.gradient(self.from_grid(half_square))
        products = _vector.stack((half_square, *_vector.cross(velocity, vorticity)), ndim)
        products = self.from_grid(products, ((), *slope_axes("vector", ndim)))
        grid = [slice(None)] * ndim
        return products[(..., slice(1, None), *grid)] - nabla.gradient(products[(..., 0, *grid)])

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"] | None:
        velocity = super().speeds(u)
        return None if velocity is None else _vector.cast(self.scale, velocity) * velocity
