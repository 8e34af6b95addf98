"""The interface of a partial differential equation, which integrators use."""

import abc
from dataclasses import replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.blocks import axis_names
from .._common.box import Number
from .._common.remember import in_one_program, keep_if_traced
from .._common.typed import sharded_like, zeros_like
from .._core.structure import Structure
from .._operator.derived import UNCHANGED, Form
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_diagonal, check_factors, check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate, check_dealiasing
from ..spectral._modes import (
    Components,
    SlopeAxes,
    check_slopes,
    component_axes,
    inner_transform,
    slope_axes,
    transform_components,
    wall_axes,
)
from ..spectral._walls import lost_places, slip
from ._products import AbstractProducts


Time = Number
# The walls that an equation may have. With "even", fields between walls are sums of cosines, and so are the products of
# these fields. With "any", fields may also be sums of sines.
Walls = Literal["none", "even", "any"]


class AbstractSplitEquation(eqx.Module):
    """An equation `∂u/∂t = L u + N(t, u)`, split into a stiff linear part L and the other terms N.

    Implicit–explicit integrators need `nonlinear` and `resolvent`. Exponential integrators need an `AbstractEquation`.
    """

    @property
    @abc.abstractmethod
    def in_structure(self) -> Structure:
        """The structure of a state: its shape, components and sharding."""

    @property
    def out_structure(self) -> Structure:
        """The structure of ∂u/∂t, which is the structure of a state."""
        return self.in_structure

    @abc.abstractmethod
    def state(self, fields: Shaped[Array | np.ndarray, "*fields"]) -> Inexact[Array, "*spectrum"]:
        """Return the state for fields `(*batch, *components, nx, ny, nz)`."""

    @abc.abstractmethod
    def fields(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        """Return the fields `(*batch, *components, nx, ny, nz)` of a state."""

    @abc.abstractmethod
    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """Return N(t, u), an array with the shape and dtype of the state."""

    @abc.abstractmethod
    def resolvent(self, u: Inexact[Array, "*spectrum"], h: Number) -> Inexact[Array, "*spectrum"]:
        """Return the solution v of `v - h L v = u`, for a nonnegative time `h`."""

    def at(self, t: Time) -> "AbstractSplitEquation":
        """Return the equation with the boundary values that it has at the time `t`.

        By default, boundary values do not depend on time, and the result is `self`. An equation with other boundary
        values overrides this method. Integrators call the `resolvent` of the result, for the time of the solution v.
        """
        del t
        return self

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"] | None:
        """Return the speeds that limit a time step: one for each axis of the grid, at each point.

        `CFL` calls this method. By default, the speeds are the velocity: the first components of `fields(u)`. An
        equation without enough components returns `None`. An equation whose first components are not a velocity, or
        whose nonlinear term has faster waves, overrides this method.
        """
        structure = self.in_structure
        components = structure.components
        return None if components is None or len(components) != 1 or components[0] < structure.ndim else self.fields(u)

    def check(self, u: Any) -> None:
        """Raise `TypeError` or `ValueError` unless `u` is a state of this equation."""
        try:
            self.in_structure.check(u, "u")
        except TypeError as error:
            if jnp.iscomplexobj(u):
                raise
            raise type(error)(f"{error} For a field, pass `equation.state(field)`.") from None


class AbstractEquation(AbstractProducts, AbstractSplitEquation):
    """An equation `∂u/∂t = L u + N(t, u)` for the spectrum u of fields, where L multiplies each mode by a factor.

    `equation(t, u, args)` returns `∂u/∂t`, so an equation can be passed to `diffrax.ODETerm`. Exponential integrators
    do not call the equation: they use `linear` and `nonlinear`. `RealSpace` turns the equation into an equation for
    fields.

    The state is `equation.state(fields)`. It has the shape `(*batch, *modes)` for a scalar, and `(*batch, 3, *modes)`
    for a vector on a grid of three axes. The state equals `equation.transform(fields)`, except for vectors between
    walls, whose components may have different bases.

    A subclass declares the dataclass field `fft`, and implements `linear` and `nonlinear`. It may set

    - `components`: "scalar", "vector" or a number of fields. By default, a state may have any number of components, and
        the equation applies to each component separately.
    - `walls`: "even" if fields may be sums of cosines along an axis, "any" if they may also be sums of sines. By
        default, all axes must be periodic.
    - a dataclass field `dealiasing`, if the equation multiplies fields: the rule that keeps products free of aliasing.
        Such an equation multiplies the fields that `to_grid` returns, and passes the products to `from_grid`.

    If L couples the components of a mode, as in `Wave`, the subclass also overrides `to_diagonal` and `from_diagonal`.

    **Raises:** `TypeError` if `fft` is not a transform, or if `dealiasing` is not a dealiasing rule; `ValueError` if
    `fft` has no `shape`, if it has walls and no `box`, or if it has walls that the equation cannot have.
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
        return replace(self.transform.out_structure, components=components)

    @property
    def slopes(self) -> SlopeAxes:
        """For each component of a state, the axes along which the component has the basis of a first derivative.

        Only axes between walls matter: there, the first derivative of a sum of cosines is a sum of sines, which is
        another basis.
        """
        return slope_axes(self.components, self.fft.decomposition.ndim)

    def state(self, fields: Shaped[Array | np.ndarray, "*fields"]) -> Inexact[Array, "*spectrum"]:
        check_fields(self, fields)
        self._check_no_flow_across_walls(fields)
        return transform_components(self.transform, fields, self.slopes, UNCHANGED)

    def fields(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        return transform_components(self.transform, u, self.slopes, Form(inverted=True))

    @abc.abstractmethod
    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        """Return the factor by which L multiplies each mode of `u`.

        The factor is a number, or a real or complex array that broadcasts against `u`. It is used in the precision of
        `u`.
        """

    def to_diagonal(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Return the coordinates of a state `u` in which L is diagonal, with the diagonal `linear(u)`.

        By default, the coordinates are `u` itself. An equation whose L couples the components of a mode overrides this
        method and its inverse `from_diagonal`. The coordinates then refer to the eigenvectors of L in each mode, and
        `linear` returns the eigenvalues.
        """
        return u

    def from_diagonal(self, w: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Return the state with the coordinates `w`: the inverse of `to_diagonal`."""
        return w

    def admissible(self, rate: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Return the part of a rate of change of a state that the constraints of the equation admit.

        By default, an equation has no constraint, and the result is `rate` itself. An equation whose states satisfy a
        constraint, such as zero divergence, overrides this method. `PassiveScalar` applies it to its own `forcing`.
        """
        return rate

    def resolvent(self, u: Inexact[Array, "*spectrum"], h: Number) -> Inexact[Array, "*spectrum"]:
        self.check(u)
        linear = linear_factor(self, u)
        factor = 1 / (1 - _vector.cast(h, u).astype(linear.dtype) * linear)
        return self.from_diagonal(_vector.times(factor, self.to_diagonal(u)))

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        """Return ∂u/∂t.

        **Arguments:**

        - `t`: the time.
        - `u`: a state, as the method `state` returns it. Its shape is `(*batch, *modes)` or `(*batch, components,
            *modes)`.
        - `args`: any PyTree, passed to `nonlinear`.

        **Returns:** an array of the shape, dtype and sharding of `u`.

        **Raises:** `ValueError` or `TypeError` if `u` is not a state of this equation.
        """
        keep_if_traced(self, u)
        self.check(u)
        return _rate(self, t, u, args)

    def _check_no_flow_across_walls(self, fields: Any) -> None:
        """Raise `ValueError` if a velocity across a wall would be lost, because its basis is zero at the wall."""
        places = lost_places(self.fft, self.slopes)
        if gap := slip(fields, len(check_fft(self.fft)), places):
            raise ValueError(
                f"`fields` of `{type(self).__name__}` must have no velocity across walls; got {gap:.3g} at a wall. Set "
                "each component of the velocity to zero at the walls along its axis."
            )

    def _check_walls(self) -> None:
        shape = check_fft(self.fft)
        for axis in () if self.walls == "any" else wall_axes(self.fft):
            basis, name = self.fft.bases[axis], axis_names(len(shape))[axis]
            if self.walls == "none":
                raise ValueError(
                    f"`fft` must be periodic along {name} for `{type(self).__name__}`; got {basis}. Use `Fourier()`."
                )
            if basis.wavenumbers(shape[axis])[0]:
                raise ValueError(
                    f"`fft` must have a constant mode along {name}, so that products of fields have the same basis; "
                    f"got {basis}. Use `Cosine(2)` or `Fourier()`."
                )


class AbstractLinearEquation(AbstractEquation):
    """A linear equation `∂u/∂t = L u`. `ETDRK` solves it exactly in one step of any length."""

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        return zeros_like(u)


class RealSpace(eqx.Module):
    """An equation for fields instead of spectra: a function `(t, u, args)` of a field u that returns the field ∂u/∂t.

    Use it with diffrax, which supports real numbers better than complex ones. Each evaluation takes two transforms more
    than an evaluation of `equation`.

    **Arguments:**

    - `equation`: an `AbstractEquation`, such as `NavierStokes`.

    **Raises:** `TypeError` if `equation` is not an `AbstractEquation`.
    """

    equation: AbstractEquation

    def __check_init__(self):
        check_equation(self.equation)

    @property
    def in_structure(self) -> Structure:
        """The structure of a state: its shape, components and sharding."""
        equation = self.equation
        return replace(equation.transform.in_structure, components=equation.in_structure.components)

    @property
    def out_structure(self) -> Structure:
        """The structure of ∂u/∂t, which is the structure of a state."""
        return self.in_structure

    def __call__(self, t: Time, u: Shaped[Array, "*field"], args: Any = None) -> Shaped[Array, "*field"]:
        """Return the field ∂u/∂t for the field `u` at the time `t`. `args` is passed to the equation."""
        keep_if_traced(self, u)
        self.in_structure.check(u, "u")
        return _rate_of_fields(self, t, u, args)


@in_one_program
def _rate(equation: AbstractEquation, t: Time, u: Array, args: Any) -> Array:
    linear = equation.from_diagonal(_vector.times(linear_factor(equation, u), equation.to_diagonal(u)))
    return sharded_like(linear + like_state("nonlinear", equation.nonlinear(t, u, args), u), u)


@in_one_program
def _rate_of_fields(fields: RealSpace, t: Time, u: Array, args: Any) -> Array:
    equation = fields.equation
    return sharded_like(equation.fields(equation(t, equation.state(u), args)), u)


def linear_factor(equation: AbstractEquation, u: Array) -> Array:
    """Return `equation.linear(u)` in the precision of `u`, after checks of its shape.

    Integrators multiply it by a time, which would be zero as an integer.
    """
    factor = check_factors(u, equation.linear(u), f"{type(equation).__name__}.linear")
    real = jnp.finfo(u.dtype).dtype
    return factor.astype(np.result_type(real, np.complex64) if jnp.iscomplexobj(factor) else real)


def like_state(name: str, result: Any, u: Array) -> Array:
    """Return the result of the method `name` of an equation. Raises `ValueError` unless it is like the state `u`."""
    if not isinstance(result, Array) or (result.shape, result.dtype) != (u.shape, u.dtype):
        got = f"{result.dtype} {result.shape}" if isinstance(result, Array) else repr(result)
        raise ValueError(
            f"`equation.{name}` must return an array with the dtype and shape of the state, {u.dtype} {u.shape}; got "
            f"{got}."
        )
    return sharded_like(result, u)


def check_fields(equation: AbstractSplitEquation, fields: Any) -> None:
    """Raise `ValueError` unless an array has the axes of the components of the equation before the axes of the grid."""
    structure, shape = equation.in_structure, jnp.shape(fields)
    components, ndim = structure.components or (), structure.layout.blocks.ndim
    if shape[-ndim - len(components) : -ndim] != components:
        wanted = ", ".join(("*batch", *map(str, components), *(f"n{name}" for name in axis_names(ndim))))
        raise ValueError(f"`fields` of `{type(equation).__name__}` must have shape ({wanted}); got {shape}.")


def state_transform(fft: AbstractTransform, dealiasing: AbstractDealiasing | None = Truncate()) -> AbstractTransform:
    """Return the transform of an equation that is built with `fft` and `dealiasing`, before the equation exists.

    A force needs this transform, because it returns spectra like the state of its equation. The result equals
    `equation.transform`. `KolmogorovForcing` and `Smagorinsky` find this transform themselves.

    !!! example

        ```python
        wind = pde.state_transform(fft)(field)
        equation = pde.NavierStokes(fft, 0.01, forcing=lambda t, u, args: wind)
        ```

    **Arguments:**

    - `fft`: the transform that you pass to the equation, built with a `shape`.
    - `dealiasing`: the rule that you pass to the equation. The default is the default of the equations that multiply
        two fields, such as `NavierStokes`. Pass `None` for an equation without the argument `dealiasing`.

    **Returns:** a transform between fields on the grid of `fft` and states. With sines and cosines between walls, the
    components of a vector have different bases; then use `equation.state`, and `dataclasses.replace(equation,
    forcing=...)`. With `Chebyshev`, all components have one basis.

    **Raises:** `TypeError` if `fft` is not a transform, or if `dealiasing` is neither a dealiasing rule nor `None`;
    `ValueError` if `fft` has no `shape`.
    """
    check_fft(fft)
    return inner_transform(fft, check_dealiasing("dealiasing", dealiasing))


def check_equation(equation: Any) -> AbstractEquation:
    """Return `equation`. Raises `TypeError` unless it is an `AbstractEquation`."""
    if not isinstance(equation, AbstractEquation):
        raise TypeError(f"`equation` must be an `AbstractEquation`, such as `NavierStokes`; got {equation!r}.")
    return equation


def check_split_equation(equation: Any) -> AbstractSplitEquation:
    """Return `equation`. Raises `TypeError` unless it is an `AbstractSplitEquation`."""
    if not isinstance(equation, AbstractSplitEquation):
        raise TypeError(f"`equation` must be an `AbstractSplitEquation`, such as `NavierStokes`; got {equation!r}.")
    return equation
