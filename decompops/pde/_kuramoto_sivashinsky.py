"""The Kuramoto–Sivashinsky equation."""

from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Inexact

from .._box import Box
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components, slope_axes
from ._equation import AbstractEquation, Time, Walls


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
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        squared = _vector.squared(self.wavenumbers(u))
        return squared - squared**2

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        nabla = self.nabla(u)
        gradient = self.to_grid(nabla.gradient(u), slope_axes("vector", nabla.ndim))
        slope = _vector.components(gradient, nabla.ndim)
        return self.from_grid(-_vector.total(part**2 for part in slope) / 2)
