"""The interface of a basis: the functions in which a field is expanded along one axis of the grid.

Each file of this folder defines one family of functions, such as Fourier modes or cosines: the stored coefficients,
their wavenumbers and weights, the truncation of an expansion, and the transforms between points and coefficients.
"""

import abc
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jax import Array


# The kind of the numbers in an array.
Kind = Literal["real", "complex"]


@dataclass(frozen=True)
class Run:
    """A copy of `length` consecutive coefficients along one axis.

    The first coefficient is read at index `source` and written at index `target`. The copies are multiplied by
    `factor`. With `real`, the imaginary parts of the copies are set to zero.
    """

    source: int
    target: int
    length: int
    factor: float = 1.0
    real: bool = False


class AbstractLineTransform(abc.ABC):
    """A linear map of the lines of a block along one or more whole (unsharded) axes.

    Subclasses are frozen dataclasses of plain, hashable data. Transforms and their inverses are not normalised: a
    transform followed by its inverse multiplies lines by `1 / inverse_scale`.
    """

    @property
    @abc.abstractmethod
    def to_points(self) -> bool:
        """Whether the map leads from coefficients to grid points. Otherwise it leads from points to coefficients."""

    @property
    def multiplies(self) -> bool:
        """Whether `apply` already multiplies each coefficient, so that one more factor costs nothing."""
        return False

    @abc.abstractmethod
    def transpose(self) -> "AbstractLineTransform":
        """Return the transpose, without complex conjugation."""

    @abc.abstractmethod
    def conjugate(self) -> "AbstractLineTransform":
        """Return the map with the complex conjugate matrix."""

    @abc.abstractmethod
    def inverse(self) -> "AbstractLineTransform":
        """Return the inverse up to the factor `inverse_scale`."""

    @abc.abstractmethod
    def inverse_scale(self, points: tuple[int, ...]) -> float:
        """Return the factor by which `inverse()` must be multiplied, for axes with these numbers of grid points."""

    @abc.abstractmethod
    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype that an input of `dtype` is cast to. Raises `TypeError` if the map cannot take `dtype`."""

    @abc.abstractmethod
    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of the result for an input of `dtype`."""

    def computed(self, points: tuple[int, ...], platform: str) -> tuple["AbstractLineTransform", float]:
        """Return the map that `apply` computes fastest on `platform` ("cpu", "gpu", "tpu"), and a factor.

        The returned map times the factor is equal to this map.
        """
        del points, platform
        return self, 1.0

    def separated(
        self, axes: tuple[int, ...], points: tuple[int, ...]
    ) -> tuple[tuple["AbstractLineTransform", tuple[int, ...], tuple[int, ...]], ...]:
        """Return transforms of fewer axes that, applied one after the other, are equal to this transform.

        Each transform comes with its axes and points. A transform that cannot be separated returns only itself.
        """
        return ((self, axes, points),)

    @abc.abstractmethod
    def apply(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        """Transform the lines of `block` along `axes` with JAX.

        The axes are negative numbers, counted from the last axis.
        """


@dataclass(frozen=True)
class DerivativeRule:
    """How the coefficients of a derivative are computed from the coefficients of a field.

    The derivative of order `m` is expanded in `basis`. Each coefficient of the field is multiplied by
    `factor * wavenumber**m`, and then copied as `runs` say. Odd orders use the wavenumbers with `nyquist=False`.

    - `points`: the number of grid points of the derivative. The field may have more or fewer grid points.
    - `first`: the index of the derivative's first point among the field's points; -1 if it lies before the field's
        first point.
    """

    basis: "AbstractBasis"
    points: int
    factor: float | complex
    runs: tuple[Run, ...]
    first: int = 0


class AbstractBasis(abc.ABC):
    """The functions in which a field is expanded along one axis of the grid.

    Subclasses are frozen dataclasses of plain, hashable data. In all methods, `n` is the number of points of the axis.
    """

    @property
    @abc.abstractmethod
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        """The kinds of numbers in fields and coefficients: "real", "complex", or `None` for the kind of the input."""

    @property
    @abc.abstractmethod
    def forward(self) -> AbstractLineTransform:
        """The transform from points to coefficients along one axis."""

    @property
    @abc.abstractmethod
    def is_transformed(self) -> bool:
        """Whether `forward` must be applied. Otherwise transforms leave the axis unchanged."""

    @property
    @abc.abstractmethod
    def is_diagonal(self) -> bool:
        """Whether a derivative maps each mode to a single mode."""

    @property
    def has_walls(self) -> bool:
        """Whether the axis lies between two walls; their distance is then the length of the box. By default False."""
        return False

    @abc.abstractmethod
    def joined(self, last: "AbstractBasis") -> AbstractLineTransform | None:
        """Return one transform for this axis and an axis with the basis `last`, or `None` if there is none.

        `None` means that the axes must be transformed one after the other.
        """

    @abc.abstractmethod
    def orthogonalized(self) -> "AbstractBasis":
        """Return the same functions, scaled so that `forward` is an orthogonal or unitary matrix times a number.

        The number is one over the square root of `inverse_scale`. Raises `ValueError` if there is no such scaling.
        """

    def transformed_points(self, n: int) -> tuple[int, tuple[Run, ...]]:
        """Return the number of points that `forward` takes, and where they are among the `n` grid points.

        By default, `forward` takes all grid points.
        """
        return n, (Run(0, 0, n),)

    def computed(self, n: int) -> int:
        """Return the number of coefficients that `forward` computes; by default, the number of stored coefficients."""
        return self.stored(n)

    def inverse_scale(self, n: int) -> float:
        """Return the factor by which the unnormalised inverse must be multiplied, for `n` points."""
        return self.forward.inverse_scale((n,))

    @abc.abstractmethod
    def stored(self, n: int) -> int:
        """Return the number of coefficients stored for `n` points. Raises `ValueError` for too few points."""

    @abc.abstractmethod
    def points(self, n: int) -> np.ndarray:
        """Return the positions of `n` points on an axis of length one, of shape `(n,)`."""

    def edges(self, n: int) -> np.ndarray:
        """Return the bounds of the cells around `n` points on an axis of length one, of shape `(n + 1,)`.

        By default, a bound lies halfway between two neighbours, and the first point is the neighbour of the last one,
        as on a periodic axis.
        """
        points = self.points(n)
        first = (points[0] + points[-1] - 1) / 2
        return np.array([first, *(points[1:] + points[:-1]) / 2, first + 1])

    @abc.abstractmethod
    def weights(self, n: int) -> np.ndarray:
        """Return the quadrature weights of `n` points, of shape `(n,)`.

        The weighted sum of a field is its mean along the axis. If the quadrature rule has a point on a wall where
        the grid has no point, the field is zero there, and the weight of this point is not returned. The sum of all
        weights, including the weights of such points, is one.
        """

    @abc.abstractmethod
    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        """Return the angular wavenumbers of the stored coefficients on an axis of length one.

        With `nyquist=False`, the Nyquist coefficient has the wavenumber zero, because it stands for +k and -k, which
        the points cannot tell apart.
        """

    @abc.abstractmethod
    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        """Return how many exponentials each stored coefficient represents after truncation from `n` to `kept` points.

        These numbers are the weights in Parseval's theorem. Multiply the coefficients by `inverse_scale`: the weighted
        sum of their squares is then the mean square of the field. In this mean, a point on a wall has half the weight
        of other points.
        """

    def overlaps(self, kept: int) -> np.ndarray | None:
        """Return the mean over the volume of the product of each pair of functions: a matrix for `kept` coefficients.

        By default, the result is `None`: different functions are orthogonal, and `multiplicity` is enough. The matrix
        is scaled like `multiplicity`.
        """
        del kept

    @abc.abstractmethod
    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        """Return the runs that copy the coefficients of `n` points to the stored coefficients of `kept` points.

        The runs are in the order of their targets. A coefficient that represents two modes becomes the sum of both if
        `nyquist` is True, and zero otherwise.
        """

    @abc.abstractmethod
    def points_below(self, n: int, fraction: float) -> int:
        """Return the number of points to which a spectrum must be truncated, so that only modes below a limit remain.

        The limit is `fraction` times the highest angular wavenumber, which is π n for `n` points on an axis of length
        one.
        """

    @abc.abstractmethod
    def derivative(self, n: int, order: int) -> DerivativeRule:
        """Return the rule for the derivative of order `order`, which is zero or more.

        Raises `ValueError` if the basis has no such rule.
        """
