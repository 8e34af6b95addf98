"""An equation: the Fisher–Kolmogorov equation of a population that diffuses and grows."""

from typing import ClassVar

import decompops as dops
from decompops import spectral
from decompops.extend import AbstractEquation, Number, check_number, vector


class Fisher(AbstractEquation):
    """`∂u/∂t = D ∇²u + r u (1 - u)`, for a scalar.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `diffusivity`, `growth`: D and r, nonnegative numbers. They may be traced, so that JAX can
        differentiate with respect to them.
    """

    fft: dops.FFT
    diffusivity: Number
    growth: Number
    dealiasing: ClassVar = spectral.Truncate(2 / 3)  # because the equation multiplies two fields

    def __check_init__(self):
        check_number("diffusivity", self.diffusivity, least=0)
        check_number("growth", self.growth, least=0)

    def linear(self, u):
        squared = vector.squared(self.wavenumbers(u))
        return vector.cast(self.growth, u) - vector.cast(self.diffusivity, u) * squared

    def nonlinear(self, t, u, args=None):
        field = self.to_grid(u)
        return vector.times(-vector.cast(self.growth, u), self.from_grid(field**2))
