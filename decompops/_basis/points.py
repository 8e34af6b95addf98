"""The values at the points themselves: the basis of an axis that is carried along."""

from dataclasses import dataclass

import numpy as np

from .base import AbstractBasis, Kind, Run


@dataclass(frozen=True)
class Points(AbstractBasis):
    """The values at the points themselves, for an axis that is carried along and not transformed."""

    @property
    def is_transformed(self) -> bool:
        return False

    @property
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        return None, None

    @property
    def forward(self):
        raise ValueError("`Points` has no transform.")

    def joined(self, last: AbstractBasis) -> None:
        return None

    def stored(self, n: int) -> int:
        return n

    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        return np.zeros(n)

    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        return np.ones(kept)

    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        raise ValueError("points are kept")

    def derivative(self, order: int) -> complex:
        raise ValueError("no")

    def orthogonalized(self):
        return self
