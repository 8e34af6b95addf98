"""The incompressible Navier–Stokes equations."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._box import Box, Number
from .._check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components, slope_axes
from ._equation import AbstractEquation, Time, Walls, velocity_and_vorticity


class NavierStokes(AbstractEquation):
    """The incompressible Navier–Stokes equations for the velocity, in rotational form.

    `∂u/∂t = P(u × ω + f) + ν ∇²u` with the vorticity `ω = ∇ × u` and the projection P onto divergence-free fields, by
    which the pressure drops out (Canuto et al., Spectral Methods, 2007). Nine transforms in two batched calls; in two
    dimensions, where ω is a scalar and u has two components, five. The state must be divergence-free, as
    `decompops.spectral.LerayProjection` makes it, and stays so.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`. The state keeps its modes below a third of the grid;
        see `decompops.spectral.dealiased`.
    - `viscosity`: ν, a number of at least zero. May be traced, to differentiate by.
    - `box`: the periodic box.
    - `forcing`: a function `(t, u, args)` of the state u that returns the spectrum of f, of the same shape. It is
        cast to the precision of the state.

    **Raises:** as `AbstractEquation`; `ValueError` for an `fft` of complex fields, a grid of one axis and a viscosity
    out of range; `TypeError` for a `viscosity` that is not a number and a `forcing` that cannot be called.
    """

    fft: AbstractTransform
    viscosity: Number
    box: Box = Box()
    forcing: Callable | None = eqx.field(kw_only=True, default=None)
    components: ClassVar[Components] = "vector"
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        if not (self.forcing is None or callable(self.forcing)):
            raise TypeError(f"`forcing` must be a function of (t, u, args) or None; got {self.forcing!r}.")
        if len(check_fft(self.fft, real=True)) < 2:
            raise ValueError(f"`fft` must transform a grid of at least two axes; got {self.fft!r}.")
        check_number("viscosity", self.viscosity, least=0)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return -_vector.cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        nabla = self.nabla(u)
        velocity, vorticity = velocity_and_vorticity(self, nabla, u)
        product = _vector.stack(_vector.cross(velocity, vorticity), nabla.ndim)
        force = self.from_grid(product, slope_axes("vector", nabla.ndim))
        if self.forcing is not None:
            push = jnp.asarray(self.forcing(t, u, args))
            if push.shape not in ((), u.shape):
                raise ValueError(f"`forcing` must return a spectrum of the state's shape {u.shape}; got {push.shape}.")
            force = force + push.astype(u.dtype)
        return nabla.projection(force)
