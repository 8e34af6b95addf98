"""Cosine or sine transforms of some axes and a Fourier transform of others, by one FFT of all of them."""

from dataclasses import dataclass

import numpy as np
from jax import Array

from . import real_to_real
from .base import AbstractLineTransform
from .cosine import RealToReal
from .fourier import DFT


@dataclass(frozen=True)
class Mixed(AbstractLineTransform):
    """The transform `cosines` of the first `count` axes and `fourier` of the others; the two commute.

    An FFT of all axes reads and writes a field once. One after the other, each would do so, and where an axis is not
    the last one, would move it to the end and back.
    """

    cosines: RealToReal
    fourier: DFT
    count: int

    @property
    def to_points(self) -> bool:
        return self.cosines.to_points

    @property
    def multiplies(self) -> bool:
        return self.cosines.multiplies

    def transpose(self) -> "Mixed":
        return Mixed(self.cosines.transpose(), self.fourier.transpose(), self.count)

    def conjugate(self) -> "Mixed":
        return Mixed(self.cosines, self.fourier.conjugate(), self.count)

    def inverse(self) -> "Mixed":
        return Mixed(self.cosines.inverse(), self.fourier.inverse(), self.count)

    def inverse_scale(self, points: tuple[int, ...]) -> float:
        first, last = points[: self.count], points[self.count :]
        return self.cosines.inverse_scale(first) * self.fourier.inverse_scale(last)

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        return self.fourier.input_dtype(dtype)

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        return self.fourier.result_dtype(dtype)

    def separated(
        self, axes: tuple[int, ...], points: tuple[int, ...]
    ) -> tuple[tuple[AbstractLineTransform, tuple[int, ...], tuple[int, ...]], ...]:
        first = self.cosines, axes[: self.count], points[: self.count]
        last = self.fourier, axes[self.count :], points[self.count :]
        return (last, first) if self.to_points else (first, last)

    def apply(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        def fft(block: Array) -> Array:
            return self.fourier.fft(block, axes, points)

        def mixed(block: Array) -> Array:
            weights = [self.cosines.weights(n) for n in points[: self.count]]
            return real_to_real.around(fft, self.cosines.kind, self.cosines.type, weights, block, axes[: self.count])

        return self.fourier.around(mixed, block, axes[self.count :], points[self.count :])


def mixed(
    first: AbstractLineTransform, axes: tuple[int, ...], second: AbstractLineTransform, others: tuple[int, ...]
) -> tuple[Mixed, tuple[int, ...]] | None:
    """One transform, and its axes, that is `first` along `axes`, then `second` along `others`, if there is one."""
    match first, second:
        case RealToReal(type=2), DFT(kind="r2c") | DFT(kind="c2c", sign=-1):
            found = Mixed(first, second, len(axes)), (*axes, *others)
        case DFT(kind="c2r") | DFT(kind="c2c", sign=1), RealToReal(type=3):
            found = Mixed(second, first, len(others)), (*others, *axes)
        case _:
            return None
    return found if len(found[1]) <= real_to_real.MOST_AXES else None
