"""Computes the force of a viscous stress whose viscosity is a field."""

import itertools
from collections.abc import Callable

from jax import Array
from jaxtyping import Inexact

from ..spectral import _vector
from ._products import AbstractProducts, symmetric_from_grid


def viscous_force(
    term: AbstractProducts,
    u: Inexact[Array, "*state"],
    scalars: _vector.Parts,
    viscosity: Callable[[Array, _vector.Parts], Array],
) -> Inexact[Array, "*force"]:
    """Return the spectrum of `∇·(2 ν S)`, a vector, for the velocity whose components are the first ones of `u`.

    S is the rate of strain `(∇u + (∇u)ᵀ)/2`. `viscosity` gets `2 S:S` and `scalars` as fields on the grid of products,
    and returns the field ν.
    """
    nabla = term.nabla(u)
    ndim = nabla.ndim
    v = _vector.components(u, ndim)
    pairs = tuple(itertools.combinations_with_replacement(range(ndim), 2))
    spectra = [nabla.fall(i, v[i]) if i == j else (nabla.rise(j, v[i]) + nabla.rise(i, v[j])) / 2 for i, j in pairs]
    slopes = tuple(() if i == j else (i, j) for i, j in pairs) + ((),) * len(scalars)
    fields = _vector.components(term.to_grid(_vector.stack((*spectra, *scalars), ndim), slopes), ndim)
    strain = dict(zip(pairs, fields))
    square = _vector.total((2 if i == j else 4) * part**2 for (i, j), part in strain.items())
    nu = viscosity(square, fields[len(pairs) :])
    return nabla.divergence_of_tensor(symmetric_from_grid(term, lambda i, j: 2 * nu * strain[i, j], ndim))
