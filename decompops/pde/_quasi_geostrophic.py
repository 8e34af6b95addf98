"""Quasi-geostrophic flow of one layer."""

from typing import Any, ClassVar

import equinox as eqx
from jax import Array, lax
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
from ._vorticity import advected, velocity_of


class QuasiGeostrophic(AbstractEquation):
    """Quasi-geostrophic flow of one layer on a β-plane, for the potential vorticity `q = ∇²ψ - ψ / L_d²`, a scalar.

    The equation is `∂q/∂t = -(u·∇)q - β u_y + ν ∇²q - γ ∇²ψ + F`. The velocity is `u = (-∂ψ/∂y, ∂ψ/∂x)`, and x points
    to the east. Rossby waves have the frequency `-β k_x / (k² + 1/L_d²)` (Vallis, Atmospheric and Oceanic Fluid
    Dynamics, 2017, chapters 5 and 6). They are a part of the linear term, so `ETDRK` moves them exactly. Each
    evaluation of the right-hand side takes four transforms in two batched calls.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape` of two axes.
    - `viscosity`: ν, a nonnegative number.
    - `beta`: β, the change of the Coriolis parameter along y, a number.
    - `deformation_radius`: L_d, a positive number; `None` for a layer under a rigid lid, where `q = ∇²ψ`.
    - `drag`: γ, the nonnegative rate of the Ekman friction at the bottom. All numbers may be traced, so that JAX can
        differentiate with respect to them.
    - `forcing`: a function `(t, q, args)` that returns the spectrum of F, or a tuple of such functions, whose results
        are added.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** the errors of `VorticityNavierStokes`; `ValueError` or `TypeError` for an invalid `beta` or
    `deformation_radius`.
    """

    fft: AbstractTransform
    viscosity: Number
    beta: Number = 0.0
    deformation_radius: Number | None = None
    drag: Number = eqx.field(kw_only=True, default=0.0)
    forcing: Forcing = eqx.field(kw_only=True, default=None)
    components: ClassVar[Components] = "scalar"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        if len(check_fft(self.fft, real=True)) != 2:
            raise ValueError(f"`fft` must transform a grid of two axes; got {self.fft!r}.")
        check_number("viscosity", self.viscosity, least=0)
        check_number("beta", self.beta)
        if self.deformation_radius is not None:
            check_number("deformation_radius", self.deformation_radius, positive=True)
        check_number("drag", self.drag, least=0)
        check_forcing(self)

    def stream(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Return the spectrum of the stream function ψ of a state. Its mean is zero under a rigid lid."""
        return _vector.times(-self._inverse(u), u)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        squared, inverse = _vector.squared(self.wavenumbers(u)), self._inverse(u)
        decay = squared * (_vector.cast(self.viscosity, u) + _vector.cast(self.drag, u) * inverse)
        wave = _vector.cast(self.beta, u) * self.wavenumbers(u, nyquist=False)[0] * inverse
        return lax.complex(-decay, wave)

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        """Return the velocity of a state."""
        return velocity_of(self, -self.stream(u))

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        # The flow does not change ψ along itself. So (u·∇)q equals (u·∇)∇²ψ.
        (rate,) = advected(self, -self.stream(u))
        return add_forcing(rate, self.forcing, t, u, args)

    def _inverse(self, u: Array) -> Array:
        """Return `1 / (k² + 1/L_d²)`, and zero for the mean under a rigid lid."""
        squared = _vector.squared(self.wavenumbers(u))
        if self.deformation_radius is None:
            return _vector.inverse(squared)
        # The square of a very large radius has an inverse of zero in single precision: a rigid lid.
        return _vector.inverse(squared + _vector.cast(self.deformation_radius, u) ** -2)
