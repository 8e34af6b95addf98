"""Linear transport."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Inexact

from .._blocks import axis_names
from .._box import Box, Number
from .._check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ._equation import AbstractEquation, Time, Walls


class Diffusion(AbstractEquation):
    """`∂u/∂t = κ ∇²u`, for a scalar or for each component.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `diffusivity`: κ, a number of at least zero. May be traced, to differentiate by.
    - `box`: the periodic box.
    """

    fft: AbstractTransform
    diffusivity: Number
    box: Box = Box()
    walls: ClassVar[Walls] = "any"

    def __check_init__(self):
        check_number("diffusivity", self.diffusivity, least=0)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return -_vector.cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        return jnp.zeros_like(u)


def _velocity(velocity: Any) -> tuple[Number, ...]:
    try:
        parts = tuple(velocity)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`velocity` must be numbers, one for each axis of the grid; got {velocity!r}.") from error
    return tuple(check_number("velocity", part) for part in parts)


class Advection(AbstractEquation):
    """`∂u/∂t = -c·∇u + κ ∇²u` with a constant velocity c, for a scalar or for each component.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.
    - `velocity`: c, one number along each axis of the grid: `(cx, cy, cz)`.
    - `diffusivity`: κ, a number of at least zero.
    - `box`: the periodic box.
    """

    fft: AbstractTransform
    velocity: tuple[Number, ...] = eqx.field(converter=_velocity)
    diffusivity: Number = 0.0
    box: Box = Box()

    def __check_init__(self):
        names = axis_names(len(check_fft(self.fft)))
        if len(self.velocity) != len(names):
            raise ValueError(f"`velocity` must be one number along each of {', '.join(names)}; got {self.velocity!r}.")
        check_number("diffusivity", self.diffusivity, least=0)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        k = self.wavenumbers(u, nyquist=False)
        shift = _vector.total(_vector.cast(c, u) * component for c, component in zip(self.velocity, k))
        decay = -_vector.cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))
        return lax.complex(decay, -shift)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        return jnp.zeros_like(u)
