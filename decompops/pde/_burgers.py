"""Burgers' equation."""

import math
from typing import Any, ClassVar

from jax import Array
from jaxtyping import Complex, Inexact

from .._operator.fft import FFT3D
from .._operator.transform import Lengths, Number, box
from ..spectral import _vector
from ..spectral._filter import dealiased
from ..spectral._operator import Components, check_number, internal_transform
from ._equation import AbstractEquation, Time, cast, velocity_and_vorticity


class Burgers(AbstractEquation):
    """Burgers' equation for a velocity u of three components: `∂u/∂t = -(u·∇)u + ν ∇²u`.

    The advection is evaluated as `u × (∇ × u) - ∇|u|²/2`, with ten transforms instead of fifteen.
    """

    fft: FFT3D
    viscosity: Number
    lengths: Lengths
    components: ClassVar[Components] = "vector"

    def __init__(self, fft: FFT3D, viscosity: Number, lengths: Lengths = 2 * math.pi):
        """**Arguments:**

        - `fft`: the transform, built with `real=True` and a `shape`. Of its modes, those below a third of the grid
            are kept; see `decompops.spectral.dealiased`.
        - `viscosity`: ν, a number of at least zero. May be traced, to differentiate by.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all.
        """
        self.fft = dealiased(internal_transform(fft))
        self.viscosity = check_number("viscosity", viscosity, least=0)
        self.lengths = box(lengths)

    def linear(self, u: Complex[Array, "..."]) -> Inexact[Array, "..."]:
        return -cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(self, t: Time, u: Complex[Array, "..."], args: Any = None) -> Complex[Array, "..."]:
        k = self.wavenumbers(u, nyquist=False)
        velocity, vorticity = velocity_and_vorticity(self.fft, k, u)
        half_square = (velocity[0] ** 2 + velocity[1] ** 2 + velocity[2] ** 2) / 2
        products = self.fft(_vector.stack(half_square, *_vector.cross(velocity, vorticity)))
        return products[..., 1:, :, :, :] - _vector.gradient(k, products[..., 0, :, :, :])
