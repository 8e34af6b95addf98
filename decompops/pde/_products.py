"""Products of fields, free of aliasing."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact, Shaped

from .._operator.transform import AbstractTransform, Wavenumbers
from .._remember import remembered
from ..spectral import _vector
from ..spectral._dealiasing import AbstractDealiasing, check_dealiasing
from ..spectral._modes import AbstractSpectral


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
        return _of_products(self.transform, self.dealiasing)

    def to_grid(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*field"]:
        """The fields of the spectra `u`, on the grid on which products are taken."""
        return self.products.inverse(self.masked(u))

    def from_grid(self, product: Shaped[Array, "*field"]) -> Inexact[Array, "*spectrum"]:
        """The modes that a state has, of products on that grid."""
        return self.masked(self.products(product))

    def masked(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """The modes of `u` that enter products. With `Mask` the others become zero; other rules keep all of `u`."""
        return u if self.dealiasing is None else self.dealiasing.masked(self.transform, u)


@remembered
def _of_products(transform: AbstractTransform, dealiasing: AbstractDealiasing | None) -> AbstractTransform:
    return transform if dealiasing is None else dealiasing.of_products(transform)


def velocity_and_vorticity(term: AbstractProducts, k: Wavenumbers, u: Array) -> tuple[_vector.Parts, _vector.Parts]:
    """The components of u and of its vorticity on the grid of products, transformed in one batched call."""
    ndim = len(k)
    rotation = _vector.rotation(k, u)
    spectra = jnp.concatenate([u, _vector.stack(rotation, ndim)], axis=-ndim - 1) if rotation else u
    parts = _vector.components(term.to_grid(spectra), ndim)
    return parts[:ndim], parts[ndim:]
