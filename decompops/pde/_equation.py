"""What a partial differential equation is to the integrators."""

import abc
from dataclasses import replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact, Shaped

from .._blocks import axis_names
from .._box import Number
from .._operator.derived import UNCHANGED, Form
from .._structure import Structure
from ..spectral import _vector
from ..spectral._check import check_diagonal, check_fft
from ..spectral._modes import (
    Components,
    SlopeAxes,
    check_slopes,
    component_axes,
    slope_axes,
    transform_components,
    wall_axes,
)
from ._products import AbstractProducts


Time = Number
# Which walls an equation may have: none; those between which products have an expansion, as with cosines; any.
Walls = Literal["none", "even", "any"]


class AbstractSplitEquation(eqx.Module):
    """An equation `∂u/∂t = L u + N(t, u)`, split into a stiff linear part L, which is solved for, and the rest.

    Implicit–explicit integrators need `nonlinear` and `resolvent`. Exponential ones need `AbstractEquation`.
    """

    @property
    @abc.abstractmethod
    def in_structure(self) -> Structure:
        """The type of a state."""

    @property
    def out_structure(self) -> Structure:
        """The type of ∂u/∂t, which is that of a state."""
        return self.in_structure

    @abc.abstractmethod
    def state(self, fields: Shaped[Array | np.ndarray, "*fields"]) -> Inexact[Array, "*spectrum"]:
        """The state of fields `(*batch, *components, nx, ny, nz)`."""

    @abc.abstractmethod
    def fields(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        """The fields of a state."""

    @abc.abstractmethod
    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """N(t, u)."""

    @abc.abstractmethod
    def resolvent(self, u: Inexact[Array, "*spectrum"], h: Number) -> Inexact[Array, "*spectrum"]:
        """The solution v of `v - h L v = u`, for a time h of at least zero."""

    def check(self, u: Any) -> None:
        """Raise `TypeError` or `ValueError` unless `u` is a state of this equation."""
        self.in_structure.check(u, "u")


class AbstractEquation(AbstractProducts, AbstractSplitEquation):
    """An equation `∂u/∂t = L u + N(t, u)` for the spectrum u of periodic fields, with L a factor for each mode.

    Called as `equation(t, u, args)`, which is what diffrax asks of a vector field; split in two for exponential
    integrators. The state is `equation.state(field)`: of shape `(*batch, *modes)` or, for vectors, with a component for
    each axis of the grid, such as `(*batch, 3, *modes)`. It is the spectrum that `equation.transform` makes, where no
    walls give the components of a vector bases of their own. `RealSpace` is the same for fields, for diffrax.

    A subclass declares the fields `fft` and `box`, which are kept as they are given, and implements `linear` and
    `nonlinear`. It may set `components` to "scalar", "vector" or a number of fields; without it, each component of a
    state is treated by itself. It may also set `walls`: "even" if it takes cosines, "any" if sines as well; else it
    takes periodic axes only. One that multiplies fields declares a field `dealiasing`, which says how products stay
    free of aliasing, and takes them between `to_grid` and `from_grid`.

    Where L couples the components of a mode, as in `Wave`, the equation also overrides `to_diagonal` and
    `from_diagonal`.

    **Raises:** `TypeError` for an `fft` that is no transform, a `box` that is not a `Box`, and a `dealiasing` that is
    no rule; `ValueError` for an `fft` without shape and a `box` with another number of axes.
    """

    components: ClassVar[Components] = "any"
    walls: ClassVar[Walls] = "none"

    def __check_init__(self):
        check_diagonal(self.fft)
        self._check_walls()
        component_axes(self.components, len(check_fft(self.fft)))
        check_slopes(self.fft, self.components)

    @property
    def in_structure(self) -> Structure:
        components = component_axes(self.components, self.fft.decomposition.ndim)
        return replace(self.transform.out_structure, components=components, box=self.box)

    @property
    def slopes(self) -> SlopeAxes:
        """Along which axes the components of a state are slopes."""
        return slope_axes(self.components, self.fft.decomposition.ndim)

    def state(self, fields: Shaped[Array | np.ndarray, "*fields"]) -> Inexact[Array, "*spectrum"]:
        return transform_components(self.transform, fields, self.slopes, UNCHANGED)

    def fields(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        return transform_components(self.transform, u, self.slopes, Form(inverted=True))

    @abc.abstractmethod
    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        """The factor that L is for each mode of `u`: real or complex, in its precision, broadcastable against it."""

    def to_diagonal(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """The coordinates of a state `u` in which L is the factor `linear`.

        They are `u` itself. An equation whose L couples the components of a mode overrides this method and its inverse,
        `from_diagonal`: they change to the eigenvectors of L, mode by mode, and `linear` returns the eigenvalues.
        """
        return u

    def from_diagonal(self, w: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """The state with the coordinates `w`: the inverse of `to_diagonal`."""
        return w

    def resolvent(self, u: Inexact[Array, "*spectrum"], h: Number) -> Inexact[Array, "*spectrum"]:
        linear = jnp.asarray(self.linear(u))
        factor = 1 / (1 - _vector.cast(h, u).astype(linear.dtype) * linear)
        return self.from_diagonal(_vector.times(factor, self.to_diagonal(u)))

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """∂u/∂t."""
        self.check(u)
        linear = self.from_diagonal(_vector.times(jnp.asarray(self.linear(u)), self.to_diagonal(u)))
        return linear + self.nonlinear(t, u, args)

    def _check_walls(self) -> None:
        shape = check_fft(self.fft)
        for axis in () if self.walls == "any" else wall_axes(self.fft):
            basis, name = self.fft.bases[axis], axis_names(len(shape))[axis]
            if self.walls == "none":
                raise ValueError(f"`fft` must be periodic along {name} for `{type(self).__name__}`; got {basis}.")
            if basis.wavenumbers(shape[axis])[0]:
                raise ValueError(
                    f"`fft` must have constants among the modes along {name}, so that products of fields are fields of "
                    f"the same kind; got {basis}. Use `Cosine(2)`, or `Fourier()`."
                )


class AbstractLinearEquation(AbstractEquation):
    """An equation `∂u/∂t = L u`, which `ETDRK` solves exactly in one step of any length."""

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        return jnp.zeros_like(u)


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
        return self.equation.fields(self.equation(t, self.equation.state(u), args))


def check_equation(equation: Any) -> AbstractEquation:
    """`equation`, after a check that it is one."""
    if not isinstance(equation, AbstractEquation):
        raise TypeError(f"`equation` must be an `AbstractEquation`; got {equation!r}.")
    return equation


def check_split_equation(equation: Any) -> AbstractSplitEquation:
    """`equation`, after a check that it is one, diagonal or not."""
    if not isinstance(equation, AbstractSplitEquation):
        raise TypeError(f"`equation` must be an `AbstractSplitEquation`; got {equation!r}.")
    return equation
