"""The Kuramoto–Sivashinsky equation."""

from typing import Any

from jax import Array
from jaxtyping import Complex, Inexact

from .._operator.fft import FFT3D
from .._operator.transform import Lengths, box
from ..spectral import _vector
from ..spectral._filter import dealiased
from ..spectral._operator import internal_transform
from ._equation import AbstractEquation, Time


class KuramotoSivashinsky(AbstractEquation):
    """The Kuramoto–Sivashinsky equation of a flame front: `∂u/∂t = -|∇u|²/2 - ∇²u - ∇⁴u`."""

    fft: FFT3D
    lengths: Lengths

    def __init__(self, fft: FFT3D, lengths: Lengths):
        """**Arguments:**

        - `fft`: the transform, built with `real=True` and a `shape`. Of its modes, those below a third of the grid
            are kept; see `decompops.spectral.dealiased`.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all. Beyond about 2π there is chaos.
        """
        self.fft = dealiased(internal_transform(fft))
        self.lengths = box(lengths)

    def linear(self, u: Complex[Array, "..."]) -> Inexact[Array, "..."]:
        squared = _vector.squared(self.wavenumbers(u))
        return squared - squared**2

    def nonlinear(self, t: Time, u: Complex[Array, "..."], args: Any = None) -> Complex[Array, "..."]:
        slope = _vector.gradient(self.wavenumbers(u, nyquist=False), u)
        x, y, z = _vector.components(self.fft.inverse(slope))
        return self.fft(-(x**2 + y**2 + z**2) / 2)
