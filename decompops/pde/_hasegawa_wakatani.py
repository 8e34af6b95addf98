"""The Hasegawa–Wakatani equations of drift waves."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import check_flag, check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components
from ._equation import AbstractEquation, Time
from ._forcing import Forcing, add_forcing, check_forcing
from ._symbols import fourth_power
from ._vorticity import advected, velocity_of


class HasegawaWakatani(AbstractEquation):
    """The Hasegawa–Wakatani equations of drift waves at the edge of a magnetized plasma, in two dimensions.

    The equations are `∂ζ/∂t + (v·∇)ζ = α (φ - n) + D ζ` and `∂n/∂t + (v·∇)n = α (φ - n) - κ ∂φ/∂y + D n`. φ is the
    electric potential, `ζ = ∇²φ` the vorticity of the velocity `v = (-∂φ/∂y, ∂φ/∂x)`, n the density without its mean
    profile, and `D = ν ∇² - μ ∇⁴` (Hasegawa & Wakatani, Phys. Rev. Lett. 50, 1983). x is the direction of the gradient.
    Lengths are in units of the hybrid gyroradius, times in units of the inverse ion gyrofrequency. The state has two
    components: the spectra of ζ and n. Each evaluation of the right-hand side takes seven transforms in two batched
    calls.

    The coupling α has no mean. With `modified=True`, it also has no part that is constant along y: electrons do not
    short-circuit zonal flows (Numata, Ball & Dewar, Phys. Plasmas 14, 2007).

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape` of two axes.
    - `adiabaticity`: α, a nonnegative number.
    - `gradient`: κ, the gradient of the mean density, a number.
    - `diffusivity`, `hyper_diffusivity`: ν and μ, nonnegative numbers. All numbers may be traced, so that JAX can
        differentiate with respect to them.
    - `modified`: whether zonal flows do not couple.
    - `forcing`: a function `(t, u, args)` of the state, or a tuple of such functions. Each function returns the
        spectrum of a term that is added to the right-hand side.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** the errors of `AbstractEquation`; `ValueError` or `TypeError` if `fft` takes complex fields or does not
    have two axes, or for invalid numbers.
    """

    fft: AbstractTransform
    adiabaticity: Number
    gradient: Number = 1.0
    diffusivity: Number = 0.0
    hyper_diffusivity: Number = eqx.field(kw_only=True, default=0.0)
    modified: bool = eqx.field(kw_only=True, default=False, static=True)
    forcing: Forcing = eqx.field(kw_only=True, default=None)
    components: ClassVar[Components] = 2
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        if len(check_fft(self.fft, real=True)) != 2:
            raise ValueError(f"`fft` must transform a grid of two axes; got {self.fft!r}.")
        check_number("adiabaticity", self.adiabaticity, least=0)
        check_number("gradient", self.gradient)
        check_number("diffusivity", self.diffusivity, least=0)
        check_number("hyper_diffusivity", self.hyper_diffusivity, least=0)
        check_flag("modified", self.modified)
        check_forcing(self)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        k = self.wavenumbers(u)
        fast = _vector.cast(self.hyper_diffusivity, u) * fourth_power(k, True)
        return -_vector.cast(self.diffusivity, u) * _vector.squared(k) - fast

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        """Return the velocity of a state."""
        return velocity_of(self, -_vector.inverse_laplacian(self.wavenumbers(u), _vector.components(u, 2)[0]))

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        vorticity, density = _vector.components(u, 2)
        k = self.wavenumbers(u)
        potential = _vector.inverse_laplacian(k, vorticity)
        of_vorticity, of_density = advected(self, -potential, density)
        coupled = (k[1] if self.modified else _vector.squared(k)) != 0
        current = jnp.where(aligned(coupled, potential), potential - density, 0)
        current = _vector.times(_vector.cast(self.adiabaticity, u), current)
        drift = _vector.times(_vector.cast(self.gradient, u), self.nabla(u).rise(1, potential))
        rate = _vector.stack((of_vorticity + current, of_density + current - drift), 2)
        return add_forcing(rate, self.forcing, t, u, args)
