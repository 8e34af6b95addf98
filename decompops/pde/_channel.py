"""The flow in a plane channel."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import check_number
from .._common.typed import zeros_like
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ._equation import Time
from ._forcing import Forcing, add_forcing, check_forcing
from ._products import velocity_and_vorticity
from ._stokes import WallModes, stokes
from ._wall_flow import AbstractWallFlow, WallVelocity


class Channel(AbstractWallFlow):
    """Incompressible flow between two no-slip walls normal to x. The flow is periodic along the other axes.

    The equation is `∂u/∂t = u × ω - ∇p + ν ∇²u + G e_y + f`, with `∇·u = 0` and the vorticity `ω = ∇ × u`. At both
    walls, u is the velocity of the wall. G is a driving force along y, equal to minus the mean pressure gradient: the
    constant `drive`, or the force that gives the flow a constant `bulk_velocity`. If the distance between the walls is
    `2h`, Poiseuille flow has the centreline velocity `G h² / (2ν)` and the bulk velocity `G h² / (3ν)`. The viscous
    term must be treated implicitly, so use `IMEXRK` or `SBDF`. In every computed state, the divergence is zero and the
    bulk velocity is exact, up to rounding.

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
    - `drive`: G, a number. The default is zero.
    - `bulk_velocity`: the volume mean of the velocity along y, a number, in place of `drive`. It may be traced.
    - `wall_velocity`: the velocities of the walls at the beginning and at the end of x: two numbers, the velocities
        along y, or two tuples of one number for each axis along the walls, such as `((0.0, 0.0), (1.0, 0.5))` in 3D.
        By default, the walls are at rest. The numbers may be traced, or an array of this shape. For walls that move as
        time goes on, pass a function of the time t that returns them, such as `lambda t: (jnp.cos(t), 0.0)`. An
        `equinox.Module` with parameters is also a function, and JAX can differentiate with respect to its parameters.
    - `forcing`: a function `(t, u, args)` of the state u, or a tuple of such functions. Each function returns the
        spectrum of one term of f, an array with the shape of u.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` does not have the basis `Chebyshev()`
    along x and Fourier bases along the other axes, if the walls are not normal to the first axis (the only axis of a
    spectrum that is never sharded), if the viscosity is negative, if both `drive` and `bulk_velocity` are given, or if
    `wall_velocity` has a wrong shape.
    """

    fft: AbstractTransform
    viscosity: Number
    drive: Number | None = None
    bulk_velocity: Number | None = eqx.field(kw_only=True, default=None)
    wall_velocity: WallVelocity | None = eqx.field(kw_only=True, default=None)
    forcing: Forcing = eqx.field(kw_only=True, default=None)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_number("viscosity", self.viscosity, least=0)
        for name in ("drive", "bulk_velocity"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        if not (self.drive is None or self.bulk_velocity is None):
            raise ValueError(
                f"`drive` and `bulk_velocity` must not both be given, because the bulk velocity determines the driving "
                f"force; got {self.drive!r} and {self.bulk_velocity!r}. Leave one of them out."
            )
        check_forcing(self)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        velocity, vorticity = velocity_and_vorticity(self, self.nabla(u), u)
        force = self.from_grid(_vector.stack(_vector.cross(velocity, vorticity), self.ndim))
        if self.drive is not None:
            force = force + self.along_y(_vector.cast(self.drive, u), u)
        return add_forcing(force, self.forcing, t, u, args)

    def resolvent(self, u: Inexact[Array, "*spectrum"], h: Number) -> Inexact[Array, "*spectrum"]:
        self.check(u)
        modes, time = self.modes(u), _vector.cast(h, u) * _vector.cast(self.viscosity, u)
        flow = stokes(modes, u, time, self.moving_walls(u))
        return flow if self.bulk_velocity is None else self._with_bulk_velocity(flow, modes, time)

    def wall_stress(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*stress"]:
        """Return the mean stress along y that the flow exerts on each wall: a real array of shape `(*batch, 2)`.

        The mean velocity along y changes at the rate `G - (sum of both stresses) / (distance of the walls)`.
        """
        slopes = _vector.components(self.wall_slopes(u), 1)[1]
        signs = jnp.array([1, -1], slopes.dtype)
        return _vector.times(_vector.cast(self.viscosity, u) * signs, slopes)

    def driving_force(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*batch"]:
        """Return G, the driving force along y, which is minus the mean pressure gradient.

        With `bulk_velocity`, G balances the wall stresses and the mean of `forcing` in the state u.

        **Arguments:**

        - `t`: the time.
        - `u`: a computed state. An initial state need not satisfy the conditions at the walls.
        - `args`: any PyTree, passed to `forcing`.

        **Returns:** a real array of shape `(*batch,)`.
        """
        if self.bulk_velocity is None:
            drive = 0.0 if self.drive is None else self.drive
            return jnp.broadcast_to(_vector.cast(drive, u), u.shape[: -self.ndim - 1])
        push = jnp.sum(self.wall_stress(u), axis=-1) / _vector.cast(self.fft.box_lengths[0], u)
        if self.forcing is None:
            return push
        return push - self.volume_means(add_forcing(zeros_like(u), self.forcing, t, u, args))[..., 1]

    def _with_bulk_velocity(self, flow: Array, modes: WallModes, time: Array) -> Array:
        """Return the result of an implicit step with the driving force that leads to the bulk velocity.

        The step is linear, so a force adds a multiple of the response to a unit force. This response is one column
        along x in the mean, the same for all states.
        """
        lines = modes.lines
        unit = lines.pairs(jnp.zeros((lines.modes, *[1] * (self.ndim - 1)), time.dtype).at[0].set(1))
        one = jnp.ones((1,) * (self.ndim + 1), time.dtype)
        column = lines.coefficients(lines.solve(one, time * modes.slope**2, lines.double_integral(unit)))
        response = self.along_y(column, flow)
        missing = _vector.cast(self.bulk_velocity, flow) - self.volume_means(flow)[..., 1]
        force = missing / self.volume_means(response)[1]
        force = force.astype(flow.dtype).reshape(*force.shape, *[1] * (self.ndim + 1))
        return flow + force * aligned(response, force)
