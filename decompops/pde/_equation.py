"""What a partial differential equation is to the integrators."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from equinox import AbstractVar
from jax import Array
from jaxtyping import Complex, Inexact, Shaped

from .._operator.fft import FFT3D
from .._operator.transform import Lengths, Number, Wavenumbers
from ..spectral import _vector
from ..spectral._operator import Components, check_components, grid_of, wavenumbers_of


Time = Number


class AbstractEquation(eqx.Module):
    """An equation `∂u/∂t = L u + N(t, u)` for the spectrum u of periodic fields, with L diagonal.

    Called as `equation(t, u, args)`, which is what diffrax asks of a vector field; split in two for exponential
    integrators. The state is `equation.fft(field)`: of shape `(*batch, *modes)` or, for vectors,
    `(*batch, 3, *modes)`. It holds the modes that products leave free of aliasing, and no others: `equation.fft` is
    not the transform that the equation was made of, but one that keeps these. For diffrax' sake there is `RealSpace`,
    the same for fields.
    """

    fft: AbstractVar[FFT3D]
    lengths: AbstractVar[Lengths]
    components: ClassVar[Components] = "scalar"

    @abc.abstractmethod
    def linear(self, u: Complex[Array, "..."]) -> Inexact[Array, "..."]:
        """The factor that L is for each mode of `u`: real or complex, in its precision, broadcastable against it."""

    @abc.abstractmethod
    def nonlinear(self, t: Time, u: Complex[Array, "..."], args: Any = None) -> Complex[Array, "..."]:
        """N(t, u)."""

    def __call__(self, t: Time, u: Complex[Array, "..."], args: Any = None) -> Complex[Array, "..."]:
        """∂u/∂t."""
        self.check(u)
        return _vector.times(self.linear(u), u) + self.nonlinear(t, u, args)

    def check(self, u: Any) -> None:
        """Raise `TypeError` or `ValueError` if `u` is no state of this equation."""
        shape = self.fft.plan(grid_of(self.fft)).target.shape
        lead = "*batch, 3" if self.components == "vector" else "*batch"
        if not jnp.iscomplexobj(u):
            raise TypeError(f"`u` must be a spectrum, as `equation.fft` returns it; got {jnp.result_type(u)}.")
        if u.shape[-3:] != shape or (self.components == "vector" and u.shape[-4:-3] != (3,)):
            raise ValueError(f"`u` must have shape ({lead}, {', '.join(map(str, shape))}); got {u.shape}.")

    def wavenumbers(self, u: Complex[Array, "..."], *, nyquist: bool = True) -> Wavenumbers:
        """Those of the spectrum `u`, in its precision; `nyquist` as of `FFT3D.wavenumbers`."""
        return wavenumbers_of(self.fft, self.lengths, u, nyquist=nyquist)


class RealSpace(eqx.Module):
    """An equation for fields instead of spectra: `(t, u, args) -> ∂u/∂t`, both on the grid.

    For diffrax, which knows real numbers best. It transforms twice more in each evaluation.
    """

    equation: AbstractEquation

    def __call__(self, t: Time, u: Shaped[Array, "..."], args: Any = None) -> Shaped[Array, "..."]:
        check_components(self.equation.components, u)
        fft = self.equation.fft
        return fft.inverse(self.equation(t, fft(u), args))


def velocity_and_vorticity(fft: FFT3D, k: Wavenumbers, u: Array) -> tuple[_vector.Parts, _vector.Parts]:
    """The components of u and ∇×u on the grid, transformed in one batched call."""
    fields = fft.inverse(jnp.concatenate([u, _vector.curl(k, u)], axis=-4))
    return _vector.components(fields), _vector.components(fields[..., 3:, :, :, :])


def cast(value: Any, like: Complex[Array, "..."]) -> Array:
    """A parameter in the precision of the spectrum `like`."""
    return jnp.asarray(value, jnp.finfo(like.dtype).dtype)
