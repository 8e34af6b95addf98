"""Linear equations of transport: diffusion, advection, dispersion and hyperdiffusion."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Inexact

from .._common.blocks import axis_names
from .._common.box import Number, Numbers
from .._common.check import as_tuples, check_flag, check_number, taking
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ._equation import AbstractLinearEquation, Walls
from ._symbols import fourth_power, third_power


Diffusivity = Number | Numbers | tuple[Numbers, ...]


def _check_diffusivity(diffusivity: Diffusivity, ndim: int) -> None:
    """Raise `TypeError` or `ValueError` unless `diffusivity` is a number, a number for each axis, or a matrix."""
    if not isinstance(diffusivity, tuple):
        check_number("diffusivity", diffusivity, least=0)
        return
    rows = [row if isinstance(row, tuple) else (row,) for row in diffusivity]
    is_matrix = all(isinstance(row, tuple) for row in diffusivity)
    if len(rows) != ndim or any(len(row) != (ndim if is_matrix else 1) for row in rows):
        raise ValueError(
            f"`diffusivity` must be one number, {ndim} numbers, or a matrix of {ndim} rows and columns; "
            f"got {diffusivity!r}."
        )
    for row in rows:
        for entry in row:
            check_number("diffusivity", entry, least=-math.inf if is_matrix else 0)


def _decay(equation: AbstractLinearEquation, diffusivity: Diffusivity, u: Array) -> Array:
    """Return `k·κ·k`, the symbol of `-∇·κ∇`."""
    k = equation.wavenumbers(u)
    if not isinstance(diffusivity, tuple):
        return _vector.cast(diffusivity, u) * _vector.squared(k)
    if not isinstance(diffusivity[0], tuple):
        return _vector.total(_vector.cast(number, u) * component**2 for number, component in zip(diffusivity, k))
    # A mixed derivative is odd along both axes, so it has no Nyquist modes.
    odd = equation.wavenumbers(u, nyquist=False)
    return _vector.total(
        _vector.cast(entry, u) * (k[i] ** 2 if i == j else odd[i] * odd[j])
        for i, row in enumerate(diffusivity)
        for j, entry in enumerate(row)  # pyright: ignore[reportArgumentType]
    )


class Diffusion(AbstractLinearEquation):
    """The diffusion equation `∂u/∂t = κ ∇²u` for a number κ, or `∂u/∂t = ∇·(κ ∇u)` for a matrix κ.

    If u has several components, the equation holds for each component.

    **Arguments:**

    - `fft`: the transform, built with a `shape`, and with `real=True` if the fields are real.
    - `diffusivity`: κ: one nonnegative number, a tuple of one nonnegative number for each axis, or a matrix as nested
        tuples. The symmetric part of a matrix must have no negative eigenvalue; this is not checked. The diffusivity
        may be traced, so that JAX can differentiate with respect to it.

    **Raises:** the errors of `AbstractEquation`; `ValueError` or `TypeError` for an invalid `diffusivity`.
    """

    fft: AbstractTransform
    diffusivity: Diffusivity = eqx.field(converter=taking(Diffusivity, as_tuples))
    walls: ClassVar[Walls] = "any"

    def __check_init__(self):
        _check_diffusivity(self.diffusivity, len(check_fft(self.fft)))

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return -_decay(self, self.diffusivity, u)


def _for_each_axis(name: str, value: Any) -> tuple[Number, ...]:
    try:
        parts = tuple(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be a tuple of one number for each axis; got {value!r}.") from error
    return tuple(check_number(name, part) for part in parts)


def _check_for_each_axis(name: str, value: Numbers, fft: Any) -> None:
    names = axis_names(len(check_fft(fft)))
    if len(value) != len(names):
        raise ValueError(f"`{name}` must be a tuple of one number for each of {', '.join(names)}; got {value!r}.")


class Advection(AbstractLinearEquation):
    """The advection–diffusion equation `∂u/∂t = -c·∇u + κ ∇²u` with a constant velocity c, for each component of u.

    **Arguments:**

    - `fft`: the transform, built with a `shape`, and with `real=True` if the fields are real.
    - `velocity`: c, one number for each axis of the grid: `(cx, cy, cz)`.
    - `diffusivity`: κ, as for `Diffusion`.

    **Raises:** the errors of `Diffusion`; `ValueError` or `TypeError` for an invalid `velocity`.
    """

    fft: AbstractTransform
    velocity: Numbers = eqx.field(converter=taking(Numbers, lambda value: _for_each_axis("velocity", value)))
    diffusivity: Diffusivity = eqx.field(default=0.0, converter=taking(Diffusivity, as_tuples))

    def __check_init__(self):
        _check_for_each_axis("velocity", self.velocity, self.fft)
        _check_diffusivity(self.diffusivity, len(self.velocity))

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        k = self.wavenumbers(u, nyquist=False)
        shift = _vector.total(_vector.cast(c, u) * component for c, component in zip(self.velocity, k))
        decay = _decay(self, self.diffusivity, u)
        return lax.complex(-decay, -shift)


class Dispersion(AbstractLinearEquation):
    """The equation `∂u/∂t = (ξ·∇) ∇²u` of dispersive waves, for a scalar or for each component of u.

    **Arguments:**

    - `fft`: the transform, built with a `shape`, and with `real=True` if the fields are real.
    - `dispersivity`: ξ, one number for each axis of the grid. It may be traced, so that JAX can differentiate with
        respect to it.
    - `isotropic`: `False` replaces `(ξ·∇) ∇²u` by the sum of `ξ_i ∂³u/∂x_i³`.

    **Raises:** the errors of `AbstractEquation`; `ValueError` or `TypeError` for an invalid `dispersivity`.
    """

    fft: AbstractTransform
    dispersivity: Numbers = eqx.field(converter=taking(Numbers, lambda value: _for_each_axis("dispersivity", value)))
    isotropic: bool = eqx.field(kw_only=True, default=True, static=True)

    def __check_init__(self):
        _check_for_each_axis("dispersivity", self.dispersivity, self.fft)
        check_flag("isotropic", self.isotropic)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        coefficients = tuple(_vector.cast(c, u) for c in self.dispersivity)
        k, odd = self.wavenumbers(u), self.wavenumbers(u, nyquist=False)
        third = third_power(k, odd, coefficients, self.isotropic)
        return lax.complex(jnp.zeros_like(third), -third)


class HyperDiffusion(AbstractLinearEquation):
    """The hyperdiffusion equation `∂u/∂t = -μ ∇⁴u`, for a scalar or for each component of u.

    **Arguments:**

    - `fft`: the transform, built with a `shape`, and with `real=True` if the fields are real.
    - `hyper_diffusivity`: μ, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it.
    - `isotropic`: `False` replaces ∇⁴ by `∂⁴/∂x⁴ + ∂⁴/∂y⁴ + ...`.

    **Raises:** the errors of `AbstractEquation`; `ValueError` or `TypeError` for an invalid `hyper_diffusivity`.
    """

    fft: AbstractTransform
    hyper_diffusivity: Number
    walls: ClassVar[Walls] = "any"
    isotropic: bool = eqx.field(kw_only=True, default=True, static=True)

    def __check_init__(self):
        check_number("hyper_diffusivity", self.hyper_diffusivity, least=0)
        check_flag("isotropic", self.isotropic)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return -_vector.cast(self.hyper_diffusivity, u) * fourth_power(self.wavenumbers(u), self.isotropic)
