"""The Gross–Pitaevskii equation."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Inexact

from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import check_number
from .._common.host import device_array
from .._operator.transform import AbstractTransform
from ..spectral import _vector, mean_square
from ..spectral._check import check_fft
from ..spectral._dealiasing import AbstractDealiasing, Truncate
from ..spectral._modes import Components
from ._equation import AbstractEquation, Time


class GrossPitaevskii(AbstractEquation):
    """The Gross–Pitaevskii equation of a Bose–Einstein condensate: `i ∂ψ/∂t = -∇²ψ/2 + V ψ + g |ψ|² ψ`.

    This is the cubic nonlinear Schrödinger equation, in units in which the reduced Planck constant and the mass of a
    particle are one (Gross, Nuovo Cimento 20, 1961; Pitaevskii, Sov. Phys. JETP 13, 1961). The number of particles
    `∫|ψ|²` and the energy `∫|∇ψ|²/2 + V|ψ|² + g|ψ|⁴/2` are conserved. For a density `n`, the healing length is
    `1/√(2 g n)`. `ImaginaryTime` finds ground states.

    !!! example

        ```python
        x, y = fft.coordinates()
        trap = ((x - 5) ** 2 + (y - 5) ** 2) / 2
        equation = pde.GrossPitaevskii(fft, 1.0, potential=trap)
        ```

    **Arguments:**

    - `fft`: the transform of complex fields, built with a `shape`.
    - `interaction`: g, a number, positive for repulsion. It may be traced, so that JAX can differentiate with respect
        to it.
    - `potential`: V, a real field, or a function `(t, args)` that returns a real field. The field lies on the grid on
        which products are computed. This grid is the grid of `fft`, unless `dealiasing` is `Pad`. To shard the field,
        call `equation.products.decomposition.shard(V)`. For a trap, compute V from `fft.coordinates()`.
    - `dealiasing`: the dealiasing rule for products of fields: `Truncate`, `Pad`, `Mask` or `None`. The default
        `Truncate(1/2)` keeps the lower half of the modes along each axis.

    **Raises:** the errors of `AbstractEquation`; `ValueError` if `fft` takes real fields, or if the potential is not a
    real field on the grid of products.
    """

    fft: AbstractTransform
    interaction: Number
    potential: Array | Callable | None = eqx.field(kw_only=True, default=None)
    components: ClassVar[Components] = "scalar"
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(1 / 2), static=True)

    def __check_init__(self):
        check_fft(self.fft)
        if not self.fft.takes_complex:
            raise ValueError("`fft` must be built with `real=False`; got a transform of real fields.")
        check_number("interaction", self.interaction)
        if not (self.potential is None or callable(self.potential)):
            self._as_potential(self.potential)

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        squared = _vector.squared(self.wavenumbers(u))
        return lax.complex(jnp.zeros_like(squared), -squared / 2)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        field = self.to_grid(u)
        level = _vector.cast(self.interaction, u) * (field.real**2 + field.imag**2)
        if self.potential is not None:
            level = level + aligned(self._potential(t, args, level), level)
        return self.from_grid(_vector.times_unit(1j, -level, field))

    def particles(self, u: Inexact[Array, "*spectrum"]) -> Float[Array, "*batch"]:
        """Return the number of particles `∫|ψ|²` of a state: a real array of shape `(*batch,)`."""
        return _vector.times_each(self.fft.box_lengths, mean_square(self.transform, u))

    def energies(self, u: Inexact[Array, "*spectrum"], t: Time = 0.0, args: Any = None) -> Float[Array, "*batch three"]:
        """Return the kinetic energy, the potential energy and the energy of the interaction of a state.

        The three energies are the integrals of `|∇ψ|²/2`, `V |ψ|²` and `g |ψ|⁴/2`. Their sum is conserved if V is
        constant in time. The chemical potential of a stationary state is the sum with twice the last energy, divided by
        `particles`.

        **Arguments:** `u`, a state; `t` and `args`, for a potential that is a function.

        **Returns:** a real array of shape `(*batch, 3)`.
        """
        field = self.to_grid(u)
        density = field.real**2 + field.imag**2
        kinetic = mean_square(self.transform, _vector.times(_vector.length(self.wavenumbers(u)), u)) / 2
        trapped = self.products.volume_mean(_vector.times(self._potential(t, args, density), density))
        repelled = self.products.volume_mean(density**2) * _vector.cast(self.interaction, u) / 2
        return _vector.times_each(self.fft.box_lengths, jnp.stack([kinetic, trapped, repelled], axis=-1))

    def _potential(self, t: Time, args: Any, like: Array) -> Array:
        potential = self.potential(t, args) if callable(self.potential) else self.potential
        return jnp.zeros((), like.dtype) if potential is None else self._as_potential(potential).astype(like.dtype)

    def _as_potential(self, potential: Any) -> Array:
        grid = self.products.decomposition
        field, shape = device_array(potential, "potential", grid.mesh), grid.padded_shape()
        if field.shape not in ((), shape) or jnp.iscomplexobj(field):
            raise ValueError(
                f"`potential` must be a real field of shape {shape}; got {field.dtype} of {field.shape}. Products are "
                "computed on a grid of this shape."
            )
        return field
