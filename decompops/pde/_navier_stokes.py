"""The incompressible Navier–Stokes equations."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components, slope_axes
from ._equation import AbstractEquation, Time, Walls
from ._forcing import Forcing, add_forcing, check_forcing
from ._products import symmetric_from_grid


class NavierStokes(AbstractEquation):
    """The incompressible Navier–Stokes equations for the velocity.

    The equation is `∂u/∂t = P(-∇·(u u) + f) + ν ∇²u - γ u`. P is the projection onto divergence-free fields, which
    removes the pressure (Canuto et al., Spectral Methods, 2007). The pressure also absorbs the trace of `u u`, so five
    of the six different entries of this tensor are enough (Basdevant, J. Comput. Phys. 50, 1983). Each evaluation of
    the right-hand side takes eight transforms in two batched calls, or four transforms in 2D. The initial state must be
    divergence-free; `decompops.spectral.LerayProjection` removes the divergence of a velocity. All later states are
    then divergence-free.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `viscosity`: ν, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it.
    - `drag`: γ, a nonnegative rate.
    - `forcing`: a function `(t, u, args)` of the state u, or a tuple of such functions. Each function returns the
        spectrum of one term of f, an array with the shape of u. The results are cast to the precision of the state, and
        added. Examples are `KolmogorovForcing` and `Smagorinsky`, which need the `fft` and the `dealiasing`
        of this equation. `state_transform` makes spectra for a function of your own. u is the velocity only, also
        inside a `PassiveScalar`.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** the errors of `AbstractEquation`; `ValueError` if `fft` takes complex fields, if the grid has only one
    axis, if `viscosity` or `drag` is negative, or if a force in `forcing` has another `fft` or `dealiasing`;
    `TypeError` if `viscosity` or `drag` is not a number, or if `forcing` is not a function. Calls raise `IndexError` if
    a function in `forcing` reads a component that the velocity does not have.
    """

    fft: AbstractTransform
    viscosity: Number
    drag: Number = eqx.field(kw_only=True, default=0.0)
    forcing: Forcing = eqx.field(kw_only=True, default=None)
    components: ClassVar[Components] = "vector"
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        if len(check_fft(self.fft, real=True)) < 2:
            raise ValueError(f"`fft` must transform a grid of at least two axes; got {self.fft!r}.")
        check_number("viscosity", self.viscosity, least=0)
        check_number("drag", self.drag, least=0)
        check_forcing(self)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        decay = _vector.cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))
        return -decay - _vector.cast(self.drag, u)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        ndim = self.fft.decomposition.ndim
        velocity = _vector.components(self.to_grid(u, slope_axes("vector", ndim)), ndim)
        return momentum_rate(self, lambda i, j: velocity[i] * velocity[j], t, u, args)

    def admissible(self, rate: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return self.nabla(rate).projection(rate)


def momentum_rate(
    equation: NavierStokes, flux: Callable[[int, int], Array], t: Time, u: Array, args: Any
) -> Inexact[Array, "*spectrum"]:
    """Return the rate of change of the velocity u by a symmetric flux of momentum, by the forces and by the pressure.

    `flux(i, j)` returns an entry of the flux on the grid of products.
    """
    nabla = equation.nabla(u)
    ndim = nabla.ndim
    last = flux(ndim - 1, ndim - 1)

    def traceless(i: int, j: int) -> Array | None:
        # The last entry of the diagonal is subtracted from the whole diagonal. This changes the force by a gradient,
        # which the pressure absorbs.
        if i != j:
            return -flux(i, j)
        return last - flux(i, i) if i < ndim - 1 else None

    force = nabla.divergence_of_tensor(symmetric_from_grid(equation, traceless, ndim))
    return nabla.projection(add_forcing(force, equation.forcing, t, u, args))
