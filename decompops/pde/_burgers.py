"""Burgers' equation."""

from typing import Any, ClassVar

from jax import Array
from jaxtyping import Complex, Inexact

from .._box import Box, Number
from .._check import check_number
from .._operator.fft import FFT
from ..spectral import _vector
from ..spectral._modes import Components, check_fft
from ._equation import AbstractEquation, Time, velocity_and_vorticity


class Burgers(AbstractEquation):
    """Burgers' equation for a velocity u of three components: `∂u/∂t = -(u·∇)u + ν ∇²u`.

    The advection is evaluated as `u × (∇ × u) - ∇|u|²/2`, with ten transforms instead of fifteen.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`. The state keeps its modes below a third of the grid;
        see `decompops.spectral.dealiased`.
    - `viscosity`: ν, a number of at least zero. May be traced, to differentiate by.
    - `box`: the periodic box.
    """

    fft: FFT
    viscosity: Number
    box: Box = Box()
    components: ClassVar[Components] = "vector"
    dealiases: ClassVar[bool] = True

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("viscosity", self.viscosity, least=0)

    def linear(self, u: Complex[Array, "*batch kx ky kz"]) -> Inexact[Array, "*#batch #kx #ky #kz"]:
        return -_vector.cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(
        self, t: Time, u: Complex[Array, "*batch kx ky kz"], args: Any = None
    ) -> Complex[Array, "*batch kx ky kz"]:
        k = self.wavenumbers(u, nyquist=False)
        velocity, vorticity = velocity_and_vorticity(self.transform, k, u)
        half_square = (velocity[0] ** 2 + velocity[1] ** 2 + velocity[2] ** 2) / 2
        products = self.transform(_vector.stack(half_square, *_vector.cross(velocity, vorticity)))
        return products[..., 1:, :, :, :] - _vector.gradient(k, products[..., 0, :, :, :])
