"""Linear transport."""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Complex, Inexact

from .._operator.fft import FFT3D
from .._operator.transform import Lengths, Number, box
from ..spectral import _vector
from ..spectral._operator import check_number, internal_transform
from ._equation import AbstractEquation, Time, cast


class Diffusion(AbstractEquation):
    """`∂u/∂t = κ ∇²u`, for a scalar or for each component."""

    fft: FFT3D
    diffusivity: Number
    lengths: Lengths

    def __init__(self, fft: FFT3D, diffusivity: Number, lengths: Lengths = 2 * math.pi):
        """**Arguments:**

        - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
        - `diffusivity`: κ, a number of at least zero. May be traced, to differentiate by.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all.
        """
        self.fft = internal_transform(fft)
        self.diffusivity = check_number("diffusivity", diffusivity, least=0)
        self.lengths = box(lengths)

    def linear(self, u: Complex[Array, "..."]) -> Inexact[Array, "..."]:
        return -cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(self, t: Time, u: Complex[Array, "..."], args: Any = None) -> Complex[Array, "..."]:
        return jnp.zeros_like(u)


class Advection(AbstractEquation):
    """`∂u/∂t = -c·∇u + κ ∇²u` with a constant velocity c, for a scalar or for each component."""

    fft: FFT3D
    velocity: tuple[Number, Number, Number]
    diffusivity: Number
    lengths: Lengths

    def __init__(self, fft: FFT3D, velocity: Any, diffusivity: Number = 0.0, lengths: Lengths = 2 * math.pi):
        """**Arguments:**

        - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
        - `velocity`: c, three numbers, along x, y, z.
        - `diffusivity`: κ, a number of at least zero.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all.
        """
        self.fft = internal_transform(fft)
        try:
            x, y, z = velocity
        except (TypeError, ValueError) as error:
            raise ValueError(f"`velocity` must be three numbers, along x, y, z; got {velocity!r}.") from error
        self.velocity = check_number("velocity", x), check_number("velocity", y), check_number("velocity", z)
        self.diffusivity = check_number("diffusivity", diffusivity, least=0)
        self.lengths = box(lengths)

    def linear(self, u: Complex[Array, "..."]) -> Inexact[Array, "..."]:
        k = self.wavenumbers(u, nyquist=False)
        x, y, z = (cast(c, u) * component for c, component in zip(self.velocity, k))
        decay = -cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))
        return lax.complex(decay, -(x + y + z))

    def nonlinear(self, t: Time, u: Complex[Array, "..."], args: Any = None) -> Complex[Array, "..."]:
        return jnp.zeros_like(u)
