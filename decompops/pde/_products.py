"""Computes products of fields without aliasing errors."""

import itertools
from collections.abc import Callable

from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.remember import remembered
from .._operator.derived import UNCHANGED, Form
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._dealiasing import AbstractDealiasing, check_dealiasing
from ..spectral._modes import AbstractSpectral, SlopeAxes, slope_axes, transform_components


class AbstractProducts(AbstractSpectral):
    """An equation, or a term of an equation, that multiplies fields.

    A subclass declares a dataclass field `dealiasing`, the rule that keeps products free of aliasing. The subclass
    multiplies fields that `to_grid` returns, and passes the products to `from_grid`.
    """

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)

    @property
    def products(self) -> AbstractTransform:
        """The transform between states and fields on the grid of products.

        Fields are multiplied on the grid of products. This is the grid of `fft`, unless `dealiasing` is `Pad`.
        """
        return of_products(self.transform, self.dealiasing)

    def to_grid(self, u: Inexact[Array, "*spectrum"], slopes: SlopeAxes = ((),)) -> Shaped[Array, "*field"]:
        """Return the fields of the spectra `u` on the grid of products.

        `slopes` gives, for each component, the axes along which the component has the basis of a first derivative. For
        a vector, pass `slope_axes("vector", 3)`. Only axes between walls matter.
        """
        return transform_components(self.products, self.masked(u), slopes, Form(inverted=True))

    def from_grid(self, product: Shaped[Array, "*field"], slopes: SlopeAxes = ((),)) -> Inexact[Array, "*spectrum"]:
        """Return the spectra of fields on the grid of products, with the modes of a state."""
        return self.masked(transform_components(self.products, product, slopes, UNCHANGED))

    def masked(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Return `u` with zeros for the modes that must not enter products. Only the rule `Mask` has such modes."""
        return u if self.dealiasing is None else self.dealiasing.masked(self.transform, u)


@remembered
def of_products(transform: AbstractTransform, dealiasing: AbstractDealiasing | None) -> AbstractTransform:
    """Return the transform between states, which are spectra of `transform`, and fields on the grid of products."""
    return transform if dealiasing is None else dealiasing.of_products(transform)


def velocity_and_vorticity(
    term: AbstractProducts, nabla: _vector.Nabla, u: Array
) -> tuple[_vector.Parts, _vector.Parts]:
    """Return the components of u and of its vorticity on the grid of products, from one batched transform."""
    ndim = nabla.ndim
    rotation = nabla.rotation(u)
    spectra = _vector.joined((u, _vector.stack(rotation, ndim)), ndim) if rotation else u
    parts = _vector.components(term.to_grid(spectra, slope_axes("vector", ndim) + _vector.planes(ndim)), ndim)
    return parts[:ndim], parts[ndim:]


def symmetric_from_grid(term: AbstractProducts, entry: Callable[[int, int], Array | None], ndim: int) -> _vector.Tensor:
    """Return the spectra of a symmetric tensor with the entries `entry(i, j)`, from one batched transform.

    The entries are fields on the grid of products. An entry `None` stands for zero, and is not in the result.
    """
    pairs = itertools.combinations_with_replacement(range(ndim), 2)
    entries = {pair: value for pair in pairs if (value := entry(*pair)) is not None}
    slopes = tuple(() if i == j else (i, j) for i, j in entries)
    spectra = _vector.components(term.from_grid(_vector.stack(entries.values(), ndim), slopes), ndim)
    return dict(zip(entries, spectra))
