"""The incompressible Navier–Stokes equations."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Complex, Inexact

from .._operator.fft import FFT3D
from .._operator.transform import Lengths, Number, box
from ..spectral import _vector
from ..spectral._filter import dealiased
from ..spectral._operator import Components, check_number, internal_transform
from ._equation import AbstractEquation, Time, cast, velocity_and_vorticity


class NavierStokes(AbstractEquation):
    """The incompressible Navier–Stokes equations for the velocity, in rotational form.

    `∂u/∂t = P(u × ω + f) + ν ∇²u` with the vorticity `ω = ∇ × u` and the projection P onto divergence-free fields, by
    which the pressure drops out (Canuto et al., Spectral Methods, 2007). Nine transforms in two batched calls. The
    state must be divergence-free, as `decompops.spectral.LerayProjection` makes it, and stays so.
    """

    fft: FFT3D
    viscosity: Number
    forcing: Callable | None
    lengths: Lengths
    components: ClassVar[Components] = "vector"

    def __init__(
        self,
        fft: FFT3D,
        viscosity: Number,
        lengths: Lengths = 2 * math.pi,
        *,
        forcing: Callable | None = None,
    ):
        """**Arguments:**

        - `fft`: the transform, built with `real=True` and a `shape`. Of its modes, those below a third of the grid
            are kept; see `decompops.spectral.dealiased`.
        - `viscosity`: ν, a number of at least zero. May be traced, to differentiate by.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all.
        - `forcing`: a function `(t, u, args)` of the state u that returns the spectrum of f, of the same shape. It is
            cast to the precision of the state.
        """
        if not (forcing is None or callable(forcing)):
            raise TypeError(f"`forcing` must be a function of (t, u, args) or None; got {forcing!r}.")
        self.fft = dealiased(internal_transform(fft))
        self.viscosity = check_number("viscosity", viscosity, least=0)
        self.forcing = forcing
        self.lengths = box(lengths)

    def linear(self, u: Complex[Array, "..."]) -> Inexact[Array, "..."]:
        return -cast(self.viscosity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(self, t: Time, u: Complex[Array, "..."], args: Any = None) -> Complex[Array, "..."]:
        k = self.wavenumbers(u, nyquist=False)
        velocity, vorticity = velocity_and_vorticity(self.fft, k, u)
        force = self.fft(_vector.stack(*_vector.cross(velocity, vorticity)))
        if self.forcing is not None:
            push = jnp.asarray(self.forcing(t, u, args))
            if push.shape not in ((), u.shape):
                raise ValueError(f"`forcing` must return a spectrum of the state's shape {u.shape}; got {push.shape}.")
            force = force + push.astype(u.dtype)
        return _vector.projection(k, force)
