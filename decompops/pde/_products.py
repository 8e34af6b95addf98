"""Products of fields, free of aliasing."""

import itertools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact, Shaped

from .._operator.derived import UNCHANGED, Form
from .._operator.transform import AbstractTransform
from .._remember import remembered
from ..spectral import _vector
from ..spectral._dealiasing import AbstractDealiasing, check_dealiasing
from ..spectral._modes import AbstractSpectral, SlopeAxes, slope_axes, transform_components


class AbstractProducts(AbstractSpectral):
    """Something that multiplies fields whose spectra it is given: an equation, or a term of one.

    A subclass declares a field `dealiasing`, the rule that keeps products free of aliasing. It multiplies what
    `to_grid` returns, and hands the products to `from_grid`.
    """

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)

    @property
    def products(self) -> AbstractTransform:
        """The transform between states and the grid on which products are taken.

        The grid is that of `fft`, unless the rule is `Pad`.
        """
        return of_products(self.transform, self.dealiasing)

    def to_grid(self, u: Inexact[Array, "*spectrum"], slopes: SlopeAxes = ((),)) -> Shaped[Array, "*field"]:
        """The fields of the spectra `u`, on the grid on which products are taken.

        `slopes` says along which axes each component is a first derivative, as `slope_axes("vector", 3)` does of a
        vector. It matters between walls only.
        """
        return transform_components(self.products, self.masked(u), slopes, Form(inverted=True))

    def from_grid(self, product: Shaped[Array, "*field"], slopes: SlopeAxes = ((),)) -> Inexact[Array, "*spectrum"]:
        """The modes that a state has, of products on that grid."""
        return self.masked(transform_components(self.products, product, slopes, UNCHANGED))

    def masked(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """The modes of `u` that enter products. With `Mask` the others become zero; other rules keep all of `u`."""
        return u if self.dealiasing is None else self.dealiasing.masked(self.transform, u)


@remembered
def of_products(transform: AbstractTransform, dealiasing: AbstractDealiasing | None) -> AbstractTransform:
    """The transform between states, which are spectra of `transform`, and the grid on which products are taken."""
    return transform if dealiasing is None else dealiasing.of_products(transform)


def velocity_and_vorticity(
    term: AbstractProducts, nabla: _vector.Nabla, u: Array
) -> tuple[_vector.Parts, _vector.Parts]:
    """The components of u and of its vorticity on the grid of products, transformed in one batched call."""
    ndim = nabla.ndim
    rotation = nabla.rotation(u)
    spectra = jnp.concatenate([u, _vector.stack(rotation, ndim)], axis=-ndim - 1) if rotation else u
    parts = _vector.components(term.to_grid(spectra, slope_axes("vector", ndim) + _vector.planes(ndim)), ndim)
    return parts[:ndim], parts[ndim:]


def symmetric_from_grid(term: AbstractProducts, entry: Callable[[int, int], Array | None], ndim: int) -> _vector.Tensor:
    """The spectra of a symmetric tensor with the entries `entry(i, j)` on the grid, transformed in one batched call.

    An entry that is `None` is zero, and is left out.
    """
    pairs = itertools.combinations_with_replacement(range(ndim), 2)
    entries = {pair: value for pair in pairs if (value := entry(*pair)) is not None}
    slopes = tuple(() if i == j else (i, j) for i, j in entries)
    spectra = _vector.components(term.from_grid(_vector.stack(entries.values(), ndim), slopes), ndim)
    return dict(zip(entries, spectra))
