"""Burgers' equation."""

from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Complex, Inexact

from .._box import Box, Number
from .._check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components
from ._equation import AbstractEquation, Time, velocity_and_vorticity


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
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("viscosity", self.viscosity, least=0)

    def linear(self, u: Complex[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return -_vector.cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(self, t: Time, u: Complex[Array, "*spectrum"], args: Any = None) -> Complex[Array, "*spectrum"]:
        k = self.wavenumbers(u, nyquist=False)
        velocity, vorticity = velocity_and_vorticity(self, k, u)
        half_square = _vector.total(part**2 for part in velocity) / 2
        if not vorticity:  # in one dimension
            return -_vector.gradient(k, self.from_grid(half_square))
        ndim = len(k)
        products = self.from_grid(_vector.stack((half_square, *_vector.cross(velocity, vorticity)), ndim))
        grid = [slice(None)] * ndim
        return products[(..., slice(1, None), *grid)] - _vector.gradient(k, products[(..., 0, *grid)])
