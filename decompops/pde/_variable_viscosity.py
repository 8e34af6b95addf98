"""A viscosity that depends on a scalar, such as a temperature."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._common.check import Integer, as_number, brief, taking
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ._equation import Time
from ._forcing import check_scalar_number, check_term_state, components_with_scalar
from ._products import AbstractProducts
from ._stress import viscous_force


class VariableViscosity(AbstractProducts):
    """The force `∇·(2 ν(c) S)` of a viscosity that depends on a scalar c, such as a temperature.

    S is the rate of strain `(∇u + (∇u)ᵀ)/2` of the velocity u. Pass the force as the argument `forcing` of a
    `PassiveScalar`. The constant `viscosity` of the flow is added to ν, so the viscosity of the fluid is their sum.
    Integrators take the constant part implicitly and ν explicitly. So let the flow have the largest viscosity of the
    fluid, and ν the difference, which is negative: then ν does not limit the time step. The box may be periodic or have
    free-slip walls. Each evaluation takes thirteen transforms in two batched calls, or seven transforms in 2D.

    !!! example

        ```python
        law = lambda c: 0.1 * (jnp.exp(-c) - 1)  # The fluid has the viscosity 0.1 exp(-c), if c is not negative.
        flow = pde.NavierStokes(fft, viscosity=0.1)
        equation = pde.PassiveScalar(flow, 0.01, forcing=pde.VariableViscosity(fft, law))
        ```

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `viscosity`: a function of the field c on the grid that returns the field ν of the same shape. It may be an
        `equinox.Module` with parameters, which JAX can differentiate with respect to.
    - `scalar`: the number of the scalar. If `PassiveScalar` is nested, the scalar of the innermost equation is number
        zero.

    **Raises:** the errors of `AbstractEquation`; `TypeError` if `viscosity` is not a function; `ValueError` if `scalar`
    is negative. Calls raise `ValueError` if the state has no such scalar, or if ν does not have the shape of c.

    Source: Landau & Lifshitz, Fluid Mechanics (1987), equation 15.5, for an incompressible flow.
    """

    fft: AbstractTransform
    viscosity: Callable[[Array], Array]
    scalar: int = eqx.field(kw_only=True, default=0, static=True, converter=taking(Integer, as_number))
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)
    components: ClassVar[str] = "any"

    def __check_init__(self):
        check_fft(self.fft, real=True)
        if not callable(self.viscosity):
            raise TypeError(f"`viscosity` must be a function of the scalar's field; got {brief(self.viscosity)}.")
        check_scalar_number(self.scalar)

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        ndim = len(check_fft(self.fft))
        parts = components_with_scalar(self, u)
        force = viscous_force(self, u, parts[ndim + self.scalar : ndim + self.scalar + 1], self._field)
        return _vector.with_zeros(force, len(parts) - ndim, ndim)

    def _field(self, square: Array, scalars: _vector.Parts) -> Array:
        (c,) = scalars
        nu = self.viscosity(c)
        if getattr(nu, "shape", ()) != c.shape or jnp.iscomplexobj(nu):
            raise ValueError(
                f"`viscosity` must return a real field with the shape of the scalar, {c.shape}; got {brief(nu)}."
            )
        return jnp.asarray(nu, c.dtype)
