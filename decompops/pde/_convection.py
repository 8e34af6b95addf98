"""The convection of a velocity, or of a scalar, by itself."""

from typing import Any, Literal, get_args

from jax import Array

from .._common.box import Number
from .._common.check import check_flag
from ..spectral import _vector
from ..spectral._modes import slope_axes
from ._equation import Walls
from ._products import AbstractProducts, symmetric_from_grid, velocity_and_vorticity


# A velocity with a component for each axis, or a scalar u that moves with the velocity (u, u, ...).
Convected = Literal["vector", "scalar"]


def check_convection(components: Any, conservative: Any) -> None:
    """Raise `ValueError` or `TypeError` unless both are valid arguments of an equation that uses `convection`."""
    if components not in get_args(Convected):
        raise ValueError(f"`components` must be one of {get_args(Convected)}; got {components!r}.")
    check_flag("conservative", conservative)


def walls_of(components: Convected) -> Walls:
    """Return the walls that an equation with this convection may have: none for a scalar."""
    return "even" if components == "vector" else "none"


def convection_speeds(velocity: Array | None, scale: Number) -> Array | None:
    """Return the speeds with which a velocity carries itself by `convection`; `None` for no velocity."""
    return None if velocity is None else _vector.cast(scale, velocity) * velocity


def convection(equation: AbstractProducts, u: Array, scale: Number, components: Convected, conservative: bool) -> Array:
    """Return the spectrum of `-scale` times the convection of u by itself.

    The convection of a velocity is `(u·∇)u`, or `∇·(u u)/2` if `conservative`. The two are equal only in one dimension.
    The convection of a scalar is the sum of `∂(u²/2)/∂x_i` over all axes.
    """
    factor, nabla = _vector.cast(scale, u), equation.nabla(u)
    nabla = nabla._replace(k=tuple(factor * component for component in nabla.k))
    ndim = nabla.ndim
    if components == "scalar":
        return _vector.times_unit(1j, -_vector.total(nabla.k) / 2, equation.from_grid(equation.to_grid(u) ** 2))
    if conservative:
        velocity = _vector.components(equation.to_grid(u, slope_axes("vector", ndim)), ndim)
        tensor = symmetric_from_grid(equation, lambda i, j: velocity[i] * velocity[j], ndim)
        return -nabla.divergence_of_tensor(tensor) / 2
    velocity, vorticity = velocity_and_vorticity(equation, nabla, u)  # The vorticity is multiplied by `scale`.
    half_square = _vector.total(part**2 for part in velocity) / 2
    if not vorticity:  # In one dimension, the velocity has no vorticity.
        return -nabla.gradient(equation.from_grid(half_square))
    products = _vector.stack((half_square, *_vector.cross(velocity, vorticity)), ndim)
    products = equation.from_grid(products, ((), *slope_axes("vector", ndim)))
    grid = [slice(None)] * ndim
    return products[(..., slice(1, None), *grid)] - nabla.gradient(products[(..., 0, *grid)])
