"""The Kuramoto–Sivashinsky equation."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import check_flag, check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_box_given, check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components, slope_axes
from ._convection import AbstractConvection, Convected
from ._equation import AbstractEquation, Time, Walls
from ._symbols import fourth_power


class KuramotoSivashinsky(AbstractEquation):
    """The Kuramoto–Sivashinsky equation of a flame front: `∂u/∂t = -s |∇u|²/2 - a ∇²u - b ∇⁴u`.

    **Arguments:**

    - `fft`: the transform, built with `real=True`, a `shape` and a `box`. With the default coefficients, u = 0 is
        unstable in boxes longer than 2π.
    - `scale`, `second_order`, `fourth_order`: s, a and b, numbers. They may be traced, so that JAX can differentiate
        with respect to them.
    - `isotropic`: `False` replaces ∇⁴ by `∂⁴/∂x⁴ + ∂⁴/∂y⁴ + ...`.
    - `keep_mean`: whether the mean of u stays constant. If true, the equation leaves out the mean of `|∇u|²`.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.

    **Raises:** the errors of `AbstractEquation`; `ValueError` if `fft` takes complex fields; `ValueError` or
    `TypeError` if a number is invalid.
    """

    fft: AbstractTransform
    scale: Number = eqx.field(kw_only=True, default=1.0)
    second_order: Number = eqx.field(kw_only=True, default=1.0)
    fourth_order: Number = eqx.field(kw_only=True, default=1.0)
    isotropic: bool = eqx.field(kw_only=True, default=True, static=True)
    keep_mean: bool = eqx.field(kw_only=True, default=False, static=True)
    components: ClassVar[Components] = "scalar"
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_box_given(self.fft)
        check_number("scale", self.scale)
        check_number("second_order", self.second_order)
        check_number("fourth_order", self.fourth_order)
        check_flag("isotropic", self.isotropic)
        check_flag("keep_mean", self.keep_mean)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return _growth(self, u)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        nabla = self.nabla(u)
        gradient = self.to_grid(nabla.gradient(u), slope_axes("vector", nabla.ndim))
        slope = _vector.components(gradient, nabla.ndim)
        half = _vector.cast(self.scale, u) / 2
        rate = self.from_grid(-half * _vector.total(part**2 for part in slope))
        mean = aligned(_vector.squared(self.wavenumbers(u)) == 0, rate)
        return jnp.where(mean, 0, rate) if self.keep_mean else rate


class KuramotoSivashinskyConservative(AbstractConvection):
    """The Kuramoto–Sivashinsky equation for a velocity: `∂u/∂t = -s ∇·(u u)/2 - a ∇²u - b ∇⁴u`.

    In one dimension, the derivative ∂u/∂x of a solution of `KuramotoSivashinsky` solves this equation. In more
    dimensions, the gradient of a solution does not.

    **Arguments:**

    - `fft`, `scale`, `second_order`, `fourth_order`, `isotropic`, `dealiasing`: see `KuramotoSivashinsky`.
    - `components`: "vector", or "scalar" for one field, whose convection is `s` times the sum of `∂(u²/2)/∂x_i` over
        all axes.
    - `conservative`: `False` replaces the convection of a vector by `s (u·∇)u`.

    **Raises:** the errors of `KuramotoSivashinsky`.
    """

    fft: AbstractTransform
    scale: Number = eqx.field(kw_only=True, default=1.0)
    second_order: Number = eqx.field(kw_only=True, default=1.0)
    fourth_order: Number = eqx.field(kw_only=True, default=1.0)
    isotropic: bool = eqx.field(kw_only=True, default=True, static=True)
    components: Convected = eqx.field(kw_only=True, default="vector", static=True)
    conservative: bool = eqx.field(kw_only=True, default=True, static=True)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_box_given(self.fft)
        check_number("second_order", self.second_order)
        check_number("fourth_order", self.fourth_order)
        check_flag("isotropic", self.isotropic)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return _growth(self, u)


def _growth(equation: KuramotoSivashinsky | KuramotoSivashinskyConservative, u: Array) -> Array:
    """Return the growth rate `a k² - b k⁴` of each mode."""
    k = equation.wavenumbers(u)
    fourth = _vector.cast(equation.fourth_order, u) * fourth_power(k, equation.isotropic)
    return _vector.cast(equation.second_order, u) * _vector.squared(k) - fourth
