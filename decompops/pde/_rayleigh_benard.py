"""Rayleigh–Bénard convection."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jaxtyping import Inexact, Real

from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import brief, check_choice, check_number
from .._common.placement import known
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ._equation import Time
from ._forcing import Forcing, add_forcing, check_forcing
from ._stokes import diffuse, stokes
from ._wall_flow import AbstractWallFlow, WallVelocity
from ._wall_values import constant


# The temperature of a wall: one number, or a number for each point of the wall; or a function of time.
WallTemperature = Number | Real[Array | np.ndarray, "*wall"] | Callable


class RayleighBenard(AbstractWallFlow):
    """Rayleigh–Bénard convection between two no-slip walls normal to x. Gravity acts in the direction of -x.

    The equations are `∂u/∂t = u × ω - ∇p + ν ∇²u + T e_x` and `∂T/∂t = -u·∇T + κ ∇²T`, with `∇·u = 0`. At the walls,
    the velocity is the velocity of the walls, and the temperatures are given; the first step replaces other
    temperatures of an initial state. The unit of length is the height H, and the unit of temperature is the
    temperature difference ΔT that defines the Rayleigh number Ra. The unit of time is the free-fall time
    `√(H / (g α ΔT))`, with the gravity g and the thermal expansion coefficient α. Then `ν = √(Pr / Ra)` and
    `κ = 1 / √(Ra Pr)`. The components of the state are the spectra of the velocity components and, as the last
    component, the spectrum of T. Diffusion must be treated implicitly, so use `IMEXRK` or `SBDF`. The divergence of
    computed velocities is zero up to rounding.

    !!! example

        ```python
        bases = (dops.Chebyshev(), dops.Fourier(half=True))
        fft = dops.Transform(mesh, shape=(64, 128), axes="x", bases=bases, box=dops.Box((1.0, 4.0)), pad=True)
        equation = pde.RayleighBenard(fft, 1e5, 1.0)
        u, nusselt = pde.SBDF(equation, dt=0.02).rollout(
            equation.state(fields), 1000, every=10, observe=lambda t, u: equation.nusselt(u)
        )
        ```

    **Arguments:**

    - `fft`: a `Transform` built with a `shape` and a `box` of the length 1 along x, the height. Its bases are
        `Chebyshev()` along x, `Fourier(half=True)` along the last axis, and `Fourier()` along an axis between them.
    - `rayleigh`, `prandtl`: Ra and Pr, positive numbers. They may be traced, so that JAX can differentiate with respect
        to them.
    - `bottom`, `top`: the temperatures of the walls at x = 0 and x = 1. Each is a number, or an array of shape `(ny,
        nz)` in 3D and `(ny,)` in 2D. They may be traced, so that JAX can differentiate with respect to them. Each may
        also be a function of the time t that returns such a temperature. Then call `equation.at(t).nusselt(u)`.
    - `wall_velocity`: the velocities of both walls, as in `Channel`. By default, the walls are at rest.
    - `forcing`: a function `(t, u, args)` of the state u, or a tuple of such functions. Each function returns the
        spectrum of a term that is added to the right-hand side, an array with the shape of u.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` does not have the basis `Chebyshev()`
    along x and Fourier bases along the other axes, if the walls are not normal to the first axis (the only axis of a
    spectrum that is never sharded), if the height is not 1, if Ra or Pr is not positive, if a
    temperature is not finite, or if `wall_velocity` or a temperature has a wrong shape.
    """

    fft: AbstractTransform
    rayleigh: Number
    prandtl: Number
    bottom: WallTemperature = eqx.field(kw_only=True, default=1.0)
    top: WallTemperature = eqx.field(kw_only=True, default=0.0)
    wall_velocity: WallVelocity | None = eqx.field(kw_only=True, default=None)
    forcing: Forcing = eqx.field(kw_only=True, default=None)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)
    scalars: ClassVar[int] = 1
    wall_values: ClassVar[tuple[str, ...]] = ("wall_velocity", "bottom", "top")

    def __check_init__(self):
        check_number("rayleigh", self.rayleigh, positive=True)
        check_number("prandtl", self.prandtl, positive=True)
        shape = check_fft(self.fft)[1:]
        height = self.fft.box_lengths[0]
        if not isinstance(height, Tracer) and np.any(np.asarray(height) != 1):
            raise ValueError(
                f"`fft` must have a `box` of the length 1 along x, because the height is the unit of length; got "
                f"{self.fft.decomposition.box}."
            )
        for name, value in (("bottom", self.bottom), ("top", self.top)):
            _check_temperature(name, value(jnp.zeros(())) if callable(value) else value, shape)
        check_forcing(self)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        nabla, ndim = self.nabla(u), self.ndim
        *velocity, temperature = _vector.components(u, ndim)
        slopes = (nabla.rise(axis, temperature) for axis in range(ndim))
        spectra = _vector.stack((*velocity, *slopes, *nabla.rotation(u)), ndim)
        fields = _vector.components(self.to_grid(spectra), ndim)
        speed, gradient, vorticity = fields[:ndim], fields[ndim : 2 * ndim], fields[2 * ndim :]
        carried = _vector.total(a * b for a, b in zip(speed, gradient))
        products = self.from_grid(_vector.stack((*_vector.cross(speed, vorticity), -carried), ndim))
        across, *others = _vector.components(products, ndim)
        return add_forcing(_vector.stack((across + temperature, *others), ndim), self.forcing, t, u, args)

    def resolvent(self, u: Inexact[Array, "*spectrum"], h: Number) -> Inexact[Array, "*spectrum"]:
        self.check(u)
        modes, ndim = self.modes(u), self.ndim
        *velocity, temperature = _vector.components(u, ndim)
        h, viscosity, diffusivity = _vector.cast(h, u), *self._diffusivities(u)
        flow = stokes(modes, _vector.stack(velocity, ndim), h * viscosity, self.moving_walls(u))
        heat = diffuse(modes, temperature, h * diffusivity, self._wall_sums(temperature))
        return _vector.stack((*_vector.components(flow, ndim), heat), ndim)

    def nusselt(
        self, u: Inexact[Array, "*spectrum"], wall: Literal["bottom", "top"] = "bottom"
    ) -> Inexact[Array, "*batch"]:
        """Return the Nusselt number at a wall: the mean heat flux divided by `κ ΔT`.

        ΔT is the mean temperature of the bottom minus the mean temperature of the top. A flux from the bottom to the
        top is positive. In a statistically steady state, both walls have the same mean flux.

        **Arguments:**

        - `u`: a state.
        - `wall`: "bottom" or "top".

        **Returns:** a real array of shape `(*batch,)`.

        **Raises:** `ValueError` if `wall` is neither "bottom" nor "top".
        """
        check_choice("wall", wall, ("bottom", "top"))
        flux = -_vector.components(self.wall_slopes(u), 1)[-1][..., 0 if wall == "bottom" else 1]
        bottom, top = self._temperatures(u)
        return flux / (jnp.mean(bottom) - jnp.mean(top))

    def _diffusivities(self, like: Array) -> tuple[Array, Array]:
        """Return ν and κ."""
        rayleigh, prandtl = _vector.cast(self.rayleigh, like), _vector.cast(self.prandtl, like)
        return jnp.sqrt(prandtl / rayleigh), 1 / jnp.sqrt(rayleigh * prandtl)

    def _temperatures(self, like: Array) -> tuple[Array, Array]:
        """Return the temperatures of both walls, in the precision of `like`."""
        bottom, top = constant("bottom", self.bottom), constant("top", self.top)
        return _vector.cast(bottom, like), _vector.cast(top, like)

    def _wall_sums(self, like: Array) -> Array:
        """Return half the sum and half the difference of the wall temperatures, for each mode along the walls."""
        bottom, top = self._temperatures(like)
        if bottom.ndim == top.ndim == 0:
            return self.uniform_walls(bottom, top, like)
        shape = check_fft(self.fft)
        points = self.fft.bases[0].points(shape[0]).reshape(-1, *[1] * (self.ndim - 1))
        position = jnp.asarray(points, bottom.dtype)
        # The spectrum of a linear profile has only the coefficients of the Chebyshev polynomials T_0 and T_1.
        bottom, top = (aligned(wall, position) for wall in (bottom, top))
        spectrum = self.transform(bottom * (1 - position) + top * position)
        return jnp.expand_dims(lax.slice_in_dim(spectrum, 0, 2, axis=0), 0)


def _check_temperature(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` unless `value` is a finite, real number, or an array of such numbers of shape `shape`."""
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    if not jnp.issubdtype(dtype, np.number) or jnp.iscomplexobj(value) or jnp.shape(value) not in ((), shape):
        raise ValueError(f"`{name}` must be a real number or a real array of shape {shape}; got {brief(value)}.")
    finite = known(jnp.all(jnp.isfinite(jnp.asarray(value))))
    if not isinstance(finite, Tracer) and not finite:
        raise ValueError(f"`{name}` must be finite; got {brief(value)}.")
