"""Dealiasing: which modes a state keeps, and on which grid products of fields are taken."""

import abc
import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._box import Box
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft


class AbstractDealiasing(abc.ABC):
    """A rule against aliasing: products of fields have modes beyond those of their grid, which show up as others.

    Subclasses are frozen dataclasses. `None` in their place is no rule.
    """

    @abc.abstractmethod
    def of_states(self, fft: AbstractTransform) -> AbstractTransform:
        """The transform between fields on the grid of `fft` and states."""

    @abc.abstractmethod
    def of_products(self, fft: AbstractTransform) -> AbstractTransform:
        """The transform between states and the grid on which products are taken."""

    @abc.abstractmethod
    def masked(
        self, transform: AbstractTransform, spectrum: Inexact[Array, "*spectrum"]
    ) -> Inexact[Array, "*spectrum"]:
        """`spectrum` before it goes to the grid of products, and after it comes from there; `transform` is that of
        states."""


@dataclass(frozen=True)
class Truncate(AbstractDealiasing):
    """Keep only the modes below a fraction of the highest mode of the grid (Orszag, J. Atmos. Sci. 28, 1971).

    With 2/3, products of two fields alias only onto modes that are not kept; with 1/2, products of three. What is not
    kept is neither computed nor sent.

    **Arguments:**

    - `fraction`: more than 0 and at most 1.
    """

    fraction: float = 2 / 3

    def __post_init__(self):
        _check_fraction(self.fraction)

    def of_states(self, fft: AbstractTransform) -> AbstractTransform:
        shape = check_fft(fft)
        kept = (basis.points_below(n, self.fraction) for basis, n in zip(fft.bases, shape))
        return fft.replace(modes=tuple(map(min, kept, fft.modes or shape)))

    def of_products(self, fft: AbstractTransform) -> AbstractTransform:
        return self.of_states(fft)

    def masked(
        self, transform: AbstractTransform, spectrum: Inexact[Array, "*spectrum"]
    ) -> Inexact[Array, "*spectrum"]:
        del transform
        return spectrum


@dataclass(frozen=True)
class Pad(AbstractDealiasing):
    """Keep all modes, and take products on a finer grid of at least `factor` times as many points.

    With 3/2, products of two fields are free of aliasing; with 2, products of three. States are scaled as with
    `norm="forward"`, which does not depend on the grid.

    **Arguments:**

    - `factor`: at least 1.
    """

    factor: float = 3 / 2

    def __post_init__(self):
        if not (isinstance(self.factor, float | int) and 1 <= self.factor < math.inf):
            raise ValueError(f"`factor` must be a finite number of at least 1; got {self.factor!r}.")

    def of_states(self, fft: AbstractTransform) -> AbstractTransform:
        return fft.replace(norm="forward")

    def of_products(self, fft: AbstractTransform) -> AbstractTransform:
        shape, transformed = check_fft(fft), fft.transformed
        modes = fft.modes or shape
        finer = (max(n, math.ceil(self.factor * m - 1e-9)) for m, n in zip(modes, shape))
        grid = tuple(n if axis in transformed else shape[axis] for axis, n in enumerate(finer))
        return fft.replace(shape=grid, modes=modes, norm="forward")

    def masked(
        self, transform: AbstractTransform, spectrum: Inexact[Array, "*spectrum"]
    ) -> Inexact[Array, "*spectrum"]:
        del transform
        return spectrum


@dataclass(frozen=True)
class Mask(AbstractDealiasing):
    """Keep all modes in states, but only those up to a fraction of the highest, less one, in products.

    It is what exponax does: the integer wavenumbers |k| ≤ `fraction * (n // 2) - 1` along each axis of n points.

    **Arguments:**

    - `fraction`: more than 0 and at most 1.
    """

    fraction: float = 2 / 3

    def __post_init__(self):
        _check_fraction(self.fraction)

    def of_states(self, fft: AbstractTransform) -> AbstractTransform:
        check_fft(fft)
        return fft

    def of_products(self, fft: AbstractTransform) -> AbstractTransform:
        return self.of_states(fft)

    def masked(
        self, transform: AbstractTransform, spectrum: Inexact[Array, "*spectrum"]
    ) -> Inexact[Array, "*spectrum"]:
        numbers = transform.wavenumbers(box=Box(2 * math.pi), dtype=jnp.finfo(spectrum.dtype).dtype)
        factor = jnp.ones((), spectrum.real.dtype)
        for k, n in zip(numbers, check_fft(transform)):
            factor = factor * (jnp.abs(k) <= self.fraction * (n // 2) - 1)
        return _vector.times(factor, spectrum)


def check_dealiasing(name: str, value: Any) -> AbstractDealiasing | None:
    """`value`, after a check that it is a rule or `None`."""
    if value is not None and not isinstance(value, AbstractDealiasing):
        raise TypeError(f"`{name}` must be `Truncate(2/3)`, `Pad(3/2)`, `Mask(2/3)` or None; got {value!r}.")
    return value


def _check_fraction(fraction: Any) -> None:
    if not (isinstance(fraction, float | int) and 0 < fraction <= 1):
        raise ValueError(f"`fraction` must be more than 0 and at most 1; got {fraction!r}.")
