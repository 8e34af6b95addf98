"""How equations of a velocity carry it along with itself."""

import itertools
from typing import Any, Literal, get_args

from jax import Array

from .._box import Number
from .._check import check_flag
from ..spectral import _vector
from ._products import AbstractProducts, velocity_and_vorticity


# A velocity with a component for each axis, or a scalar that moves along the diagonal of all axes.
Carried = Literal["vector", "scalar"]


def check_convection(components: Any, conservative: Any) -> None:
    """Raise `ValueError` or `TypeError` unless these are the arguments of an equation with `convection`."""
    if components not in get_args(Carried):
        raise ValueError(f"`components` must be one of {get_args(Carried)}; got {components!r}.")
    check_flag("conservative", conservative)


def convection(equation: AbstractProducts, u: Array, scale: Number, components: Carried, conservative: bool) -> Array:
    """The spectrum of `-scale` times the convection of u by itself.

    Of a velocity it is `(u·∇)u`, or `∇·(u u)/2` if `conservative`, which is the same in one dimension only. Of a scalar
    it is the sum of `∂(u²/2)/∂x_i` over all axes.
    """
    factor = _vector.cast(scale, u)
    k = tuple(factor * component for component in equation.wavenumbers(u, nyquist=False))
    ndim = len(k)
    if components == "scalar":
        return _vector.times_i(-_vector.total(k) / 2, equation.from_grid(equation.to_grid(u) ** 2))
    if conservative:
        velocity = _vector.components(equation.to_grid(u), ndim)
        pairs = tuple(itertools.combinations_with_replacement(range(ndim), 2))
        products = equation.from_grid(_vector.stack((velocity[i] * velocity[j] for i, j in pairs), ndim))
        tensor = dict(zip(pairs, _vector.components(products, ndim)))
        rows = ([tensor[min(i, j), max(i, j)] for j in range(ndim)] for i in range(ndim))
        return _vector.stack((_vector.total(map(_vector.times_i, (-q / 2 for q in k), row)) for row in rows), ndim)
    velocity, vorticity = velocity_and_vorticity(equation, k, u)  # the vorticity times `scale`
    half_square = _vector.total(part**2 for part in velocity) / 2
    if not vorticity:  # in one dimension
        return -_vector.gradient(k, equation.from_grid(half_square))
    products = equation.from_grid(_vector.stack((half_square, *_vector.cross(velocity, vorticity)), ndim))
    grid = [slice(None)] * ndim
    return products[(..., slice(1, None), *grid)] - _vector.gradient(k, products[(..., 0, *grid)])
