"""Incompressible magnetohydrodynamics."""

from typing import Any

from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.box import Number
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_periodic
from ..spectral._dealiasing import AbstractDealiasing
from ._equation import AbstractEquation, Time
from ._navier_stokes import NavierStokes, momentum_rate


class Magnetohydrodynamics(AbstractEquation):
    """The incompressible flow of a conducting fluid and its magnetic field b, in two or three dimensions.

    The equations are `∂u/∂t = P(∇·(b b - u u) + f) + ν ∇²u - γ u` and `∂b/∂t = ∇ × (u × b) + η ∇²b`. P is the
    projection onto divergence-free fields. b has the unit of a velocity: it is the magnetic field divided by `√(μ₀ ρ)`,
    with the density ρ (Biskamp, Magnetohydrodynamic Turbulence, 2003). The components of the state are the components
    of u, and then the components of b. Both must be divergence-free at the beginning;
    `decompops.spectral.LerayProjection` removes a divergence. All later states are then divergence-free. The mean of b
    is constant, so a uniform magnetic field is a part of the state.

    Without viscosity and resistivity, the means of the energy `(u² + b²)/2` and of the cross-helicity `u·b` are
    conserved. If b has no mean, the mean of the magnetic helicity `a·b` with `∇ × a = b` is conserved, too; in two
    dimensions, the mean of a². Each evaluation of the right-hand side takes 14 transforms in three batched calls, or
    seven transforms in 2D.

    !!! example

        ```python
        equation = pde.Magnetohydrodynamics(pde.NavierStokes(fft, viscosity=1e-3), resistivity=1e-3)
        u = equation.state(jnp.concatenate([velocity, magnetic]))
        ```

    **Arguments:**

    - `equation`: the equation of the velocity, a `NavierStokes` with its viscosity, drag and forces. Its `forcing` gets
        the velocity only.
    - `resistivity`: η, the magnetic diffusivity, a nonnegative number. It may be traced, so that JAX can differentiate
        with respect to it.

    **Raises:** `TypeError` if `equation` is not a `NavierStokes`; `ValueError` if its transform is not periodic or has
    more than three axes, or if `resistivity` is negative.
    """

    equation: NavierStokes
    resistivity: Number

    def __check_init__(self):
        if not isinstance(self.equation, NavierStokes):
            raise TypeError(f"`equation` must be a `NavierStokes`; got {self.equation!r}.")
        check_periodic(self.fft)
        if self.fft.decomposition.ndim not in (2, 3):
            raise ValueError(f"`equation` must have a grid of two or three axes; got {self.fft!r}.")
        check_number("resistivity", self.resistivity, least=0)

    @property
    def fft(self) -> AbstractTransform:
        """The transform of `equation`."""
        return self.equation.fft

    @property
    def dealiasing(self) -> AbstractDealiasing | None:
        """The dealiasing rule of `equation`."""
        return self.equation.dealiasing

    @property
    def components(self) -> int:
        """The number of components of a state."""
        return 2 * self.fft.decomposition.ndim

    def linear(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        ndim = self.fft.decomposition.ndim
        decay = -_vector.cast(self.resistivity, u) * _vector.squared(self.wavenumbers(u))
        return _vector.stack((*[self.equation.linear(u)] * ndim, *[decay] * ndim), ndim)

    def nonlinear(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        ndim = self.fft.decomposition.ndim
        parts = _vector.components(self.to_grid(u), ndim)
        v, b = parts[:ndim], parts[ndim:]
        flow = _vector.stack(_vector.components(u, ndim)[:ndim], ndim)
        rate = momentum_rate(self.equation, lambda i, j: v[i] * v[j] - b[i] * b[j], t, flow, args)
        # The curl of the electromotive force u × b, which has one component in two dimensions.
        turned = [v[i] * b[j] - v[j] * b[i] for i, j in _vector.planes(ndim)]
        force = self.from_grid(_vector.stack(turned, ndim) if ndim == 3 else turned[0])
        return _vector.joined((rate, self.nabla(u).curl_of_axial(force)), ndim)

    def speeds(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        """Return the speeds of Alfvén waves: the sum of the absolute values of u and b, for each axis."""
        ndim = self.fft.decomposition.ndim
        parts = [abs(part) for part in _vector.components(self.fields(u), ndim)]
        return _vector.stack((v + b for v, b in zip(parts[:ndim], parts[ndim:])), ndim)

    def admissible(self, rate: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        ndim, nabla = self.fft.decomposition.ndim, self.nabla(rate)
        parts = _vector.components(rate, ndim)
        halves = (_vector.stack(half, ndim) for half in (parts[:ndim], parts[ndim:]))
        return _vector.joined(map(nabla.projection, halves), ndim)
