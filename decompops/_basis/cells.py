"""Cells: the basis of a finite-volume axis, which is not transformed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._common.check import check_count, check_number
from .._common.host import check_mask
from .base import AbstractBasis, DerivativeRule, Kind, Run
from .points import Identity


@dataclass(frozen=True, init=False, repr=False)
class Cells(AbstractBasis):
    """Means over cells of any widths between two walls, for a finite-volume axis. The axis is not transformed.

    The points are the centres of the cells, halfway between their faces. The weights are the widths of the cells.
    Operators that solve equations on cells need the whole axis on each device: make it the first axis of the grid.

    !!! example

        ```python
        bases = (dops.Cells.clustered(96, 2.0), dops.Fourier(), dops.Fourier(half=True))
        transform = dops.Transform(mesh, shape=(96, 128, 128), bases=bases)  # a channel between two walls along x
        ```
    """

    faces: tuple[float, ...]

    def __init__(self, faces: Sequence[float | int] | np.ndarray):
        """**Arguments:**

        - `faces`: the positions of the faces on an axis of length one, both walls included. `n` cells have `n + 1`
            faces, at positions that increase from 0 to 1.

        **Raises:** `ValueError` if the positions do not increase from 0 to 1.
        """
        check_mask(faces, "faces")
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
        """Return `n` cells that become narrower towards both walls.

        The faces are at `(1 + tanh(factor (2 i / n - 1)) / tanh(factor)) / 2`.

        **Arguments:**

        - `n`: the number of cells.
        - `factor`: a positive number, usually 1.5 to 3. The cells in the middle are about `cosh(factor)²` times as wide
            as the cells at the walls.

        **Raises:** `ValueError` if `n` is below one, or if `factor` is not positive.
        """
        check_count("n", n)
        if not (factor := float(check_number("factor", factor))) > 0:
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
    def has_walls(self) -> bool:
        return True

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
                f"`shape` must be {cells} along the axis of {self}; got {n}. Pass `shape` to the transform."
            )
        return n

    def points(self, n: int) -> np.ndarray:
        self.stored(n)
        faces = np.array(self.faces)
        return (faces[1:] + faces[:-1]) / 2

    def edges(self, n: int) -> np.ndarray:
        """Return the faces of the cells."""
        self.stored(n)
        return np.array(self.faces)

    def weights(self, n: int) -> np.ndarray:
        self.stored(n)
        return np.diff(self.faces)

    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        del nyquist
        return np.zeros(self.stored(n))

    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        """Return ones: in sums with these weights, wide and narrow cells count the same."""
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
                "for cells in `decompops.spectral`."
            )
        return DerivativeRule(self, n, 1.0, (Run(0, 0, self.stored(n)),))

    def __repr__(self) -> str:
        widths = np.diff(self.faces)
        return f"Cells({len(widths)} of widths {widths.min():.3g} to {widths.max():.3g})"
