"""Cosines and sines: the bases of fields between two walls. The transforms are `scipy.fft.dct` and `scipy.fft.dst`."""

import abc
import math
from dataclasses import dataclass, replace
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._common.check import as_number, check_choice, check_flag
from . import real_to_real, short_lines
from .base import AbstractBasis, AbstractLineTransform, DerivativeRule, Kind, Run
from .fourier import spectral_dtype


Family = Literal["dct", "dst"]
Type = Literal[1, 2, 3, 4]

# The indices of the end cells of the input and of the output of each transform. An inner cell represents two
# exponentials of a periodic field, whose exponents have opposite signs. An end cell is its own mirror image, and
# represents one exponential.
_ENDS: dict[tuple[Family, Type], tuple[tuple[int, ...], tuple[int, ...]]] = {
    ("dct", 1): ((0, -1), (0, -1)),
    ("dct", 2): ((), (0,)),
    ("dct", 3): ((0,), ()),
    ("dct", 4): ((), ()),
    ("dst", 1): ((), ()),
    ("dst", 2): ((), (-1,)),
    ("dst", 3): ((-1,), ()),
    ("dst", 4): ((), ()),
}
_INVERSE: dict[Type, Type] = {1: 1, 2: 3, 3: 2, 4: 4}


def _half_period(kind: Family, type: Type, n: int) -> int:
    """Return half the period, in cells, with which a line of `n` points is continued beyond its walls.

    Raises `ValueError` for a cosine transform of type 1 with a single point.
    """
    if type != 1:
        return n
    if kind == "dct" and n < 2:
        raise ValueError(f"`Cosine(1)` needs at least 2 points along its axis; got {n}. Use `Cosine(2)`.")
    return n - 1 if kind == "dct" else n + 1


def _weights(ends: tuple[int, ...], n: int, weight: float) -> np.ndarray:
    """Return weights of `n` cells: `weight` for the end cells, 1 for all others."""
    weights = np.ones(n)
    weights[list(ends)] = weight
    return weights


