"""Linear transport."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Complex, Inexact

from .._box import Box, Number
from .._check import check_number
from .._operator.fft import FFT
from ..spectral import _vector
from ._equation import AbstractEquation, Time


class Diffusion(AbstractEquation):
    """`∂u/∂t = κ ∇²u`, for a scalar or for each component.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `diffusivity`: κ, a number of at least zero. May be traced, to differentiate by.
    - `box`: the periodic box.
    """

    fft: FFT
    diffusivity: Number
    box: Box = Box()

    def __check_init__(self):
        check_number("diffusivity", self.diffusivity, least=0)

    def linear(self, u: Complex[Array, "*batch kx ky kz"]) -> Inexact[Array, "*#batch #kx #ky #kz"]:
        return -_vector.cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(
        self, t: Time, u: Complex[Array, "*batch kx ky kz"], args: Any = None
    ) -> Complex[Array, "*batch kx ky kz"]:
        return jnp.zeros_like(u)


def _velocity(velocity: Any) -> tuple[Number, Number, Number]:
    try:
        x, y, z = velocity
    except (TypeError, ValueError) as error:
        raise ValueError(f"`velocity` must be three numbers, along x, y, z; got {velocity!r}.") from error
    return check_number("velocity", x), check_number("velocity", y), check_number("velocity", z)


class Advection(AbstractEquation):
    """`∂u/∂t = -c·∇u + κ ∇²u` with a constant velocity c, for a scalar or for each component.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `velocity`: c, three numbers, along x, y, z.
    - `diffusivity`: κ, a number of at least zero.
    - `box`: the periodic box.
    """

    fft: FFT
    velocity: tuple[Number, Number, Number] = eqx.field(converter=_velocity)
    diffusivity: Number = 0.0
    box: Box = Box()

    def __check_init__(self):
        check_number("diffusivity", self.diffusivity, least=0)

    def linear(self, u: Complex[Array, "*batch kx ky kz"]) -> Inexact[Array, "*#batch #kx #ky #kz"]:
        k = self.wavenumbers(u, nyquist=False)
        x, y, z = (_vector.cast(c, u) * component for c, component in zip(self.velocity, k))
        decay = -_vector.cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))
        return lax.complex(decay, -(x + y + z))

    def nonlinear(
        self, t: Time, u: Complex[Array, "*batch kx ky kz"], args: Any = None
    ) -> Complex[Array, "*batch kx ky kz"]:
        return jnp.zeros_like(u)
