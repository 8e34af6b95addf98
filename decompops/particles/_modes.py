"""Operators on the modes of deposited fields: what the window and the grid did to them, and how to undo it."""

import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact

from .._common.check import Integer, as_number, check_count, taking
from .._core.window import Window
from .._operator.transform import AbstractTransform
from ..spectral import AbstractSpectralOperator, _vector
from ..spectral._check import check_periodic
from ..spectral._modes import Components
from ._windows import WindowName, window_of


class Deconvolution(AbstractSpectralOperator):
    """Divide each mode of a field by the Fourier transform of the window with which particles were deposited.

    A deposit convolves the density of the particles with the window, so it damps modes with short wavelengths. Along
    each axis, the transform of a window that is w cells wide is `(sin(x) / x)^w`, with `x = k * spacing / 2`. The
    division also enlarges the images of modes that are beyond the grid (aliasing). `ParticleMesh.deposit_interlaced`
    removes the strongest images.

    !!! example

        ```python
        density = particles.Deconvolution(fft, "tsc")(pm.deposit_interlaced(p))
        ```

    **Arguments:**

    - `fft`: the transform of a periodic grid, built with a `shape`; with `real=True` for real fields.
    - `window`: the window, as in `ParticleMesh`.
    - `times`: how often to divide, 1 or 2. Twice also undoes a `read` with the same window.

    **Returns** (when called): a field of the shape and dtype of the field.

    **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` has no `shape` or is not periodic, for
    an unknown window, and for other `times`.

    Source: Hockney & Eastwood, Computer Simulation Using Particles (1988), section 5-3; Jing, ApJ 620 (2005).
    """

    fft: AbstractTransform
    window: WindowName | Window = eqx.field(static=True)
    times: int = eqx.field(static=True, default=1, converter=taking(Integer, as_number))

    def __check_init__(self):
        shape = check_periodic(self.fft)
        if len(self.fft.transformed) < len(shape):
            raise ValueError(f"`fft` must transform all {len(shape)} axes; got a transform of {self.fft.transformed}.")
        window_of(self.window)
        if check_count("times", self.times) > 2:
            raise ValueError(f"`times` must be 1 or 2; got {self.times}.")

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return _vector.times(deconvolution(self.transform, spectrum, self.window, self.times), spectrum)


class UnbiasedDeconvolution(Deconvolution):
    """A deconvolution for power spectra. A Nyquist mode is the sum of two modes of the same power, one for each sign.

    Divided by the root of two, it has the power of one.
    """

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        factors = deconvolution(self.transform, spectrum, self.window, self.times, nyquist=math.sqrt(0.5))
        return _vector.times(factors, spectrum)


class Interlacing(AbstractSpectralOperator):
    """From two fields to one: the mean of a deposit on the grid and a deposit on the grid shifted by half a cell."""

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = (2, "scalar")

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        here, shifted = _vector.components(spectrum, self.decomposition.ndim)
        every, without = angles(self, spectrum), angles(self, spectrum, nyquist=False)
        half = _vector.total(every) / 2
        turned = _vector.times(jnp.cos(half), shifted) + _vector.times_unit(-1j, jnp.sin(half), shifted)
        # The shifted grid sees only the other phase of a Nyquist mode.
        nyquist = _vector.total((a != b).astype(half.dtype) for a, b in zip(every, without))
        own = jnp.where(nyquist > 0, 1, 0.5).astype(half.dtype)
        return _vector.times(own, here) + _vector.times(1 - own, turned)


def angles(operator: AbstractSpectralOperator, spectrum: Array, *, nyquist: bool = True) -> list[Array]:
    """Return `k * spacing` along each axis: from -π to π, whatever the lengths of the box."""
    along = zip(operator.wavenumbers(spectrum, nyquist=nyquist), spacings(operator.fft, spectrum))
    return [k * spacing for k, spacing in along]


def spacings(fft: AbstractTransform, like: Array) -> list[Array]:
    """Return the distance between two points along each axis, in the precision of `like`."""
    return [_vector.cast(length, like) / n for length, n in zip(fft.box_lengths, fft.decomposition.shape)]


def deconvolution(
    fft: AbstractTransform, like: Array, window: WindowName | Window, times: int, nyquist: float = 1.0
) -> Array:
    """Return the factors that undo `times` windows in a spectrum of `fft`, in the precision of `like`.

    Along each axis, the factor of the Nyquist mode is multiplied by `nyquist`.
    """
    factors = []
    for basis, n in zip(fft.bases, fft.decomposition.shape):
        angles = basis.wavenumbers(n) / n
        damping = window_of(window).transform(angles) ** float(times)
        factors.append(np.where(np.abs(angles) > math.pi * (1 - 0.5 / n), nyquist, 1) / damping)
    return fft.separable(factors, dtype=jnp.finfo(like.dtype).dtype)
