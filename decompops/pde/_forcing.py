"""Forces on a flow: functions `(t, u, args)` that return a spectrum with the shape of the state u."""

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Inexact

from .._box import Box, Number
from .._check import check_count, check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate, check_dealiasing
from ..spectral._modes import AbstractSpectral
from ._equation import Time
from ._symbols import size_of_constant


Forcing = Callable | tuple[Callable, ...] | None


def check_forcing(forcing: Any) -> None:
    """Raise `TypeError` unless `forcing` is a function, a tuple of functions, or `None`."""
    parts = forcing if isinstance(forcing, tuple) else () if forcing is None else (forcing,)
    if not all(map(callable, parts)):
        raise TypeError(
            f"`forcing` must be a function of (t, u, args), a tuple of such functions, or None; got {forcing!r}."
        )


def add_forcing(
    rate: Inexact[Array, "*spectrum"], forcing: Forcing, t: Time, u: Inexact[Array, "*spectrum"], args: Any
) -> Inexact[Array, "*spectrum"]:
    """Return the sum of `rate` and the results of the functions in `forcing`."""
    functions = forcing if isinstance(forcing, tuple) else () if forcing is None else (forcing,)

    def push(function: Callable) -> Array:
        push = jnp.asarray(function(t, u, args))
        if push.shape not in ((), u.shape):
            raise ValueError(f"`forcing` must return a spectrum with the shape of u, {u.shape}; got {push.shape}.")
        return push.astype(u.dtype)

    return functools.reduce(operator.add, map(push, functions), rate)


class KolmogorovForcing(AbstractSpectral):
    """The force of Kolmogorov flow, `(A sin(q y), 0)` in 2D and `(A sin(q y), 0, 0)` in 3D, with `q = 2π mode / L_y`.

    See Arnold & Meshalkin, Uspekhi Mat. Nauk 15, 1960. Pass the force as the argument `forcing` of an equation.

    !!! example

        ```python
        equation = pde.NavierStokes(fft, 0.01, forcing=pde.KolmogorovForcing(fft, mode=4))
        ```

    **Arguments:**

    - `fft`, `box`, `dealiasing`: the same as the arguments of the equation.
    - `mode`: the number of waves along y in the box, at least one.
    - `amplitude`: A, a number. It may be traced, so that JAX can differentiate with respect to it.
    - `of`: "velocity" gives the force itself. "vorticity" gives its curl `-A q cos(q y)` in 2D, which is the force on
        the vorticity in `VorticityNavierStokes`.

    **Raises:** `ValueError` if `fft` takes complex fields, if the grid has only one axis, if a state has at most
    `2 * mode` modes along y, if `of` is unknown, or if `of` is "vorticity" and the grid does not have two axes;
    `TypeError` if `amplitude` is not a number.
    """

    fft: AbstractTransform
    mode: int = eqx.field(static=True, default=4)
    amplitude: Number = 1.0
    box: Box = Box()
    of: Literal["velocity", "vorticity"] = eqx.field(kw_only=True, default="velocity", static=True)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)
        shape = check_fft(self.fft, real=True)
        if self.of not in ("velocity", "vorticity") or len(shape) < 2 or (self.of == "vorticity" and len(shape) != 2):
            raise ValueError(
                '`of` must be "velocity" on a grid of two or more axes, or "vorticity" on a grid of two axes; '
                f"got {self.of!r} on a grid of shape {shape}."
            )
        kept = (self.transform.modes or shape)[1]
        if 2 * check_count("mode", self.mode) >= kept:
            raise ValueError(f"`mode` must be less than half of the {kept} modes along y; got {self.mode}.")
        check_number("amplitude", self.amplitude)

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        transform, dtype = self.transform, jnp.finfo(u.dtype).dtype
        number = transform.wavenumbers(dtype=dtype)
        elsewhere = _vector.total(k**2 for axis, k in enumerate(number) if axis != 1)
        # Padding has wavenumber zero, like the mean. Only the multiplicity differs: it is zero in the padding, and at
        # least one for a mode.
        there = (elsewhere == 0) & (abs(abs(number[1]) - self.mode) < 0.5) & (transform.multiplicity(dtype=dtype) > 0)
        size = _vector.cast(self.amplitude, u) * (size_of_constant(transform) / 2)
        sine = size * jnp.where(there, -jnp.sign(number[1]), 0)  # This is the imaginary part; the real part is zero.
        if self.of == "vorticity":
            return jnp.zeros_like(u) + (self.wavenumbers(u)[1] * sine).astype(u.dtype)
        along_x = lax.complex(jnp.zeros_like(sine), sine)
        rest = [jnp.zeros_like(along_x)] * (len(number) - 1)
        return jnp.zeros_like(u) + _vector.stack((along_x, *rest), len(number))
