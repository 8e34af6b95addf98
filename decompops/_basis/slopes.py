"""Slopes: the basis of first derivatives, in which each mode has the same index as in the basis of the field."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from .base import AbstractBasis, AbstractLineTransform, DerivativeRule, Kind, Run


@dataclass(frozen=True)
class Slopes(AbstractBasis):
    """The basis of first derivatives along one axis, for fields in the basis `base`.

    For example, the first derivatives of cosines are sines.

    Each mode has the same index as in `base`, so that a derivative multiplies coefficients without moving any. Two
    things are left out: modes that `base` does not have, and points at which all slopes are zero.

    - `base`: the basis of the fields.
    - `slope`: the basis in which the first derivatives of these fields are expanded.
    """

    base: AbstractBasis
    slope: AbstractBasis

    @property
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        return self.slope.kinds

    @property
    def forward(self) -> AbstractLineTransform:
        return self.slope.forward

    @property
    def is_transformed(self) -> bool:
        return True

    @property
    def is_diagonal(self) -> bool:
        return self.base.is_diagonal

    @property
    def has_walls(self) -> bool:
        return self.base.has_walls

    def joined(self, last: AbstractBasis) -> AbstractLineTransform | None:
        return self.slope.joined(last.slope if isinstance(last, Slopes) else last)

    def orthogonalized(self) -> "Slopes":
        raise ValueError(
            f'`norm` must be "backward" or "forward" for slopes of fields in the basis {self.base}; got "ortho".'
        )

    def transformed_points(self, n: int) -> tuple[int, tuple[Run, ...]]:
        rule = self.base.derivative(n, 1)
        first, past = max(rule.first, 0), min(rule.first + rule.points, n)
        return rule.points, (Run(first, first - rule.first, past - first),)

    def computed(self, n: int) -> int:
        return self.slope.stored(self.base.derivative(n, 1).points)

    def inverse_scale(self, n: int) -> float:
        return self.base.inverse_scale(n)

    def stored(self, n: int) -> int:
        return self.base.stored(n)

    def points(self, n: int) -> np.ndarray:
        return self.base.points(n)

    def weights(self, n: int) -> np.ndarray:
        return self.base.weights(n)

    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        return self.base.wavenumbers(n, nyquist=nyquist)

    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        return self.base.multiplicity(n, kept)

    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        places = np.full(self.base.stored(n), -1)  # For each mode of `base`, its index in `slope`, or -1.
        for run in self.base.derivative(n, 1).runs:
            places[run.source : run.source + run.length] = np.arange(run.target, run.target + run.length)
        pairs = [
            (int(places[run.source + i]), run.target + i)
            for run in self.base.truncation(n, kept, nyquist=False)
            for i in range(run.length)
        ]
        found = sorted((pair for pair in pairs if pair[0] >= 0), key=lambda pair: pair[1])
        del nyquist  # The slope of a Nyquist mode cannot be computed.
        return _runs(found)

    def points_below(self, n: int, fraction: float) -> int:
        return self.base.points_below(n, fraction)

    def derivative(self, n: int, order: int) -> DerivativeRule:
        first, both = self.base.derivative(n, 1), self.base.derivative(n, order + 1)
        basis = self.base if order % 2 else self
        return DerivativeRule(basis, n, both.factor / first.factor, (Run(0, 0, self.stored(n)),))


def slope_basis(base: AbstractBasis, n: int) -> AbstractBasis:
    """Return the basis of first derivatives on `n` points: `base` itself if modes and points stay the same."""
    rule = base.derivative(n, 1)
    same = rule.basis == base and rule.points == n and rule.runs == (Run(0, 0, base.stored(n)),)
    return base if same else Slopes(base, rule.basis)


def slope_unit(base: AbstractBasis, n: int) -> complex:
    """Return the factor ±1 or ±i: a first derivative multiplies each coefficient by this factor and its wavenumber."""
    return complex(base.derivative(n, 1).factor)


def _runs(pairs: list[tuple[int, int]]) -> tuple[Run, ...]:
    """Combine pairs of a source and a target, sorted by target, into runs of consecutive pairs."""
    runs = []
    for _, group in groupby(enumerate(pairs), lambda item: (item[1][0] - item[0], item[1][1] - item[0])):
        members = [pair for _, pair in group]
        runs.append(Run(*members[0], len(members)))
    return tuple(runs)
