"""The flow in a plane channel."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ._equation import Time
from ._forcing import Forcing, add_forcing, check_forcing
from ._products import velocity_and_vorticity
from ._stokes import stokes
from ._wall_flow import AbstractWallFlow


class Channel(AbstractWallFlow):
    """Incompressible flow between two no-slip walls normal to x. The flow is periodic along the other axes.

    The equation is `∂u/∂t = u × ω - ∇p + ν ∇²u + G e_y + f`, with `∇·u = 0`, the vorticity `ω = ∇ × u`, and `u = 0` at
    both walls. G is a constant driving force along y, equal to minus the mean pressure gradient. If the distance
    between the walls is `2h`, the centreline velocity of Poiseuille flow is `G h² / (2ν)`. The viscous term must be
    treated implicitly, so use `IMEXRK` or `SBDF`. The divergence of computed velocities is zero up to rounding.

    !!! example

        ```python
        bases = (dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True))
        box = dops.Box((2.0, 4 * jnp.pi, 2 * jnp.pi))
        fft = dops.Transform(mesh, shape=(65, 64, 64), bases=bases, box=box, pad=True)
        equation = pde.Channel(fft, 1 / 3000, drive=2 / 3000)
        solver = pde.SBDF(equation, dt=0.01)
        u, _ = solver.rollout(equation.state(velocity), 1000)
        velocity = equation.fields(u)
        ```

    **Arguments:**

    - `fft`: a `Transform` built with a `shape` and a `box`, whose first length is the distance between the walls. Its
        bases are `Chebyshev()` along x, `Fourier(half=True)` along the last axis, and `Fourier()` along an axis between
        them.
    - `viscosity`: ν, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it.
    - `drive`: G, a number.
    - `forcing`: a function `(t, u, args)` of the state u, or a tuple of such functions. Each function returns the
        spectrum of one term of f, an array with the shape of u.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` does not have the basis `Chebyshev()`
    along x and Fourier bases along the other axes, if the walls are not normal to the first axis (the only axis of a
    spectrum that is never sharded), or if the viscosity is negative.
    """

    fft: AbstractTransform
    viscosity: Number
    drive: Number = 0.0
    forcing: Forcing = eqx.field(kw_only=True, default=None)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_number("viscosity", self.viscosity, least=0)
        check_number("drive", self.drive)
        check_forcing(self)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        velocity, vorticity = velocity_and_vorticity(self, self.nabla(u), u)
        force = self.from_grid(_vector.stack(_vector.cross(velocity, vorticity), self.ndim))
        return add_forcing(force + self.driving(u, self.drive), self.forcing, t, u, args)

    def resolvent(self, u: Inexact[Array, "*spectrum"], h: Number) -> Inexact[Array, "*spectrum"]:
        return stokes(self.modes(u), u, _vector.cast(h, u) * _vector.cast(self.viscosity, u))

    def wall_stress(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*stress"]:
        """Return the mean stress along y that the flow exerts on each wall: a real array of shape `(*batch, 2)`.

        The mean velocity along y changes at the rate `G - (sum of both stresses) / (distance of the walls)`.
        """
        slopes = self.wall_slopes(_vector.stack(_vector.components(u, self.ndim)[1:2], self.ndim))[..., 0, :]
        return _vector.cast(self.viscosity, u) * slopes * jnp.array([1, -1], slopes.dtype)
