"""What a partial differential equation is to the integrators."""

import abc
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Complex, Inexact, Shaped

from .._box import Number
from .._operator.fft import FFT
from .._operator.transform import Wavenumbers
from .._structure import Structure
from ..spectral import _vector
from ..spectral._modes import AbstractSpectral, Components, check_fft, component_axes


Time = Number


class AbstractEquation(AbstractSpectral):
    """An equation `∂u/∂t = L u + N(t, u)` for the spectrum u of periodic fields, with L diagonal.

    Called as `equation(t, u, args)`, which is what diffrax asks of a vector field; split in two for exponential
    integrators. The state is `equation.transform(field)`: of shape `(*batch, *modes)` or, for vectors, with a component
    for each axis of the grid, such as `(*batch, 3, *modes)`. `RealSpace` is the same for fields, for diffrax.

    A subclass declares the fields `fft` and `box`, which are kept as they are given, and implements `linear` and
    `nonlinear`. It may set `components` to "scalar" or "vector"; without it, each component of a state is treated by
    itself. One that multiplies fields sets `dealiases = True`; then `transform` and the state hold only the modes that
    products of two fields leave free of aliasing.

    **Raises:** `TypeError` for an `fft` that is not an `FFT` and a `box` that is not a `Box`; `ValueError` for an
    `fft` without shape and a `box` with another number of axes.
    """

    components: ClassVar[Components] = "any"

    def __check_init__(self):
        component_axes(self.components, len(check_fft(self.fft)))

    @property
    def in_structure(self) -> Structure:
        """The type of a state."""
        components = component_axes(self.components, self.fft.decomposition.ndim)
        return replace(self.transform.out_structure, components=components, box=self.box)

    @property
    def out_structure(self) -> Structure:
        """The type of ∂u/∂t, which is that of a state."""
        return self.in_structure

    @abc.abstractmethod
    def linear(self, u: Complex[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        """The factor that L is for each mode of `u`: real or complex, in its precision, broadcastable against it."""

    @abc.abstractmethod
    def nonlinear(self, t: Time, u: Complex[Array, "*spectrum"], args: Any = None) -> Complex[Array, "*spectrum"]:
        """N(t, u)."""

    def __call__(self, t: Time, u: Complex[Array, "*spectrum"], args: Any = None) -> Complex[Array, "*spectrum"]:
        """∂u/∂t."""
        self.check(u)
        return _vector.times(jnp.asarray(self.linear(u)), u) + self.nonlinear(t, u, args)

    def check(self, u: Any) -> None:
        """Raise `TypeError` or `ValueError` unless `u` is a state of this equation."""
        self.in_structure.check(u, "u")


class RealSpace(eqx.Module):
    """An equation for fields instead of spectra: `(t, u, args) -> ∂u/∂t`, both on the grid.

    For diffrax, which knows real numbers best. It transforms twice more in each evaluation.
    """

    equation: AbstractEquation

    def __check_init__(self):
        check_equation(self.equation)

    @property
    def in_structure(self) -> Structure:
        """The type of a state."""
        equation = self.equation
        return replace(equation.transform.in_structure, components=equation.in_structure.components, box=equation.box)

    @property
    def out_structure(self) -> Structure:
        """The type of ∂u/∂t, which is that of a state."""
        return self.in_structure

    def __call__(self, t: Time, u: Shaped[Array, "*field"], args: Any = None) -> Shaped[Array, "*field"]:
        self.in_structure.check(u, "u")
        transform = self.equation.transform
        return transform.inverse(self.equation(t, transform(u), args))


def check_equation(equation: Any) -> AbstractEquation:
    """`equation`, after a check that it is one."""
    if not isinstance(equation, AbstractEquation):
        raise TypeError(f"`equation` must be an `AbstractEquation`; got {equation!r}.")
    return equation


def velocity_and_vorticity(transform: FFT, k: Wavenumbers, u: Array) -> tuple[_vector.Parts, _vector.Parts]:
    """The components of u and of its vorticity on the grid, transformed in one batched call."""
    ndim = len(k)
    rotation = _vector.rotation(k, u)
    spectra = jnp.concatenate([u, _vector.stack(rotation, ndim)], axis=-ndim - 1) if rotation else u
    parts = _vector.components(transform.inverse(spectra), ndim)
    return parts[:ndim], parts[ndim:]
