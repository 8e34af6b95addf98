"""The Coriolis force."""

from typing import Any, ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Inexact

from .._common.box import Numbers
from .._common.check import as_tuples, check_number, taking
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft, check_periodic
from ..spectral._dealiasing import AbstractDealiasing, Truncate, check_dealiasing
from ..spectral._modes import AbstractSpectral, Components
from ._equation import Time
from ._forcing import check_term_state


class Coriolis(AbstractSpectral):
    """The Coriolis force `-2 Ω × u` on a flow in a frame that rotates with the angular velocity Ω.

    A flow in a rotating frame has inertial waves, whose frequency is `2 Ω·k / |k|` (Greenspan, The Theory of Rotating
    Fluids, 1968). The time step must resolve the shortest period of these waves, `π / |Ω|`. The centrifugal force is a
    gradient, which the pressure absorbs. In two dimensions, the pressure absorbs the Coriolis force, too.

    !!! example

        ```python
        equation = pde.NavierStokes(fft, 1e-3, forcing=pde.Coriolis(fft, (0.0, 0.0, 5.0)))
        ```

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `rotation`: Ω, a tuple of three numbers, or of one number in two dimensions. They may be traced, so that JAX can
        differentiate with respect to them.

    **Raises:** `ValueError` if `fft` takes complex fields, is not periodic or does not have two or three axes, or if
    `rotation` does not have the right number of components.
    """

    fft: AbstractTransform
    rotation: Numbers = eqx.field(converter=taking(Numbers, as_tuples))
    components: ClassVar[Components] = "vector"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)
        check_periodic(self.fft)
        ndim = len(check_fft(self.fft, real=True))
        if ndim not in (2, 3):
            raise ValueError(f"`fft` must transform a grid of two or three axes; got {self.fft!r}.")
        count = len(_vector.planes(ndim))
        if not isinstance(self.rotation, tuple) or len(self.rotation) != count:
            raise ValueError(f"`rotation` must be a tuple of {count} number(s) in {ndim}D; got {self.rotation!r}.")
        for part in self.rotation:
            check_number("rotation", part)

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        twice = tuple(2 * _vector.cast(part, u) for part in self.rotation)
        ndim = self.fft.decomposition.ndim
        parts = _vector.components(u, ndim)
        return _vector.stack(_vector.cross(parts, twice, lambda part, number: _vector.times(number, part)), ndim)
