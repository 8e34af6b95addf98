"""Forces that drive turbulence by its own velocity: linear forcing, and a constant power in a shell of modes."""

import math
from typing import Any, Literal, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Bool, Inexact

from .._common.box import Number, Numbers
from .._common.broadcast import aligned
from .._common.check import as_number, as_tuples, check_number, is_one_of, taking
from .._operator.transform import AbstractTransform
from ..spectral import _vector, mean_square
from ..spectral._check import check_fft, check_periodic
from ..spectral._dealiasing import AbstractDealiasing, Truncate, check_dealiasing
from ..spectral._modes import AbstractSpectral, Components
from ._equation import Time
from ._forcing import check_term_state


# The smallest and the largest |k| of the modes that a force acts on. Both belong to the shell.
Shell = tuple[float | int, float | int]
# The field whose equation the force belongs to.
Of = Literal["velocity", "vorticity"]
ROUNDING = 1e-5  # Wavenumbers on the bounds of a shell have the rounding errors of single precision.


def plain_shell(shell: Any) -> Any:
    """Return a pair as a tuple of Python's numbers."""
    shell = as_tuples(shell)
    return tuple(map(as_number, shell)) if isinstance(shell, tuple) else shell


def check_shell(shell: Any) -> Shell:
    """Return `shell`. Raises `ValueError` unless it holds two positive numbers in increasing order."""
    fits = isinstance(shell, tuple) and len(shell) == 2 and all(isinstance(bound, float | int) for bound in shell)
    if not (fits and 0 < shell[0] <= shell[1] < float("inf")):
        raise ValueError(f"`shell` must be a pair of numbers with 0 < k_min <= k_max; got {shell!r}.")
    return shell


def check_flow(fft: Any, of: Any) -> tuple[int, ...]:
    """Return the shape of the grid. Raises an error unless `fft` is the transform of a periodic flow, and fits `of`."""
    shape = check_periodic(fft, real=True)
    if not is_one_of(of, get_args(Of)) or len(shape) < 2 or (of == "vorticity" and len(shape) != 2):
        raise ValueError(
            '`of` must be "velocity" on a grid of two or more axes, or "vorticity" on a grid of two axes; '
            f"got {of!r} on a grid of shape {shape}."
        )
    return shape


def in_shell(squared: Any, shell: Shell) -> Any:
    """Return where k² is in the shell, for an array of k²."""
    lower, upper = _squared_bounds(shell)
    return (squared >= lower) & (squared <= upper)


def _squared_bounds(shell: Shell) -> tuple[float, float]:
    return (shell[0] * (1 - ROUNDING)) ** 2, (shell[1] * (1 + ROUNDING)) ** 2


