"""Chebyshev polynomials: the basis of fields between two walls with any values and slopes at the walls."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .._common.check import as_number, check_choice
from .base import AbstractBasis, DerivativeRule, Kind, Run
from .cosine import RealToReal


@dataclass(frozen=True)
class Chebyshev(AbstractBasis):
    """Chebyshev polynomials `T_k(1 - 2s) = cos(k θ)`, with `s = (1 - cos θ) / 2` on an axis of length one.

    | `Chebyshev(type)` | points on an axis of length one | θ | factor of the coefficients |
    |---|---|---|---|
    | 1 | Gauss–Lobatto, walls included: `(1 - cos θ) / 2` | `π j / (n - 1)` | n - 1 |
    | 2 | Gauss, between the walls: `(1 - cos θ) / 2` | `π (j + 1/2) / n` | n |

    The spectrum holds the coefficients `c_k` of the field `sum_k c_k T_k(1 - 2s)`, all multiplied by the factor in the
    table. If a transform has `norm="forward"`, the factor is 1/2.

    Derivatives are not diagonal: the derivative of a polynomial is a sum of several polynomials. The wavenumbers are
    therefore zero. Operators that solve equations between walls need the whole axis on each device: make it the first
    axis of the grid.

    **Arguments:**

    - `type`: 1 or 2.

    **Raises:** `ValueError` if `type` is neither 1 nor 2. A transform raises `ValueError` if an axis
    with type 1 has fewer than two points. It also raises `ValueError` if its `norm` is "ortho": an orthogonal matrix
    would not give the coefficients of the polynomials.

    **Source:** Trefethen, Approximation Theory and Approximation Practice (2013), chapters 2 to 4.
    """

    type: Literal[1, 2] = 1

    def __post_init__(self):
        object.__setattr__(self, "type", check_choice("type", as_number(self.type), (1, 2)))

    @property
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        return None, None

    @property
    def forward(self) -> RealToReal:
        # The first coefficient of a cosine transform is twice as large as the coefficient of the polynomial. With type
        # 1, so is the last coefficient. `after=-2` halves these coefficients.
        return RealToReal("dct", self.type, before=0, after=-2)

    @property
    def is_transformed(self) -> bool:
        return True

    @property
    def is_diagonal(self) -> bool:
        return False

    @property
    def has_walls(self) -> bool:
        return True

    def joined(self, last: AbstractBasis) -> RealToReal | None:
        return self.forward if self == last else None

    def orthogonalized(self) -> "Chebyshev":
        raise ValueError(
            f'`norm` must be "backward" or "forward" for the basis {self}; got "ortho". The coefficients of an '
            "orthogonal matrix are not the coefficients of Chebyshev polynomials."
        )

    def stored(self, n: int) -> int:
        if self.type == 1 and n < 2:
            raise ValueError(f"`Chebyshev(1)` needs at least 2 points along its axis; got {n}. Use `Chebyshev(2)`.")
        return n

    def points(self, n: int) -> np.ndarray:
        return np.sin(self._angles(n) / 2) ** 2  # This form of (1 - cos θ) / 2 is accurate near the wall at zero.

    def weights(self, n: int) -> np.ndarray:
        # The weight of a point is the mean of the polynomial that is one at this point and zero at all others. The
        # coefficients of these polynomials are cosines, so that one FFT computes all weights (Waldvogel 2006).
        k, means = np.arange(self.stored(n)), _means(n)
        if self.type == 1:
            weights = 2 * np.fft.irfft(means, 2 * (n - 1))[:n]
            weights[[0, -1]] /= 2
            return weights
        return 2 * np.fft.irfft(np.append(means * np.exp(0.5j * math.pi * k / n), 0), 2 * n)[:n]

    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        del nyquist
        return np.zeros(self.stored(n))

    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        """Return the weights in Parseval's theorem for the mean square over the angle θ, not over the volume.

        For the volume, see `overlaps`.

        A stored coefficient times `inverse_scale` is half the coefficient of the polynomial T_k. The mean of T_k² over
        the points is one half. There are two exceptions, whose mean is one: T_0 and, with type 1, the last of `n`
        polynomials.
        """
        counts = np.full(self.stored(kept), 2.0)
        counts[0] = 4
        if self.type == 1 and kept == n:
            counts[-1] = 4
        return counts

    def overlaps(self, kept: int) -> np.ndarray:
        # `T_j T_k` is the mean of `T_(j+k)` and `T_|j-k|`. A stored coefficient times `inverse_scale` is half the
        # coefficient of its polynomial.
        means = _means(2 * kept)
        j, k = np.indices((kept, kept))
        return 2 * (means[j + k] + means[abs(j - k)])

    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        del n, nyquist
        return (Run(0, 0, kept),)

    def points_below(self, n: int, fraction: float) -> int:
        # Products of polynomials alias in the same way as products of cosines of θ.
        below = math.ceil(fraction * (n - 1 if self.type == 1 else n))
        return min(n, max(2 if self.type == 1 else 1, below))

    def derivative(self, n: int, order: int) -> DerivativeRule:
        if order:
            raise ValueError(
                f"`order` must be 0 along an axis of {self}, where derivatives are not diagonal; got {order}. Use the "
                "operators for walls in `decompops.spectral`."
            )
        return DerivativeRule(self, n, 1.0, (Run(0, 0, self.stored(n)),))

    def _angles(self, n: int) -> np.ndarray:
        j = np.arange(self.stored(n))
        return math.pi * (j / (n - 1) if self.type == 1 else (j + 0.5) / n)


def _means(number: int) -> np.ndarray:
    """Return the means of the first polynomials over the axis: 1 / (1 - k²) for even k, and zero for odd k."""
    k = np.arange(number)
    return np.where(k % 2 == 0, 1 / (1.0 - np.where(k % 2 == 0, k, 0) ** 2), 0)
