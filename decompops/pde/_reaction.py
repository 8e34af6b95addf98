"""Reaction–diffusion equations."""

from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Inexact

from .._common.box import Number, Numbers
from .._common.check import as_tuples, check_number, taking
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components
from ._equation import AbstractEquation, Time, Walls
from ._symbols import constant


class FisherKPP(AbstractEquation):
    """The equation of Fisher, Kolmogorov, Petrovsky and Piskunov for a population: `∂u/∂t = D ∇²u + r u (1 - u)`.

    The speed of a front is at least `2√(r D)` (Ann. Eugenics 7, 1937).

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `diffusivity`, `rate`: D and r, nonnegative numbers. They may be traced, so that JAX can differentiate with
        respect to them.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(2/3)` keeps the lower two thirds of the modes along each axis.
    """

    fft: AbstractTransform
    diffusivity: Number
    rate: Number
    components: ClassVar[Components] = "scalar"
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        check_number("diffusivity", self.diffusivity, least=0)
        check_number("rate", self.rate, least=0)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        return _vector.cast(self.rate, u) - _vector.cast(self.diffusivity, u) * _vector.squared(self.wavenumbers(u))

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        return self.from_grid(-_vector.cast(self.rate, u) * self.to_grid(u) ** 2)


class GrayScott(AbstractEquation):
    """The Gray–Scott reaction of a substance u that is fed, with a catalyst v (Pearson, Science 261, 1993).

    The equations are `∂u/∂t = D₁ ∇²u - u v² + f (1 - u)` and `∂v/∂t = D₂ ∇²v + u v² - (f + k) v`. The state is
    `equation.transform(jnp.stack([u, v]))`. Each evaluation of the right-hand side takes three transforms in two
    batched calls.

    **Arguments:**

    - `fft`: the transform, built with `real=True` and a `shape`.
    - `diffusivities`: the tuple (D₁, D₂) of nonnegative numbers. They may be traced, so that JAX can differentiate
        with respect to them.
    - `feed`, `kill`: the rates f and k, numbers.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(1/2)` keeps the lower half of the modes along each axis.
    """

    fft: AbstractTransform
    diffusivities: Numbers = eqx.field(converter=taking(Numbers, as_tuples))
    feed: Number
    kill: Number
    components: ClassVar[Components] = 2
    walls: ClassVar[Walls] = "even"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(1 / 2), static=True)

    def __check_init__(self):
        check_fft(self.fft, real=True)
        if not (isinstance(self.diffusivities, tuple) and len(self.diffusivities) == 2):
            raise ValueError(f"`diffusivities` must be a tuple of two numbers; got {self.diffusivities!r}.")
        for value in self.diffusivities:
            check_number("diffusivities", value, least=0)
        check_number("feed", self.feed)
        check_number("kill", self.kill)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        k = self.wavenumbers(u)
        return _vector.stack((-_vector.cast(d, u) * _vector.squared(k) for d in self.diffusivities), len(k))

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> None:
        """Return `None`: two substances on a grid of two axes are no velocity."""

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        ndim = self.fft.decomposition.ndim
        substance, catalyst = _vector.components(self.to_grid(u), ndim)
        reaction = self.from_grid(substance * catalyst**2)
        substance, catalyst = _vector.components(self.masked(u), ndim)
        feed, kill = _vector.cast(self.feed, u), _vector.cast(self.kill, u)
        fed = _vector.times(feed, constant(self.transform, u).astype(u.dtype) - substance) - reaction
        return _vector.stack((fed, reaction - _vector.times(feed + kill, catalyst)), ndim)
