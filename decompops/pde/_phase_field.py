"""Equations for phase separation and for patterns, with one scalar field and cubic terms."""

import functools
from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number, Numbers
from .._common.check import check_number, taking
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components
from ._equation import AbstractEquation, Time, Walls


class AllenCahn(AbstractEquation):
    """The Allen–Cahn equation of two phases: `∂u/∂t = D ∇²u + a u + b u³` (Acta Metallurgica 27, 1979).

    With the default a = 1 and b = -1, the phases are u = 1 and u = -1, and the thickness of the interface is about
    `√(2D)`.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `diffusivity`: D, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it.
    - `linear_rate`, `cubic_rate`: a and b, numbers.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(1/2)` keeps the lower half of the modes along each axis.
    """

    fft: AbstractTransform
    diffusivity: Number
    linear_rate: Number = eqx.field(kw_only=True, default=1.0)
    cubic_rate: Number = eqx.field(kw_only=True, default=-1.0)
    components: ClassVar[Components] = "scalar"
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(1 / 2), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("diffusivity", self.diffusivity, least=0)
        check_number("linear_rate", self.linear_rate)
        check_number("cubic_rate", self.cubic_rate)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        squared = _vector.squared(self.wavenumbers(u))
        return _vector.cast(self.linear_rate, u) - _vector.cast(self.diffusivity, u) * squared

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        return self.from_grid(_vector.cast(self.cubic_rate, u) * self.to_grid(u) ** 3)


class CahnHilliard(AbstractEquation):
    """The Cahn–Hilliard equation of a mixture that separates: `∂u/∂t = D ∇²(a u + b u³ - γ ∇²u)`.

    The mean of u is conserved (J. Chem. Phys. 28, 1958). With the default a = -1 and b = 1, the phases are u = 1 and
    u = -1, and the thickness of the interface is about `√(2γ)`.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `diffusivity`: D, a nonnegative number. It may be traced, so that JAX can differentiate with respect to it.
    - `gamma`: γ, a nonnegative number, in units of length squared.
    - `linear_potential`, `cubic_potential`: a and b, numbers.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(1/2)` keeps the lower half of the modes along each axis.
    """

    fft: AbstractTransform
    diffusivity: Number
    gamma: Number
    linear_potential: Number = eqx.field(kw_only=True, default=-1.0)
    cubic_potential: Number = eqx.field(kw_only=True, default=1.0)
    components: ClassVar[Components] = "scalar"
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(1 / 2), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("diffusivity", self.diffusivity, least=0)
        check_number("gamma", self.gamma, least=0)
        check_number("linear_potential", self.linear_potential)
        check_number("cubic_potential", self.cubic_potential)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        squared = _vector.cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))
        stiff = _vector.cast(self.gamma, u) * _vector.squared(self.wavenumbers(u))
        return -squared * (_vector.cast(self.linear_potential, u) + stiff)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        squared = _vector.cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))
        potential = self.from_grid(_vector.cast(self.cubic_potential, u) * self.to_grid(u) ** 3)
        return _vector.times(-squared, potential)


def _polynomial(coefficients: Any) -> tuple[Number, ...]:
    try:
        parts = tuple(coefficients)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`polynomial` must be one or more numbers; got {coefficients!r}.") from error
    if not parts:
        raise ValueError(f"`polynomial` must be one or more numbers; got {coefficients!r}.")
    return tuple(check_number("polynomial", part) for part in parts)


class SwiftHohenberg(AbstractEquation):
    """The Swift–Hohenberg equation of patterns: `∂u/∂t = r u - (q + ∇²)² u + c₀ + c₁ u + c₂ u² + c₃ u³ + ...`.

    Without the polynomial, modes with the wavenumber `√q` grow at the rate r (Phys. Rev. A 15, 1977).

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `rate`: r, a number. It may be traced, so that JAX can differentiate with respect to it.
    - `critical`: q, a number: the square of the wavenumber that grows fastest.
    - `polynomial`: the numbers c₀, c₁, c₂, c₃ and so on.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(1/2)` keeps the lower half of the modes along each axis. This prevents aliasing errors for a
        polynomial of degree three.
    """

    fft: AbstractTransform
    rate: Number
    critical: Number = eqx.field(kw_only=True, default=1.0)
    polynomial: Numbers = eqx.field(kw_only=True, default=(0.0, 0.0, 1.0, -1.0), converter=taking(Numbers, _polynomial))
    components: ClassVar[Components] = "scalar"
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(1 / 2), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("rate", self.rate)
        check_number("critical", self.critical)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        detuning = _vector.cast(self.critical, u) - _vector.squared(self.wavenumbers(u))
        return _vector.cast(self.rate, u) - detuning**2

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        field = self.to_grid(u)
        coefficients = [_vector.cast(c, u) for c in reversed(self.polynomial)]
        start = coefficients[0] + 0 * field
        return self.from_grid(functools.reduce(lambda value, c: value * field + c, coefficients[1:], start))
