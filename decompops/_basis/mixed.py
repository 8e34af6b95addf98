"""Combines a cosine or sine transform of one axis and a Fourier transform of other axes into one FFT of all axes."""

from dataclasses import dataclass

import numpy as np
from jax import Array

from . import real_to_real, short_lines
from .base import AbstractLineTransform
from .cosine import RealToReal
from .fourier import DFT


@dataclass(frozen=True)
class Mixed(AbstractLineTransform):
    """The transform `cosines` of the first axis and the transform `fourier` of all other axes. The two transforms
    commute.

    One FFT of all axes reads and writes a field once. Two separate transforms would read and write the field twice.
    They would also move an axis that is not the last one to the end and back.
    """

    cosines: RealToReal
    fourier: DFT

    @property
    def to_points(self) -> bool:
        return self.cosines.to_points

    @property
    def multiplies(self) -> bool:
        return self.cosines.multiplies

    def transpose(self) -> "Mixed":
        return Mixed(self.cosines.transpose(), self.fourier.transpose())

    def conjugate(self) -> "Mixed":
        return Mixed(self.cosines, self.fourier.conjugate())

    def inverse(self) -> "Mixed":
        return Mixed(self.cosines.inverse(), self.fourier.inverse())

    def inverse_scale(self, points: tuple[int, ...]) -> float:
        return self.cosines.inverse_scale(points[:1]) * self.fourier.inverse_scale(points[1:])

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        return self.fourier.input_dtype(dtype)

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        return self.fourier.result_dtype(dtype)

    def separated(
        self, axes: tuple[int, ...], points: tuple[int, ...]
    ) -> tuple[tuple[AbstractLineTransform, tuple[int, ...], tuple[int, ...]], ...]:
        first, last = (self.cosines, axes[:1], points[:1]), (self.fourier, axes[1:], points[1:])
        return (last, first) if self.to_points else (first, last)

    def apply(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        def fft(block: Array) -> Array:
            return self.fourier.fft(block, axes, points)

        def mixed(block: Array) -> Array:
            weights = self.cosines.weights(points[0])
            return real_to_real.around(fft, self.cosines.kind, self.cosines.type, weights, block, axes[0])

        return self.fourier.around(mixed, block, axes[1:], points[1:])


# A transform, its axes, and the number of grid points along each axis.
Part = tuple[AbstractLineTransform, tuple[int, ...], tuple[int, ...]]


def mixed(first: Part, second: Part) -> tuple[Mixed, tuple[int, ...]] | None:
    """Return one transform that is equal to `first` followed by `second`, with its axes, or `None` if there is none.

    The result is also `None` if a product with a matrix computes the cosine or sine transform faster than an FFT. A
    product need not move any axis, so it is faster for short lines along an axis before all Fourier axes.
    """
    match first, second:
        case (
            (RealToReal(type=2) as waves, (wall,), (n,)),
            (DFT(kind="r2c") | DFT(kind="c2c", sign=-1) as fourier, others, _),
        ) | (
            (DFT(kind="c2r") | DFT(kind="c2c", sign=1) as fourier, others, _),
            (RealToReal(type=3) as waves, (wall,), (n,)),
        ):
            is_product = n <= short_lines.LONGEST[waves.type] and wall < min(others)
            if not is_product and len(others) < real_to_real.MOST_AXES:
                return Mixed(waves, fourier), (wall, *others)
    return None
