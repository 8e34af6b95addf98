"""The incompressible Navier–Stokes equations for the vorticity in two dimensions."""

from typing import Any, ClassVar

import equinox as eqx
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
from ._products import AbstractProducts


class VorticityNavierStokes(AbstractEquation):
    """The Navier–Stokes equations in two dimensions for the vorticity `ω = ∂u_y/∂x - ∂u_x/∂y`, a scalar.

    The equation is `∂ω/∂t = -(u·∇)ω + ν ∇²ω - γ ω + F`. The velocity is `u = (∂ψ/∂y, -∂ψ/∂x)` with the stream function
    ψ, where `-∇²ψ = ω`. The mean velocity is zero. The advection `(u·∇)ω` is the curl of `∇·(u u)`. This curl depends
    only on `u_x u_y` and `u_y² - u_x²` (Basdevant, J. Comput. Phys. 50, 1983), so each evaluation of the right-hand
    side takes four transforms in two batched calls. `decompops.spectral.Curl` computes the vorticity of a velocity, and
    `decompops.spectral.InverseCurl` computes the velocity of a vorticity.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape` of two axes.
    - `viscosity`: ν, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it.
    - `drag`: γ, a nonnegative rate.
    - `forcing`: a function `(t, ω, args)` that returns the spectrum of F, or a tuple of such functions, whose results
        are added. F is the curl of a force. An example is `KolmogorovForcing(fft, of="vorticity")`.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** the errors of `NavierStokes`; `ValueError` if the grid does not have two axes.
    """

    fft: AbstractTransform
    viscosity: Number
    drag: Number = eqx.field(kw_only=True, default=0.0)
    forcing: Forcing = eqx.field(kw_only=True, default=None)
    components: ClassVar[Components] = "scalar"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        if len(check_fft(self.fft, real=True)) != 2:
            raise ValueError(f"`fft` must transform a grid of two axes; got {self.fft!r}.")
        check_number("viscosity", self.viscosity, least=0)
        check_number("drag", self.drag, least=0)
        check_forcing(self)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        decay = _vector.cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))
        return -decay - _vector.cast(self.drag, u)

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        """Return the velocity of a state."""
        return velocity_of(self, -_vector.inverse_laplacian(self.wavenumbers(u), u))

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        (rate,) = advected(self, -_vector.inverse_laplacian(self.wavenumbers(u), u))
        return add_forcing(rate, self.forcing, t, u, args)


def velocity_of(equation: AbstractProducts, stream: Array) -> Array:
    """Return the velocity `(∂ψ/∂y, -∂ψ/∂x)` on the grid, from the spectrum of the stream function ψ."""
    return equation.transform.inverse(equation.nabla(stream).curl_of_axial(stream))


def advected(equation: AbstractProducts, stream: Array, *scalars: Array) -> _vector.Parts:
    """Return the spectra of `-(u·∇)ω` and of `-(u·∇)c` for each scalar c, from the spectra of ψ and of the scalars.

    ψ is the stream function of the velocity `u = (∂ψ/∂y, -∂ψ/∂x)` and of the vorticity `ω = -∇²ψ`.
    """
    nabla = equation.nabla(stream)
    velocity = _vector.components(nabla.curl_of_axial(stream), 2)
    a, b, *carried = _vector.components(equation.to_grid(_vector.stack((*velocity, *scalars), 2)), 2)
    products = (a * b, b**2 - a**2, *(speed * scalar for scalar in carried for speed in (a, b)))
    mixed, normal, *fluxes = _vector.components(equation.from_grid(_vector.stack(products, 2)), 2)
    kx, ky = nabla.k
    rate = _vector.times(kx**2 - ky**2, mixed) + _vector.times(kx * ky, normal)
    pairs = zip(fluxes[::2], fluxes[1::2])
    return (rate, *(-nabla.divergence(_vector.stack(pair, 2)) for pair in pairs))
