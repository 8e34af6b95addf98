"""Points: the basis of an axis that is not transformed."""

from dataclasses import dataclass

import numpy as np
from jax import Array

from .base import AbstractBasis, AbstractLineTransform, DerivativeRule, Kind, Run


@dataclass(frozen=True)
class Points(AbstractBasis):
    """The values at the points, for a grid axis that is not transformed."""

    @property
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        return None, None

    @property
    def is_transformed(self) -> bool:
        return False

    @property
    def is_diagonal(self) -> bool:
        return True

    @property
    def forward(self) -> "Identity":
        return Identity()

    def joined(self, last: AbstractBasis) -> None:
        del last

    def orthogonalized(self) -> "Points":
        return self

    def stored(self, n: int) -> int:
        return n

    def points(self, n: int) -> np.ndarray:
        return np.arange(n) / n

    def weights(self, n: int) -> np.ndarray:
        return np.full(n, 1 / n)

    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        del nyquist
        return np.zeros(n)

    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        del n
        return np.ones(kept)

    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        del nyquist
        if kept != n:
            raise ValueError(f"`modes` must be {n} along an axis of `Points()`, which has no modes; got {kept}.")
        return (Run(0, 0, n),)

    def points_below(self, n: int, fraction: float) -> int:
        del fraction
        return n

    def derivative(self, n: int, order: int) -> DerivativeRule:
        if order:
            raise ValueError(f"`order` must be 0 along an axis of `Points()`, which is not transformed; got {order}.")
        return DerivativeRule(self, n, 1.0, (Run(0, 0, n),))


@dataclass(frozen=True)
class Identity(AbstractLineTransform):
    """The transform that changes nothing."""

    @property
    def to_points(self) -> bool:
        return False

    def transpose(self) -> "Identity":
        return self

    def conjugate(self) -> "Identity":
        return self

    def inverse(self) -> "Identity":
        return self

    def inverse_scale(self, points: tuple[int, ...]) -> float:
        del points
        return 1.0

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        return dtype

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        return dtype

    def apply(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        del axes, points
        return block
