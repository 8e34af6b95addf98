"""`Gravity`: the force of particles on each other, by Poisson's equation on the grid."""

import math
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Inexact

from .._common.box import Number
from .._common.check import Integer, as_number, check_choice, check_number, taking
from .._core.window import Window
from .._operator.fft import FFT
from .._operator.transform import AbstractTransform
from ..spectral import AbstractSpectralOperator, _vector
from ..spectral._modes import Components
from ._home import home_of
from ._mesh import ParticleMesh
from ._modes import angles, deconvolution, spacings
from ._particles import Particles, one_each
from ._windows import WindowName


class Gravity(eqx.Module):
    """The acceleration of particles that attract each other in a periodic box: `-∇φ`, with `∇²φ = strength * (ρ - ρ̄)`.

    The masses are deposited on the grid, Poisson's equation is solved there, and the particles read the gradient. The
    same window deposits and reads, so no particle attracts itself, and the total momentum is conserved.

    With the default gradient and Laplacian, the modes of the grid are exact. The `gradient` of finite differences of
    order 4 and the exact Laplacian are the choice of FastPM and JaxPM. With differences of order 2 for both, the force
    is that of the textbook (Hockney & Eastwood 1988, section 5-5).

    !!! example

        ```python
        gravity = particles.Gravity(pm, 4 * np.pi * G, mass="mass")
        acceleration = gravity(p)              # one row for each slot
        ```

    **Arguments:**

    - `mesh`: the particles' grid, periodic along all axes.
    - `strength`: a number, in units of acceleration times length^(d - 1) per mass in d dimensions. It may be traced.
        Particles repel each other if it is negative, as equal charges do. With the default `None`, it is the inverse of
        the mean density, so that the source is the density contrast `ρ / ρ̄ - 1`, as in cosmology.
    - `mass`: the name of the attribute that holds the masses, of shape `(slots,)`; `None` for one per particle.
    - `laplacian`: "exact", or the order 2 of finite differences.
    - `gradient`: "exact", or the order 2 or 4 of finite differences.
    - `deconvolutions`: how often the force is divided by the transform of the window: 0, 1 (as if the deposit were
        exact) or 2 (the reading, too). This sharpens the force at distances of a few cells, and amplifies noise.

    **Returns** (when called with particles): their accelerations, of shape `(slots, ndim)`: zeros in slots without a
    particle, and NaN on a device whose particles are not all its own.

    **Raises:** `TypeError` if `mesh` is not a `ParticleMesh`, or if `strength` is not one real number; `ValueError` if
    an axis is open, and for unknown options. Calls raise `ValueError` if the particles have no such mass, and
    `TypeError` if it is not real.
    """

    mesh: ParticleMesh
    strength: Number | None = None
    mass: str | None = eqx.field(static=True, kw_only=True, default=None)
    laplacian: Literal["exact", 2] = eqx.field(
        static=True, kw_only=True, default="exact", converter=taking(Literal["exact", 2] | Integer, as_number)
    )
    gradient: Literal["exact", 2, 4] = eqx.field(
        static=True, kw_only=True, default="exact", converter=taking(Literal["exact", 2, 4] | Integer, as_number)
    )
    deconvolutions: Literal[0, 1, 2] = eqx.field(
        static=True, kw_only=True, default=0, converter=taking(Literal[0, 1, 2] | Integer, as_number)
    )

    def __check_init__(self):
        if not isinstance(self.mesh, ParticleMesh):
            raise TypeError(f"`mesh` must be a `ParticleMesh`; got {self.mesh!r}.")
        self.mesh.check_periodic()
        if self.strength is not None:
            check_number("strength", self.strength)
        choices = {"laplacian": ("exact", 2), "gradient": ("exact", 2, 4), "deconvolutions": (0, 1, 2)}
        for name, known in choices.items():
            check_choice(name, getattr(self, name), known)

    def field(self, p: Particles) -> Float[Array, "ndim *grid"]:
        """Return the acceleration on the grid, a vector field."""
        return _field(*self._in_program(p))

    def __call__(self, p: Particles) -> Float[Array, "slots ndim"]:
        return _accelerations(*self._in_program(p))

    def _in_program(self, p: Particles) -> tuple["Gravity", Particles]:
        """Return the arguments of a compiled program, in which `strength` is an array, so that it may change."""
        home_of(p, self.mesh._home)
        if self.mass is not None and self.mass not in p.attributes:
            raise ValueError(f"`mass` must be the name of an attribute of the particles; got {self.mass!r}.")
        if self.mass is not None:
            one_each(self.mass, p, p[self.mass])
        return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, float | int) else x, self), p


@eqx.filter_jit
def _accelerations(gravity: Gravity, p: Particles) -> Array:
    return gravity.mesh.read(p, _field(gravity, p))


@eqx.filter_jit
def _field(gravity: Gravity, p: Particles) -> Array:
    mesh, dec = gravity.mesh, gravity.mesh.decomposition
    density = mesh.deposit(p, None if gravity.mass is None else p[gravity.mass])
    half = jnp.ones((), density.dtype)
    if gravity.strength is None:
        source = density / jnp.broadcast_to(dec.mean(density), density.shape)
    else:
        # The numbers of 32 bits may hold neither the strength over the volume of a cell, in SI units, nor the source,
        # in small boxes. So `_Attraction` divides by the other half of the volume, between two lengths of cells.
        half = math.prod((jnp.sqrt(jnp.asarray(h, density.dtype)) for h in dec.spacing), start=half)
        source = density / half * jnp.asarray(gravity.strength, density.dtype)
    options = gravity.laplacian, gravity.gradient, gravity.deconvolutions
    attraction = _Attraction(FFT(dec, real=True), half, mesh.window, *options)
    return attraction(source)


class _Attraction(AbstractSpectralOperator):
    """The vector field `-∇φ` of a source `∇²φ` times `divisor`, with the options of `Gravity`."""

    fft: AbstractTransform
    divisor: Array
    window: WindowName | Window = eqx.field(static=True)
    laplacian: Literal["exact", 2] = eqx.field(static=True)
    gradient: Literal["exact", 2, 4] = eqx.field(static=True)
    deconvolutions: int = eqx.field(static=True)
    components: ClassVar[tuple[Components, Components]] = ("scalar", "vector")
    inverts: ClassVar[bool] = True

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        every, spacing = angles(self, spectrum), spacings(self.fft, spectrum)
        along = zip(angles(self, spectrum, nyquist=False), spacing)
        nabla = self.nabla(spectrum)._replace(k=tuple(_differences(self.gradient, *pair) for pair in along))
        if self.laplacian == "exact":
            squared = _vector.squared(self.wavenumbers(spectrum))
        else:
            squared = _vector.total((2 * jnp.sin(angle / 2) / h) ** 2 for angle, h in zip(every, spacing))
        factor = _vector.inverse(squared) / self.divisor
        if self.deconvolutions:
            factor = factor * deconvolution(self.transform, spectrum, self.window, self.deconvolutions)
        return nabla.gradient(_vector.times(factor, spectrum))


def _differences(order: Literal["exact", 2, 4], angle: Array, spacing: Array) -> Array:
    """Return the wavenumber that a derivative by central differences multiplies by, with the unit i."""
    match order:
        case 2:
            angle = jnp.sin(angle)
        case 4:
            angle = (8 * jnp.sin(angle) - jnp.sin(2 * angle)) / 6
    return angle / spacing
