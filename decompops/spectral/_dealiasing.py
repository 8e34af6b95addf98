"""Dealiasing rules. A rule says which modes a state keeps, and which grid is used to multiply fields."""

import abc
import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact

from .._basis.base import AbstractBasis
from .._basis.chebyshev import Chebyshev
from .._common.broadcast import aligned
from .._operator.transform import AbstractTransform
from ._check import check_fft


class AbstractDealiasing(abc.ABC):
    """A rule against aliasing.

    A product of fields has modes that are too high for the grid; the grid shows them as lower modes. A *state* is the
    spectrum of the fields of an equation. Subclasses are frozen dataclasses. Arguments that take a rule accept `None`
    for no rule.
    """

    @abc.abstractmethod
    def of_states(self, fft: AbstractTransform) -> AbstractTransform:
        """Return the transform between fields on the grid of `fft` and states."""

    @abc.abstractmethod
    def of_products(self, fft: AbstractTransform) -> AbstractTransform:
        """Return the transform between states and fields on the grid that is used to multiply fields."""

    @abc.abstractmethod
    def masked(
        self, transform: AbstractTransform, spectrum: Inexact[Array, "*spectrum"]
    ) -> Inexact[Array, "*spectrum"]:
        """Return `spectrum` with zeros for the modes that products do not use.

        Equations call this method before they transform a spectrum to the grid of products, and after they transform
        products back.

        - `transform`: the transform of states.
        """


@dataclass(frozen=True)
class Truncate(AbstractDealiasing):
    """Keep only the modes below a fraction of the highest mode of the grid (Orszag, J. Atmos. Sci. 28, 1971).

    With 2/3, products of two fields alias only onto modes that are not kept. With 1/2, the same holds for products of
    three fields. Modes that are not kept are neither computed nor communicated.

    **Arguments:**

    - `fraction`: more than 0 and at most 1.
    """

    fraction: float | int = 2 / 3

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
    """Keep all modes, and multiply fields on a finer grid: the 3/2 rule.

    Along each axis, the finer grid has at least `factor` times as many points as there are modes. With 3/2, products of
    two fields are free of aliasing. With 2, the same holds for products of three fields. States are scaled with
    `norm="forward"`, so that their values do not depend on the grid.

    **Arguments:**

    - `factor`: a finite number of at least 1.
    """

    factor: float | int = 3 / 2

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
    """Keep all modes in states, but use only low modes in products.

    Products use the integer wavenumbers |k| ≤ `fraction * (n // 2) - 1` along each axis of n points, as in exponax, and
    always the mean. Between walls, k counts whole waves: it is m / 2 for the cosine or sine of m half waves, and for
    the Chebyshev polynomial T_m.

    **Arguments:**

    - `fraction`: more than 0 and at most 1.
    """

    fraction: float | int = 2 / 3

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
        along = tuple(zip(transform.bases, check_fft(transform), transform.modes or check_fft(transform)))
        limits = (max(0, self.fraction * (n // 2) - 1) for _, n, _ in along)  # The mean is always kept.
        kept = [_waves(basis, m) <= limit + 1e-9 for (basis, _, m), limit in zip(along, limits)]
        mask = transform.separable([one.astype(float) for one in kept], dtype=jnp.finfo(spectrum.dtype).dtype)
        return jnp.where(aligned(mask > 0, spectrum), spectrum, 0)


def _waves(basis: AbstractBasis, n: int) -> np.ndarray:
    """Return how many waves each mode has along an axis. The polynomial T_k has as many as `cos(k θ)`: k / 2."""
    return np.arange(basis.stored(n)) / 2 if isinstance(basis, Chebyshev) else abs(basis.wavenumbers(n)) / (2 * np.pi)


def check_dealiasing(name: str, value: Any) -> AbstractDealiasing | None:
    """Return `value`. Raise `TypeError` if it is neither a rule nor `None`."""
    if value is not None and not isinstance(value, AbstractDealiasing):
        rules = "`spectral.Truncate(2/3)`, `spectral.Pad(3/2)`, `spectral.Mask(2/3)` or None"
        raise TypeError(f"`{name}` must be {rules}; got {value!r}.")
    return value


def _check_fraction(fraction: Any) -> None:
    if not (isinstance(fraction, float | int) and 0 < fraction <= 1):
        raise ValueError(f"`fraction` must be more than 0 and at most 1; got {fraction!r}.")
