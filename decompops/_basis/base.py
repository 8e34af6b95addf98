"""What a basis is: the functions that a field is expanded in along one axis of the grid.

Whatever belongs to one family of functions, such as Fourier modes or cosines, stands in one file of this folder: which
coefficients are stored, their wavenumbers and weights, how a shorter expansion follows from a longer one, and the
transforms between points and coefficients.
"""

import abc
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jax import Array


# What an array may hold: real numbers only, or complex ones.
Kind = Literal["real", "complex"]


@dataclass(frozen=True)
class Run:
    """`length` consecutive coefficients along one axis: from index `source` on to index `target` on, times `factor`.

    With `real`, their imaginary parts become zero.
    """

    source: int
    target: int
    length: int
    factor: float = 1.0
    real: bool = False


class AbstractLineTransform(abc.ABC):
    """A linear map of the lines of a block along some of its axes, all of which are whole: plain, hashable data.

    Subclasses are frozen dataclasses. Nothing is normalised: what the inverse lacks is `inverse_scale`.
    """

    @property
    @abc.abstractmethod
    def to_points(self) -> bool:
        """Whether the result has as many cells as the grid has points, rather than the input."""

    @property
    def multiplies(self) -> bool:
        """Whether `apply` multiplies each coefficient anyway, so that one more factor costs nothing."""
        return False

    @abc.abstractmethod
    def transpose(self) -> "AbstractLineTransform":
        """The transpose, without complex conjugation."""

    @abc.abstractmethod
    def conjugate(self) -> "AbstractLineTransform":
        """The map whose matrix is the complex conjugate."""

    @abc.abstractmethod
    def inverse(self) -> "AbstractLineTransform":
        """The inverse up to the factor `inverse_scale`."""

    @abc.abstractmethod
    def inverse_scale(self, points: tuple[int, ...]) -> float:
        """What `inverse()` must be multiplied by to be the inverse, on axes of that many points."""

    @abc.abstractmethod
    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype that an input of `dtype` is cast to. Raises `TypeError` where there is none."""

    @abc.abstractmethod
    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype of the result for an input of `dtype`."""

    def computed(self, points: tuple[int, ...], platform: str) -> tuple["AbstractLineTransform", float]:
        """What `apply` computes best on `platform` ("cpu", "gpu", "tpu"), and the factor by which this map differs."""
        del points, platform
        return self, 1.0

    def separated(
        self, axes: tuple[int, ...], points: tuple[int, ...]
    ) -> tuple[tuple["AbstractLineTransform", tuple[int, ...], tuple[int, ...]], ...]:
        """Transforms of fewer axes, each with its axes and points, that are this one when applied in turn.

        It alone where there are none.
        """
        return ((self, axes, points),)

    @abc.abstractmethod
    def apply(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        """Map the lines of `block` along its axes `axes`, counted from the end, with JAX."""


@dataclass(frozen=True)
class DerivativeRule:
    """How the coefficients of a derivative follow from those of a field.

    The derivative of order `m` is an expansion in `basis` on `points` points, of which the field's point number `first`
    is the first one: they may be fewer points, or more on both sides. Each coefficient of the field is multiplied by
    `factor * wavenumber**m`, then `runs` say where it goes. For odd orders the wavenumbers are those with
    `nyquist=False`.
    """

    basis: "AbstractBasis"
    points: int
    factor: float | complex
    runs: tuple[Run, ...]
    first: int = 0


class AbstractBasis(abc.ABC):
    """The functions that a field is expanded in along one axis of the grid: plain, hashable data.

    Subclasses are frozen dataclasses. In their methods, `n` is the number of points along the axis.
    """

    @property
    @abc.abstractmethod
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        """What fields and their coefficients must be: "real", "complex", or `None` for either, as the input is."""

    @property
    @abc.abstractmethod
    def forward(self) -> AbstractLineTransform:
        """The transform from points to coefficients along one axis."""

    @property
    @abc.abstractmethod
    def is_transformed(self) -> bool:
        """Whether `forward` must be applied. Else the axis is carried along as it is."""

    @property
    @abc.abstractmethod
    def is_diagonal(self) -> bool:
        """Whether derivatives map each mode to one mode."""

    @abc.abstractmethod
    def joined(self, last: "AbstractBasis") -> AbstractLineTransform | None:
        """The transform of this axis in one call with later ones, of which the last has basis `last`.

        `None` where they must be transformed one after the other.
        """

    @abc.abstractmethod
    def orthogonalized(self) -> "AbstractBasis":
        """The same functions, scaled so that `forward` is an orthogonal or unitary matrix but for one factor.

        That factor is one over the root of `inverse_scale`. Raises `ValueError` where there is none.
        """

    def transformed_points(self, n: int) -> tuple[int, tuple[Run, ...]]:
        """How many points `forward` takes, and which of the `n` points of the grid they are: all, by default."""
        return n, (Run(0, 0, n),)

    def computed(self, n: int) -> int:
        """How many coefficients `forward` computes; by default as many as are stored."""
        return self.stored(n)

    def inverse_scale(self, n: int) -> float:
        """What the unnormalised inverse must be multiplied by, on a grid of `n` points."""
        return self.forward.inverse_scale((n,))

    @abc.abstractmethod
    def stored(self, n: int) -> int:
        """How many coefficients are stored for `n` points. Raises `ValueError` for too few points."""

    @abc.abstractmethod
    def points(self, n: int) -> np.ndarray:
        """The positions of `n` points on an axis of length one."""

    @abc.abstractmethod
    def weights(self, n: int) -> np.ndarray:
        """The quadrature weights of `n` points: their sum over a field, times these, is its mean along the axis.

        The weights sum to one, together with those of walls where the field is zero and has no point.
        """

    @abc.abstractmethod
    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        """The angular wavenumbers of the stored coefficients on an axis of length one.

        `nyquist=False` puts zero where the wavenumber is that of two modes of opposite sign at once.
        """

    @abc.abstractmethod
    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        """How many exponentials each stored coefficient stands for, where those for `kept` of `n` points are kept.

        These are the weights in Parseval's theorem: times `inverse_scale`, the coefficients have this weighted sum of
        squares, which is the mean square of the field. A point on a wall counts half in that mean.
        """

    @abc.abstractmethod
    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        """Which computed coefficients for `n` points become those stored for `kept` points, by increasing target.

        With `nyquist`, one that stands for two becomes their sum; else it is left out, and zero.
        """

    @abc.abstractmethod
    def points_below(self, n: int, fraction: float) -> int:
        """How many points to keep coefficients for, of `n`, so that only modes below a fraction of the highest remain.

        The highest angular wavenumber of `n` points on an axis of length one is π n.
        """

    @abc.abstractmethod
    def derivative(self, n: int, order: int) -> DerivativeRule:
        """What the derivative of that order, at least zero, is: its basis and its coefficients.

        Raises `ValueError` where the derivative has no expansion of this kind.
        """
