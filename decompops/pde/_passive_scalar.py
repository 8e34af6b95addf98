"""A scalar that a flow transports."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.blocks import axis_names
from .._common.box import Number, Numbers
from .._common.broadcast import aligned
from .._common.check import as_tuples, check_number, taking
from .._common.typed import zeros_like
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._dealiasing import AbstractDealiasing
from ..spectral._modes import SlopeAxes, slope_axes, wall_axes
from ._equation import AbstractEquation, Time, Walls, check_equation, linear_factor
from ._forcing import Forcing, add_forcing, check_forcing


class PassiveScalar(AbstractEquation):
    """An equation for a velocity u and a scalar c that the flow transports: `∂c/∂t = -u·(∇c + G) + κ ∇²c`.

    The state has the components of the state of `equation`, and the spectrum of c as the last component. For several
    scalars, nest the class: `PassiveScalar(PassiveScalar(flow, 0.1), 0.2)`. Each evaluation of the right-hand side
    takes seven transforms in two batched calls, or five transforms in 2D, in addition to the transforms of `equation`.

    !!! example

        ```python
        flow = pde.NavierStokes(fft, viscosity=0.01)
        equation = pde.PassiveScalar(flow, diffusivity=0.02)
        u = equation.state(jnp.concatenate([velocity, c[None]]))
        ```

    **Arguments:**

    - `equation`: an equation whose state is a velocity, such as `NavierStokes`, or another `PassiveScalar`.
    - `diffusivity`: κ, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it.
    - `mean_gradient`: G, a tuple of one number for each axis. The full scalar field is `G·x + c`. The default is zero.
    - `forcing`: a function `(t, u, args)` of the whole state u, or a tuple of such functions. Each function returns the
        spectrum of a term that is added to the right-hand side, an array with the shape of u: a force on the velocity,
        such as `Buoyancy`, and a source of the scalars. In an incompressible flow, the pressure removes the divergence
        of the force. The `forcing` of `equation` gets only the state of `equation`, without the scalar.

    **Raises:** `TypeError` if `equation` is not an `AbstractEquation`, or if `forcing` is not a function; `ValueError`
    if the state of `equation` is not a velocity, if `diffusivity` is negative, or if `mean_gradient` does not have one
    number for each axis.
    """

    equation: AbstractEquation
    diffusivity: Number
    mean_gradient: Numbers | None = eqx.field(kw_only=True, default=None, converter=taking(Numbers | None, as_tuples))
    forcing: Forcing = eqx.field(kw_only=True, default=None)

    def __check_init__(self):
        components, ndim = check_equation(self.equation).components, self.fft.decomposition.ndim
        if not (components == "vector" or isinstance(self.equation, PassiveScalar)):
            raise ValueError(
                f"`equation` must have a velocity as its state, such as `NavierStokes`; got {self.equation!r}."
            )
        check_number("diffusivity", self.diffusivity, least=0)
        gradient = (0.0,) * ndim if self.mean_gradient is None else self.mean_gradient
        if not isinstance(gradient, tuple) or len(gradient) != ndim:
            names = ", ".join(axis_names(ndim))
            raise ValueError(f"`mean_gradient` must be a tuple of one number for each of {names}; got {gradient!r}.")
        for part in gradient:
            check_number("mean_gradient", part)
        check_forcing(self)

    @property
    def fft(self) -> AbstractTransform:
        """The transform of `equation`."""
        return self.equation.fft

    @property
    def dealiasing(self) -> AbstractDealiasing | None:
        """The dealiasing rule of `equation`."""
        return self.equation.dealiasing

    @property
    def components(self) -> int:
        """The number of components of a state."""
        inner, ndim = self.equation.components, self.fft.decomposition.ndim
        return 1 + (inner if isinstance(inner, int) else ndim)

    @property
    def slopes(self) -> SlopeAxes:
        return (*self.equation.slopes, ())

    @property
    def walls(self) -> Walls:
        """The walls that `equation` may have."""
        return self.equation.walls

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        rest, scalar = self._parts(u)
        inner = linear_factor(self.equation, rest)
        decay = -_vector.cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))
        spread = lambda factor, like: aligned(factor, like) * jnp.ones_like(like, dtype=factor.dtype)
        return self._join(spread(inner, rest), spread(decay.astype(inner.dtype), scalar))

    def to_diagonal(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        rest, scalar = self._parts(u)
        return self._join(self.equation.to_diagonal(rest), scalar)

    def from_diagonal(self, w: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        rest, scalar = self._parts(w)
        return self._join(self.equation.from_diagonal(rest), scalar)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        rest, scalar = self._parts(u)
        nabla = self.nabla(u)
        ndim = nabla.ndim
        velocity = _vector.components(rest, ndim)[:ndim]
        slope = _vector.components(nabla.gradient(scalar), ndim)
        spectra = _vector.stack((*velocity, *slope), ndim)
        parts = _vector.components(self.to_grid(spectra, 2 * slope_axes("vector", ndim)), ndim)
        gradient = [_vector.cast(part, u) for part in self.mean_gradient or (0.0,) * ndim]
        across = wall_axes(self.fft)
        carried = (a * (b + gradient[i] if i in across else b) for i, (a, b) in enumerate(zip(parts, parts[ndim:])))
        change = self.from_grid(-_vector.total(carried))
        # u·G multiplies no fields, so all modes have it. Across walls, u and c have different bases.
        for i in range(ndim):
            if self.mean_gradient is not None and i not in across:
                change -= _vector.times(gradient[i], velocity[i])
        rate = self._join(self.equation.nonlinear(t, rest, args), change)
        if self.forcing is None:
            return rate
        return rate + self.admissible(add_forcing(zeros_like(u), self.forcing, t, u, args))

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"] | None:
        """Return the speeds of the flow, or the velocity, which carries the scalar, where it is faster."""
        rest, _ = self._parts(u)
        flow, speeds = self.equation, self.equation.speeds(rest)
        if speeds is None or isinstance(flow, PassiveScalar) or type(flow).speeds is AbstractEquation.speeds:
            return speeds  # These are at least the velocity.
        return jnp.maximum(jnp.abs(speeds), jnp.abs(flow.fields(rest)))

    def admissible(self, rate: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        rest, scalar = self._parts(rate)
        return self._join(self.equation.admissible(rest), scalar)

    def _parts(self, u: Array) -> tuple[Array, Array]:
        """Split `u` into the state of `equation` and the scalar."""
        ndim = self.fft.decomposition.ndim
        *rest, scalar = _vector.components(u, ndim)
        return _vector.stack(rest, ndim), scalar

    def _join(self, rest: Array, scalar: Array) -> Array:
        ndim = self.fft.decomposition.ndim
        return _vector.stack((*_vector.components(rest, ndim), scalar), ndim)
