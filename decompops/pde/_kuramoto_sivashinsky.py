"""The Kuramoto–Sivashinsky equation."""

from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Complex, Inexact

from .._box import Box
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components
from ._equation import AbstractEquation, Time


class KuramotoSivashinsky(AbstractEquation):
    """The Kuramoto–Sivashinsky equation of a flame front: `∂u/∂t = -|∇u|²/2 - ∇²u - ∇⁴u`.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`. The state keeps its modes below a third of the grid;
        see `decompops.spectral.dealiased`.
    - `box`: the periodic box. Beyond lengths of about 2π there is chaos.
    """

    fft: AbstractTransform
    box: Box
    components: ClassVar[Components] = "scalar"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)

    def linear(self, u: Complex[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        squared = _vector.squared(self.wavenumbers(u))
        return squared - squared**2

    def nonlinear(self, t: Time, u: Complex[Array, "*spectrum"], args: Any = None) -> Complex[Array, "*spectrum"]:
        k = self.wavenumbers(u, nyquist=False)
        slope = _vector.components(self.to_grid(_vector.gradient(k, u)), len(k))
        return self.from_grid(-_vector.total(part**2 for part in slope) / 2)