def _cosines(angles: np.ndarray, half: int) -> np.ndarray:
    """Return the cosines of `angles`, which are integers in units of π / `half`. `half` is a multiple of 4.

    All angles are first reduced to at most an eighth of a turn, so that the cosines have full accuracy.
    """
    angles = angles % (2 * half)
    angles = np.minimum(angles, 2 * half - angles)
    sign, angles = np.where(2 * angles > half, -1, 1), np.minimum(angles, half - angles)
    turned = math.pi * np.minimum(angles, half // 2 - angles) / half
    return sign * np.where(4 * angles > half, np.sin(turned), np.cos(turned))


@dataclass(frozen=True)
class RealToReal(AbstractLineTransform):
    """An unnormalised `scipy.fft.dct` or `scipy.fft.dst`. Complex lines are transformed like two real lines.

    The transform first multiplies the end cells of the input by `2**(before / 2)`, and finally the end cells of the
    output by `2**(after / 2)`. For example, let D be `diag(2, 1, ..., 1)`, with 2 for the end cell. Then the transpose
    of DCT-II is DCT-III times D, and the orthogonal DCT-II is `D**(-1/2)` times DCT-II. Transforms without end cells
    ignore both options.
    """

    kind: Family
    type: Type
    before: int = 0
    after: int = 0

    def __post_init__(self):
        if (self.kind, self.type) not in _ENDS:
            raise ValueError(f'`RealToReal` must be of kind "dct" or "dst" and of a type from 1 to 4; got {self}.')

    @property
    def to_points(self) -> bool:
        # Either answer would be right, because points and coefficients have the same number of cells. A transform "to
        # points" is scaled before its FFT. Type 3 multiplies its input before the FFT anyway, so the scale costs
        # nothing.
        return self.type == 3

    @property
    def multiplies(self) -> bool:
        return self.type != 1

    def weights(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors of the input cells and of the output cells, for a transform of `n` points."""
        first, last = _ENDS[self.kind, self.type]
        return _weights(first, n, 2 ** (self.before / 2)), _weights(last, n, 2 ** (self.after / 2))

    def matrix(self, n: int) -> np.ndarray:
        """Return the matrix of a transform of `n` points, of shape `(n, n)`."""
        first, every = int(self.kind == "dst"), np.arange(n)
        cells = 2 * (every + first) if self.type in (1, 3) else 2 * every + 1
        modes = 2 * (every + first) if self.type in (1, 2) else 2 * every + 1
        half = 4 * _half_period(self.kind, self.type, n)  # half a turn
        waves = _cosines(np.outer(modes, cells) - (half // 2 if self.kind == "dst" else 0), half)
        early, late = self.weights(n)
        return late[:, None] * 2 * waves * early * _weights(_ENDS[self.kind, self.type][0], n, 0.5)

    def transpose(self) -> "RealToReal":
        # Without the weights, and without the factor 2 in the columns of inner cells, the matrices of types 1 and 4
        # are symmetric, and the matrix of type 2 is the transpose of the matrix of type 3.
        type = _INVERSE[self.type]
        first, last = _ENDS[self.kind, type]
        return replace(self, type=type, before=self.after + (2 if first else 0), after=self.before - (2 if last else 0))

    def conjugate(self) -> "RealToReal":
        return self

    def inverse(self) -> "RealToReal":
        return replace(self, type=_INVERSE[self.type], before=-self.after, after=-self.before)

    def inverse_scale(self, points: tuple[int, ...]) -> float:
        return 1 / math.prod(2 * _half_period(self.kind, self.type, n) for n in points)

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        spectral = spectral_dtype(dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.zeros(()).dtype)
        return spectral if jnp.issubdtype(dtype, jnp.complexfloating) else np.finfo(spectral).dtype

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        return dtype

    def apply(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        longest = short_lines.LONGEST[self.type]
        for axis, n in zip(axes, points):
            if n <= longest:
                block = short_lines.transformed(self.matrix(n), self.type, block, axis)
        long = {axis: self.weights(n) for axis, n in zip(axes, points) if n > longest}
        return real_to_real.apply(self.kind, self.type, tuple(long.values()), block, tuple(long))


@dataclass(frozen=True)
class AbstractSeries(AbstractBasis):
    """A series of cosines or sines on an axis between two walls."""

    type: Type
    orthogonal: bool = False

    def __post_init__(self):
        object.__setattr__(self, "type", check_choice("type", as_number(self.type), _INVERSE))
        check_flag("orthogonal", self.orthogonal)

    @property
    @abc.abstractmethod
    def kind(self) -> Family:
        """The transform to coefficients: "dct" or "dst"."""

    @property
    @abc.abstractmethod
    def _first(self) -> int:
        """The index of the first point (types 1 and 3) and of the first mode (types 1 and 2)."""

    @property
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        return None, None

    @property
    def is_transformed(self) -> bool:
        return True

    @property
    def is_diagonal(self) -> bool:
        return True

    @property
    def has_walls(self) -> bool:
        return True

    @property
    def _ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The end cells of the points and of the coefficients."""
        return _ENDS[self.kind, self.type]

    @property
    def forward(self) -> RealToReal:
        points, coefficients = self._ends
        weighted = self.orthogonal
        return RealToReal(self.kind, self.type, int(weighted and bool(points)), -int(weighted and bool(coefficients)))

    def joined(self, last: AbstractBasis) -> RealToReal | None:
        return self.forward if self == last else None

    def orthogonalized(self) -> "AbstractSeries":
        return replace(self, orthogonal=True)

    def stored(self, n: int) -> int:
        _half_period(self.kind, self.type, n)
        return n

    def points(self, n: int) -> np.ndarray:
        first = self._first if self.type in (1, 3) else 0.5
        return (np.arange(n) + first) / _half_period(self.kind, self.type, n)

    def edges(self, n: int) -> np.ndarray:
        """Return the bounds of equal cells around the points, cut off at the walls."""
        width = 1 / _half_period(self.kind, self.type, n)
        return (self.points(n)[0] + width * (np.arange(n + 1) - 0.5)).clip(0, 1)

    def weights(self, n: int) -> np.ndarray:
        """Return the weights of the midpoint rule for types 2 and 4, and of the trapezoidal rule for types 1 and 3.

        A point on a wall has half the weight of other points. Both rules are exact for the cosines `cos(π k s)`, and of
        second order for other functions.
        """
        s = self.points(n)
        width = 1 / _half_period(self.kind, self.type, n)
        on_wall = np.minimum(s, 1 - s) < width / 4  # For types 2 and 4, the walls are half a width away.
        return np.where(on_wall, 0.5, 1) * width

    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        first = self._first if self.type in (1, 2) else 0.5
        wavenumbers = math.pi * (np.arange(self.stored(n)) + first)
        if -1 in self._ends[1] and not nyquist:
            wavenumbers[-1] = 0
        return wavenumbers

    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        del n
        return 2 * _weights(self._ends[1], self.stored(kept), 1.0 if self.orthogonal else 0.5)

    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        if -1 not in self._ends[1] or kept == n:
            return (Run(0, 0, kept),)
        runs = (Run(0, 0, kept - 1),) if kept > 1 else ()
        if nyquist:  # The last kept mode represents two exponentials on the finer grid, and one on the coarser grid.
            runs += (Run(kept - 1, kept - 1, 1, math.sqrt(2) if self.orthogonal else 2.0),)
        return runs

    def points_below(self, n: int, fraction: float) -> int:
        highest = fraction * math.pi * _half_period(self.kind, self.type, n)
        below = int(np.sum(self.wavenumbers(n) < highest))
        # If the last mode of the coarser grid is an end cell, truncation sets it to zero, so one more point is kept.
        return min(n, max(1, below) + (1 if -1 in self._ends[1] else 0))

    def _check_derivative(self, order: int) -> None:
        if self.orthogonal and order and self._ends[0]:
            raise ValueError(
                f"a derivative needs the unweighted series of a field, but {self} multiplies the field by √2 at a "
                f'wall; use `{type(self).__name__}({self.type})`, or a `norm` other than "ortho".'
            )


@dataclass(frozen=True)
class Cosine(AbstractSeries):
    """Cosines, for fields with zero slope at the first wall. The coefficients equal the result of `scipy.fft.dct`.

    | `Cosine(type)` | points on an axis of length one | modes | at the second wall |
    |---|---|---|---|
    | 1 | `j / (n - 1)` | `cos(π k s)` | zero slope |
    | 2 | `(j + 1/2) / n` | `cos(π k s)` | zero slope |
    | 3 | `j / n` | `cos(π (k + 1/2) s)` | zero |
    | 4 | `(j + 1/2) / n` | `cos(π (k + 1/2) s)` | zero |

    **Arguments:**

    - `type`: 1, 2, 3 or 4.
    - `orthogonal`: give the first and last points and coefficients the same weights as `scipy.fft.dct(norm="ortho")`,
        so that the matrix is a number times an orthogonal matrix. A transform with `norm="ortho"` sets this option
        itself.

    **Raises:** `ValueError` if `type` is not 1, 2, 3 or 4. With type 1, methods raise `ValueError` if `n` is below two.
    """

    @property
    def kind(self) -> Family:
        return "dct"

    @property
    def _first(self) -> int:
        return 0

    def derivative(self, n: int, order: int) -> DerivativeRule:
        self._check_derivative(order)
        if order % 2 == 0:
            return DerivativeRule(self, self.stored(n), (-1.0) ** (order // 2), (Run(0, 0, n),))
        points = n - 2 if self.type == 1 else self.stored(n)
        if points < 1:
            raise ValueError(f"an odd derivative in the basis {self} needs at least 3 points; got {n}.")
        sign, first = (-1.0) ** ((order + 1) // 2), 1 if self.type in (1, 3) else 0
        return DerivativeRule(Sine(self.type), points, sign, _shared(self.type, n, points, 1, 0), first)


@dataclass(frozen=True)
class Sine(AbstractSeries):
    """Sines, for fields that are zero at the first wall. The coefficients equal the result of `scipy.fft.dst`.

    | `Sine(type)` | points on an axis of length one | modes | at the second wall |
    |---|---|---|---|
    | 1 | `(j + 1) / (n + 1)` | `sin(π (k + 1) s)` | zero |
    | 2 | `(j + 1/2) / n` | `sin(π (k + 1) s)` | zero |
    | 3 | `(j + 1) / n` | `sin(π (k + 1/2) s)` | zero slope |
    | 4 | `(j + 1/2) / n` | `sin(π (k + 1/2) s)` | zero slope |

    **Arguments:**

    - `type`: 1, 2, 3 or 4.
    - `orthogonal`: give the first and last points and coefficients the same weights as `scipy.fft.dst(norm="ortho")`,
        so that the matrix is a number times an orthogonal matrix. A transform with `norm="ortho"` sets this option
        itself.

    **Raises:** `ValueError` if `type` is not 1, 2, 3 or 4.
    """

    @property
    def kind(self) -> Family:
        return "dst"

    @property
    def _first(self) -> int:
        return 1

    def derivative(self, n: int, order: int) -> DerivativeRule:
        self._check_derivative(order)
        sign = (-1.0) ** (order // 2)
        if order % 2 == 0:
            return DerivativeRule(self, n, sign, (Run(0, 0, n),))
        points, first = n + 2 if self.type == 1 else n, -1 if self.type in (1, 3) else 0
        return DerivativeRule(Cosine(self.type), points, sign, _shared(self.type, n, points, 0, 1), first)


def _shared(type: Type, n: int, points: int, source: int, target: int) -> tuple[Run, ...]:
    """Return the runs that copy the modes that cosines and sines have in common.

    The field has `n` points, and its derivative has `points` points. Sines have no mode zero. The last mode of one
    family may be zero at all points of the other family, and then has no counterpart there.
    """
    if type in (3, 4):
        return (Run(0, 0, n),)
    length = min(n, points) - (1 if type == 2 else 0)
    return (Run(source, target, length),) if length else ()
