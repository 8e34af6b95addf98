"""The wave equation."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Inexact

from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._modes import Components
from ._equation import AbstractEquation, Time


class Wave(AbstractEquation):
    """The wave equation `∂²h/∂t² = c² ∇²h`, written as `∂h/∂t = v` and `∂v/∂t = c² ∇²h`.

    The state has two components, the height h and its rate v: `equation.transform(jnp.stack([h, v]))`. In each mode,
    the linear part of the equation multiplies the waves `v ± i c |k| h` by `±i c |k|`. Integrators use these waves as
    coordinates, so `ETDRK` is exact for steps of any length. In the mean mode, k = 0, both waves would equal v. The
    coordinates of this mode are `v ± i h` instead, and integrators treat v as the nonlinear term of the equation for h.
    Each step rounds h like `v / (c |k|)`. In single precision, use steps for which `c |k| dt` is not far below one.

    **Arguments:**

    - `fft`: the transform, built with a `shape`, and with `real=True` if the fields are real.
    - `speed`: c, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it. At c = 0,
        only first derivatives are right.

    **Raises:** the errors of `AbstractEquation`; `ValueError` or `TypeError` for an invalid `speed`.
    """

    fft: AbstractTransform
    speed: Number = 1.0
    components: ClassVar[Components] = 2

    def __check_init__(self):
        check_number("speed", self.speed, least=0)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        frequency = self._frequency(u)
        both = _vector.stack((frequency, -frequency), self.fft.decomposition.ndim)
        return lax.complex(jnp.zeros_like(both), both)

    def to_diagonal(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        ndim, frequency = self.fft.decomposition.ndim, self._frequency(u)
        height, rate = _vector.components(u, ndim)
        turned = _vector.times_unit(1j, jnp.where(frequency == 0, 1, frequency), height)
        return _vector.stack((rate + turned, rate - turned), ndim)

    def from_diagonal(self, w: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        ndim, frequency = self.fft.decomposition.ndim, self._frequency(w)
        plus, minus = _vector.components(w, ndim)
        height = _vector.times_unit(1j, -1 / jnp.where(frequency == 0, 1, frequency), plus - minus) / 2
        return _vector.stack((height, (plus + minus) / 2), ndim)

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> None:
        """Return `None`: steps of any length are exact."""

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        ndim = self.fft.decomposition.ndim
        _, rate = _vector.components(u, ndim)
        mean = aligned(self._frequency(u), rate) == 0
        return _vector.with_zeros(_vector.stack((jnp.where(mean, rate, 0),), ndim), 1, ndim)

    def _frequency(self, u: Array) -> Array:
        frequency = _vector.cast(self.speed, u) * _vector.length(self.wavenumbers(u))
        # The solution is an even function of c. So its derivative at c = 0 is zero, like that of this constant zero.
        return jnp.where(frequency == 0, 0, frequency)
