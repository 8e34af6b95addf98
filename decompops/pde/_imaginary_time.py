"""The relaxation of a condensate to its ground state."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.box import Number
from .._common.check import check_number
from .._core.structure import Structure
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ._equation import AbstractSplitEquation, Time
from ._gross_pitaevskii import GrossPitaevskii


class ImaginaryTime(AbstractSplitEquation):
    """The Gross–Pitaevskii equation in imaginary time: `∂ψ/∂τ = μ ψ - H ψ`, with `H ψ = -∇²ψ/2 + V ψ + g |ψ|² ψ`.

    The chemical potential `μ = ∫ψ* H ψ / ∫|ψ|²` keeps the number of particles, and the energy falls until ψ is a
    stationary state: the ground state, unless the start is orthogonal to it. Each implicit step also scales ψ to
    exactly this number of particles, so use `IMEXRK` or `SBDF`. A stationary state of the equation is also a stationary
    state of these methods. V and g are explicit terms, so a time step of about `1 / max(V + g |ψ|²)` is stable.

    !!! example

        ```python
        x, y = fft.coordinates()
        trap = ((x - 5) ** 2 + (y - 5) ** 2) / 2  # the energy of a particle at the distance one from the centre is 1/2
        equation = pde.GrossPitaevskii(fft, 1.0, potential=trap)
        relaxation = pde.ImaginaryTime(equation, particles=1.0)
        ground, _ = pde.IMEXRK(relaxation, dt=0.02).rollout(relaxation.state(jnp.exp(-trap).astype(complex)), 500)
        energy = equation.energies(ground).sum()
        ```

    **Arguments:**

    - `equation`: a `GrossPitaevskii`. Its states are also states of this equation.
    - `particles`: the number of particles `∫|ψ|²`, a positive number. It may be traced.

    **Raises:** `TypeError` if `equation` is not a `GrossPitaevskii`, or if `particles` is not a number; `ValueError` if
    `particles` is not positive.

    Source: Bao & Du, SIAM J. Sci. Comput. 25 (2004).
    """

    equation: GrossPitaevskii
    particles: Number = 1.0

    def __check_init__(self):
        if not isinstance(self.equation, GrossPitaevskii):
            raise TypeError(f"`equation` must be a `GrossPitaevskii`; got {self.equation!r}.")
        check_number("particles", self.particles, positive=True)

    @property
    def fft(self) -> AbstractTransform:
        """The transform of `equation`."""
        return self.equation.fft

    @property
    def transform(self) -> AbstractTransform:
        """The transform that computes states."""
        return self.equation.transform

    @property
    def in_structure(self) -> Structure:
        return self.equation.in_structure

    def state(self, fields: Shaped[Array | np.ndarray, "*fields"]) -> Inexact[Array, "*spectrum"]:
        """Return the state for a field `(*batch, nx, ny, nz)`, scaled to the number of particles."""
        return self._scaled(self.equation.state(fields))

    def fields(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        return self.equation.fields(u)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        rate = _vector.times_unit(-1j, jnp.ones((), u.real.dtype), self.equation.nonlinear(t, u, args))
        layout = self.transform.out_layout
        falling = layout.vdot(u, rate + _vector.times(self._linear(u), u)).real / layout.vdot(u, u).real
        return rate - _vector.times(self._for_each(falling), u)

    def resolvent(self, u: Inexact[Array, "*spectrum"], h: Number) -> Inexact[Array, "*spectrum"]:
        self.check(u)
        return self._scaled(_vector.times(1 / (1 - _vector.cast(h, u) * self._linear(u)), u))

    def _linear(self, u: Array) -> Array:
        """Return the factor of `∇²/2`."""
        return jnp.imag(self.equation.linear(u))

    def _scaled(self, u: Array) -> Array:
        number = self.equation.particles(u)
        return _vector.times(self._for_each(jnp.sqrt(_vector.cast(self.particles, u) / number)), u)

    def _for_each(self, factor: Array) -> Array:
        """Return one factor for each state of a batch with the axes of spectra."""
        return factor.reshape(*factor.shape, *[1] * self.fft.decomposition.ndim)
