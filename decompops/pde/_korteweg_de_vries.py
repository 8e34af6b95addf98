"""The Korteweg–de Vries equation."""

import equinox as eqx
from jax import Array, lax
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import check_flag, check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_box_given
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ._convection import AbstractConvection, Convected
from ._symbols import fourth_power, third_power


class KortewegDeVries(AbstractConvection):
    """The Korteweg–de Vries equation of waves in shallow water, in any number of dimensions.

    The equation (Phil. Mag. 39, 1895) is `∂u/∂t = -s u D u - ξ D ∇²u + ν ∇²u - μ ∇⁴u`, where D is the sum of the first
    derivatives along all axes. With the defaults s = -6, ξ = 1 and ν = μ = 0, it is `∂u/∂t = 6 u ∂u/∂x - ∂³u/∂x³` in
    one dimension.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `scale`: s, a number. It may be traced, so that JAX can differentiate with respect to it.
    - `dispersivity`: ξ, a number.
    - `viscosity`, `hyper_viscosity`: ν and μ, nonnegative numbers.
    - `components`: "scalar", or "vector" for a velocity with the convection `s (u·∇)u`.
    - `conservative`: whether the convection of a vector is `s ∇·(u u)/2` instead of `s (u·∇)u`.
    - `isotropic`: `False` replaces `D ∇²` by `∂³/∂x³ + ∂³/∂y³ + ...`, and ∇⁴ by `∂⁴/∂x⁴ + ∂⁴/∂y⁴ + ...`.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** the errors of `AbstractEquation`; `ValueError` if `fft` takes complex fields; `ValueError` or
    `TypeError` if a number is invalid.
    """

    fft: AbstractTransform
    scale: Number = eqx.field(kw_only=True, default=-6.0)
    dispersivity: Number = eqx.field(kw_only=True, default=1.0)
    viscosity: Number = eqx.field(kw_only=True, default=0.0)
    hyper_viscosity: Number = eqx.field(kw_only=True, default=0.0)
    components: Convected = eqx.field(kw_only=True, default="scalar", static=True)
    conservative: bool = eqx.field(kw_only=True, default=False, static=True)
    isotropic: bool = eqx.field(kw_only=True, default=True, static=True)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_box_given(self.fft)
        check_number("dispersivity", self.dispersivity)
        check_number("viscosity", self.viscosity, least=0)
        check_number("hyper_viscosity", self.hyper_viscosity, least=0)
        check_flag("isotropic", self.isotropic)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        k, odd = self.wavenumbers(u), self.wavenumbers(u, nyquist=False)
        fourth = _vector.cast(self.hyper_viscosity, u) * fourth_power(k, self.isotropic)
        decay = -_vector.cast(self.viscosity, u) * _vector.squared(k) - fourth
        return lax.complex(decay, third_power(k, odd, (_vector.cast(self.dispersivity, u),) * len(k), self.isotropic))
