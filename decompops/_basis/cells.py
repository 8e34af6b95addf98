"""Cells: the basis of an axis of finite volumes, which is carried along and not transformed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._check import check_count, check_number
from .base import AbstractBasis, DerivativeRule, Kind, Run
from .points import Identity


@dataclass(frozen=True, init=False, repr=False)
class Cells(AbstractBasis):
    """The means over cells of any widths between two walls, for an axis of finite volumes. Nothing is transformed.

    The points are the centres of the cells, halfway between their faces; the weights are their widths. The operators
    that solve equations on cells need the axis whole on each device: make it the first axis of the grid.

    !!! example

        ```python
        bases = (dops.Cells.clustered(96, 2.0), dops.Fourier(), dops.Fourier(half=True))
        transform = dops.Transform(mesh, shape=(96, 128, 128), bases=bases)  # a channel between two walls along x
        ```
    """

    faces: tuple[float, ...]

    def __init__(self, faces: Sequence[float | int] | np.ndarray):
        """**Arguments:**

        - `faces`: the positions of the faces on an axis of length one, the walls included: one more than cells,
            increasing from 0 to 1.

        **Raises:** `ValueError` for positions that do not increase from 0 to 1.
        """
        try:
            positions = np.asarray(faces, np.float64)
        except (TypeError, ValueError):
            positions = np.zeros(0)
        ends = positions[[0, -1]] if positions.ndim == 1 and len(positions) > 1 else np.full(2, math.nan)
        if not (np.allclose(ends, (0, 1), rtol=0, atol=1e-12) and np.all(np.diff(positions) > 0)):
            raise ValueError(f"`faces` must be two or more positions that increase from 0 to 1; got {faces!r}.")
        object.__setattr__(self, "faces", (0.0, *positions[1:-1].tolist(), 1.0))

    @staticmethod
    def clustered(n: int, factor: float) -> "Cells":
        """`n` cells whose faces `(1 + tanh(factor (2 i / n - 1)) / tanh(factor)) / 2` lie closer towards both walls.

        **Arguments:**

        - `n`: the number of cells.
        - `factor`: a positive number. The cells in the middle are about `cosh(factor)²` times as wide as those at the
            walls; usual are 1.5 to 3.

        **Raises:** `ValueError` for `n` below one, and a `factor` that is not positive.
        """
        check_count("n", n)
        if not check_number("factor", factor) > 0:
            raise ValueError(f"`factor` must be positive; got {factor!r}.")
        return Cells((1 + np.tanh(factor * np.linspace(-1, 1, n + 1)) / math.tanh(factor)) / 2)

    @property
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        return None, None

    @property
    def is_transformed(self) -> bool:
        return False

    @property
    def is_diagonal(self) -> bool:
        return False

    @property
    def forward(self) -> Identity:
        return Identity()

    def joined(self, last: AbstractBasis) -> None:
        del last

    def orthogonalized(self) -> "Cells":
        return self

    def stored(self, n: int) -> int:
        cells = len(self.faces) - 1
        if n != cells:
            raise ValueError(
                f"`shape` must be {cells} along the axis of {self}, and be given to the transform; got {n}."
            )
        return n

    def points(self, n: int) -> np.ndarray:
        self.stored(n)
        faces = np.array(self.faces)
        return (faces[1:] + faces[:-1]) / 2

    def weights(self, n: int) -> np.ndarray:
        self.stored(n)
        return np.diff(self.faces)

    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        del nyquist
        return np.zeros(self.stored(n))

    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        """One for each cell, as for points: in these sums all cells count alike, whatever their widths."""
        del n
        return np.ones(self.stored(kept))

    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        del nyquist
        if kept != n:
            raise ValueError(f"`modes` must be {n} along an axis of `Cells`, which has no modes; got {kept}.")
        return (Run(0, 0, self.stored(n)),)

    def points_below(self, n: int, fraction: float) -> int:
        del fraction
        return n

    def derivative(self, n: int, order: int) -> DerivativeRule:
        if order:
            raise ValueError(
                f"`order` must be 0 along an axis of `Cells`, which is not transformed; got {order}. Use the operators "
                "of `decompops.spectral` that are made for cells."
            )
        return DerivativeRule(self, n, 1.0, (Run(0, 0, self.stored(n)),))

    def __repr__(self) -> str:
        widths = np.diff(self.faces)
        return f"Cells({len(widths)} of widths {widths.min():.3g} to {widths.max():.3g})"
