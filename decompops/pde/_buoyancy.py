"""The buoyancy of a scalar."""

from typing import Any

import equinox as eqx
from jax import Array
from jax.core import Tracer
from jaxtyping import Inexact

from .._common.blocks import axis_names
from .._common.box import Numbers
from .._common.check import Integer, as_number, as_tuples, brief, check_number, taking
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate, check_dealiasing
from ..spectral._modes import AbstractSpectral, wall_axes
from ._equation import Time
from ._forcing import check_scalar_number, check_term_state, components_with_scalar


class Buoyancy(AbstractSpectral):
    """The buoyancy force of a scalar c on a velocity: `c a`, with the constant acceleration a of a unit of c.

    Pass the force as the argument `forcing` of a `PassiveScalar`, whose scalar then acts on the flow. With a mean
    gradient of the scalar, this is Boussinesq flow in a periodic box. If c is a buoyancy, in units of acceleration,
    then a is the unit vector upwards, and the mean gradient is `N²` along that vector, with the Brunt–Väisälä frequency
    N. A wave whose wavenumber is k, with the horizontal part k_h, has the frequency `N k_h / k`. A negative mean
    gradient is unstable.

    !!! example

        ```python
        flow = pde.NavierStokes(fft, viscosity=0.01)
        buoyancy = pde.Buoyancy(fft, (0.0, 0.0, 1.0))
        equation = pde.PassiveScalar(flow, 0.01, mean_gradient=(0.0, 0.0, 4.0), forcing=buoyancy)
        ```

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `acceleration`: a, a tuple of one number for each axis. The numbers may be traced, so that JAX can differentiate
        with respect to them.
    - `scalar`: the number of the scalar. If `PassiveScalar` is nested, the scalar of the innermost equation is number
        zero.

    **Raises:** `TypeError` or `ValueError` if `acceleration` does not have one number for each axis, or if a force
    along an axis between walls is not zero, because scalars and forces have different bases there; `ValueError` if
    `scalar` is negative. Calls raise `ValueError` if the state has no such scalar.

    Source: Boussinesq, Théorie analytique de la chaleur 2, 1903; Davidson, Turbulence in Rotating, Stratified and
    Electrically Conducting Fluids, 2013.
    """

    fft: AbstractTransform
    acceleration: Numbers = eqx.field(converter=taking(Numbers, as_tuples))
    scalar: int = eqx.field(kw_only=True, default=0, static=True, converter=taking(Integer, as_number))
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)
        names, acceleration = axis_names(len(check_fft(self.fft))), self.acceleration
        if not isinstance(acceleration, tuple) or len(acceleration) != len(names):
            raise ValueError(
                f"`acceleration` must be a tuple of one number for each of {', '.join(names)}; got "
                f"{brief(acceleration)}."
            )
        for part in acceleration:
            check_number("acceleration", part)
        for axis in wall_axes(self.fft):
            if isinstance(acceleration[axis], Tracer) or float(acceleration[axis]) != 0:
                raise ValueError(
                    f"`acceleration` must be zero along {names[axis]}, where `fft` has the basis "
                    f"{self.fft.bases[axis]}, because a scalar and a force across walls have different bases; got "
                    f"{acceleration!r}. Use `Fourier()` there, or `RayleighBenard`."
                )
        check_scalar_number(self.scalar)

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        ndim, parts = len(self.acceleration), components_with_scalar(self, u)
        scalar = parts[ndim + self.scalar]
        force = [_vector.times(_vector.cast(part, u), scalar) for part in self.acceleration]
        return _vector.with_zeros(_vector.stack(force, ndim), len(parts) - ndim, ndim)
