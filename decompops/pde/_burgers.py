"""Burgers' equation."""

from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Inexact

from .._box import Box, Number
from .._check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components, slope_axes
from ._equation import AbstractEquation, Time, Walls, velocity_and_vorticity


class Burgers(AbstractEquation):
    """Burgers' equation for a velocity u with a component for each axis of the grid: `∂u/∂t = -(u·∇)u + ν ∇²u`.

    The advection is evaluated as `u × (∇ × u) - ∇|u|²/2`: in three dimensions with ten transforms instead of fifteen.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`. The state keeps its modes below a third of the grid;
        see `decompops.spectral.dealiased`.
    - `viscosity`: ν, a number of at least zero. May be traced, to differentiate by.
    - `box`: the periodic box.
    """

    fft: AbstractTransform
    viscosity: Number
    box: Box = Box()
    components: ClassVar[Components] = "vector"
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("viscosity", self.viscosity, least=0)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return -_vector.cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        nabla = self.nabla(u)
        velocity, vorticity = velocity_and_vorticity(self, nabla, u)
        half_square = _vector.total(part**2 for part in velocity) / 2
        if not vorticity:  # in one dimension
            return -nabla.gradient(self.from_grid(half_square))
        ndim = nabla.ndim
        products = self.from_grid(
            _vector.stack((half_square, *_vector.cross(velocity, vorticity)), ndim), ((), *slope_axes("vector", ndim))
        )
        grid = [slice(None)] * ndim
        return products[(..., slice(1, None), *grid)] - nabla.gradient(products[(..., 0, *grid)])