def check_has_modes(term: AbstractSpectral, shell: Shell) -> None:
    """Raise `ValueError` if no mode of a state is in the shell, so that the force would always be zero.

    A box of traced lengths is not checked.
    """
    transform, shape = term.transform, check_fft(term.fft)
    if any(isinstance(length, Tracer) for length in term.fft.box_lengths):
        return
    lines = []  # The squared wavenumbers along each axis.
    for axis in transform.transformed:
        kept = (transform.modes or shape)[axis]
        lines.append((2 * math.pi / float(term.fft.box_lengths[axis]) * np.arange(kept // 2 + 1)) ** 2)
    lower, upper = _squared_bounds(shell)
    sums = np.zeros(1)
    for line in lines[:-1]:
        sums = np.add.outer(sums, line[line <= upper]).ravel()
    # All sums of a grid of three long axes would take gigabytes.
    first, end = np.searchsorted(lines[-1], lower - sums), np.searchsorted(lines[-1], upper - sums, "right")
    if (first < end).any():
        return
    least, most = min((line[1] for line in lines if len(line) > 1), default=math.inf), sum(line[-1] for line in lines)
    raise ValueError(
        f"`shell` must contain a mode of the box; got {shell}, but |k| of a mode is at least {math.sqrt(least):.3g}, "
        f"and at most {math.sqrt(most):.3g}."
    )


def _modes_in(term: AbstractSpectral, u: Array, shell: Shell) -> Bool[Array, "*#spectrum"]:
    return aligned(in_shell(_vector.squared(term.wavenumbers(u)), shell), u)


class LinearForcing(AbstractSpectral):
    """A force that is proportional to the flow itself: `A u`, without the mean of u.

    The force keeps turbulence stationary in the whole flow, and not only at large scales, as the production by a mean
    shear does (Lundgren, Annual Research Briefs, Center for Turbulence Research, 2003). It injects the power `2 A K`
    for the kinetic energy K of the forced modes. In a periodic box, the integral scale becomes about a fifth of the
    length of the box (Rosales & Meneveau, Phys. Fluids 17, 2005). The force acts on velocities and on vorticities. In a
    `QuasiGeostrophic` flow with a `deformation_radius`, it is `A q`, and K includes the potential energy.

    !!! example

        ```python
        equation = pde.NavierStokes(fft, 1e-3, forcing=pde.LinearForcing(fft, 0.2))
        ```

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `rate`: A, a number. It may be traced, so that JAX can differentiate with respect to it.
    - `shell`: the smallest and the largest |k| of the modes that the force acts on. The default is all modes except the
        mean.

    **Raises:** `ValueError` if `fft` takes complex fields or is not periodic, if `shell` is not a pair of increasing
    positive numbers, or if `shell` contains no mode; `TypeError` if `rate` is not a number.
    """

    fft: AbstractTransform
    rate: Number
    shell: Shell | None = eqx.field(default=None, static=True, converter=taking(Numbers | None, plain_shell))
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)
        check_flow(self.fft, "velocity")
        check_number("rate", self.rate)
        if self.shell is not None:
            check_has_modes(self, check_shell(self.shell))

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        if self.shell is not None:
            forced = _modes_in(self, u, self.shell)
        else:
            forced = aligned(_vector.squared(self.wavenumbers(u)) > 0, u)
        return jnp.where(forced, _vector.times(_vector.cast(self.rate, u), u), 0)


class PowerForcing(AbstractSpectral):
    """A force that injects a constant power: `P u / (2 K)` in a shell of modes.

    u are the modes of the velocity with `k_min <= |k| <= k_max`, and K is their kinetic energy: half the mean of |u|²
    over the volume. So the mean of the velocity times the force is P at every time (Ghosal, Lund, Moin & Akselvoll, J.
    Fluid Mech. 286, 1995; Machiels, Phys. Rev. Lett. 79, 1997). Without energy in the shell, the force is zero.

    !!! example

        ```python
        force = pde.PowerForcing(fft, 0.1, shell=(1.0, 2.5))
        equation = pde.NavierStokes(fft, 1e-3, forcing=force)
        ```

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `power`: P, the power per unit of mass, a number. It may be traced, so that JAX can differentiate with respect to
        it.
    - `shell`: the smallest and the largest |k| of the forced modes, in radians per unit of length. Both belong to the
        shell.
    - `of`: "velocity", or "vorticity" for `VorticityNavierStokes` and `QuasiGeostrophic`: the force is then the curl of
        the force above.
    - `deformation_radius`: the same as the argument of `QuasiGeostrophic`, which relates the state to the velocity.

    **Raises:** `ValueError` if `fft` takes complex fields or is not periodic, if `shell` is not a pair of increasing
    positive numbers or contains no mode, if `of` is unknown, if `of` is "vorticity" and the grid does not have two
    axes, or if `deformation_radius` is not positive; `TypeError` if `power` or `deformation_radius` is not a number.
    """

    fft: AbstractTransform
    power: Number
    shell: Shell = eqx.field(static=True, converter=taking(Numbers, plain_shell))
    of: Of = eqx.field(kw_only=True, default="velocity", static=True)
    deformation_radius: Number | None = eqx.field(kw_only=True, default=None)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    @property
    def components(self) -> Components:
        """The components of the states that the force acts on."""
        return components_of(self.of)

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)
        check_flow(self.fft, self.of)
        check_number("power", self.power)
        if self.deformation_radius is not None:
            check_number("deformation_radius", self.deformation_radius, positive=True)
        check_has_modes(self, check_shell(self.shell))

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        forced = jnp.where(_modes_in(self, u, self.shell), u, 0)
        if self.of == "velocity":
            double = jnp.sum(mean_square(self.transform, forced), -1)  # Twice the energy.
        else:
            k = self.wavenumbers(u)
            if self.deformation_radius is not None:  # The state is the potential vorticity.
                squared = _vector.squared(k)
                share = squared * _vector.inverse(squared + _vector.cast(self.deformation_radius, u) ** -2)
                forced = _vector.times(share, forced)
            double = mean_square(self.transform, _vector.times(_vector.inverse(_vector.length(k)), forced))
        rate = _vector.cast(self.power, u) * _vector.inverse(double)
        lead = self.fft.decomposition.ndim + (self.of == "velocity")
        return _vector.times(rate.reshape(*rate.shape, *[1] * lead), forced)


def components_of(of: Of) -> Components:
    """Return the components of the states of an equation for the velocity or the vorticity."""
    return "vector" if of == "velocity" else "scalar"
