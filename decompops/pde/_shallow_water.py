"""The rotating shallow-water equations."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.box import Number
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components
from ._equation import AbstractEquation, Time
from ._forcing import Forcing, add_forcing, check_forcing


class ShallowWater(AbstractEquation):
    """The rotating shallow-water equations for a velocity u in two dimensions and the elevation h of the surface.

    The equations are `∂u/∂t = u × (ω + f) - ∇(g h + u²/2) + ν ∇²u` and `∂h/∂t = -∇·((H + h) u) + κ ∇²h`, with the
    vorticity ω and the depth H of the fluid at rest (Vallis, Atmospheric and Oceanic Fluid Dynamics, 2017, chapter 3).
    The state has three components: the spectra of u and h. Inertia-gravity waves have the frequency
    `√(f² + g H k²)`, which limits the time step: the linear term has only the diffusion. Each evaluation of the
    right-hand side takes nine transforms in two batched calls.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape` of two axes.
    - `depth`: H, a positive number.
    - `gravity`: g, a nonnegative number.
    - `coriolis`: f, the Coriolis parameter, a number.
    - `viscosity`, `diffusivity`: ν and κ, nonnegative numbers. All numbers may be traced, so that JAX can differentiate
        with respect to them.
    - `forcing`: a function `(t, u, args)` of the state, or a tuple of such functions. Each function returns the
        spectrum of a term that is added to the right-hand side.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** the errors of `AbstractEquation`; `ValueError` or `TypeError` if `fft` takes complex fields or does not
    have two axes, or for invalid numbers.
    """

    fft: AbstractTransform
    depth: Number
    gravity: Number = 1.0
    coriolis: Number = 0.0
    viscosity: Number = eqx.field(kw_only=True, default=0.0)
    diffusivity: Number = eqx.field(kw_only=True, default=0.0)
    forcing: Forcing = eqx.field(kw_only=True, default=None)
    components: ClassVar[Components] = 3
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        if len(check_fft(self.fft, real=True)) != 2:
            raise ValueError(f"`fft` must transform a grid of two axes; got {self.fft!r}.")
        check_number("depth", self.depth, positive=True)
        check_number("gravity", self.gravity, least=0)
        check_number("coriolis", self.coriolis)
        check_number("viscosity", self.viscosity, least=0)
        check_number("diffusivity", self.diffusivity, least=0)
        check_forcing(self)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        squared = _vector.squared(self.wavenumbers(u))
        decay = -_vector.cast(self.viscosity, u) * squared
        return _vector.stack((decay, decay, -_vector.cast(self.diffusivity, u) * squared), 2)

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        """Return the speeds of gravity waves: the sum of the absolute value of u and of `√(g (H + h))`."""
        a, b, h = _vector.components(self.fields(u), 2)
        depth = jnp.maximum(_vector.cast(self.depth, u) + h, 0)
        wave = jnp.sqrt(_vector.cast(self.gravity, u) * depth)
        return _vector.stack((abs(a) + wave, abs(b) + wave), 2)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        nabla = self.nabla(u)
        *velocity, elevation = _vector.components(u, 2)
        vorticity = nabla.curl(_vector.stack(velocity, 2))
        fields = self.to_grid(_vector.stack((*velocity, elevation, vorticity), 2))
        a, b, h, rotation = _vector.components(fields, 2)
        products = (*_vector.cross((a, b), (rotation,)), h * a, h * b, (a**2 + b**2) / 2)
        *turned, along_x, along_y, energy = _vector.components(self.from_grid(_vector.stack(products, 2)), 2)
        # The terms without products are added to the spectra, where they are exact for all modes.
        turning = _vector.cross(velocity, (_vector.cast(self.coriolis, u),), lambda v, f: _vector.times(f, v))
        head = _vector.times(_vector.cast(self.gravity, u), elevation) + energy
        push = [c + d - nabla.rise(axis, head) for axis, (c, d) in enumerate(zip(turned, turning))]
        depth = _vector.cast(self.depth, u)
        flux = [moved + _vector.times(depth, v) for moved, v in zip((along_x, along_y), velocity)]
        rate = _vector.stack((*push, -nabla.divergence(_vector.stack(flux, 2))), 2)
        return add_forcing(rate, self.forcing, t, u, args)
