"""`NUFFT`: Fourier transforms between points anywhere in the box and modes. Each is a deposit or a read, and an FFT."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.check import Real, as_number, check_flag, check_inexact, check_number, taking
from .._common.host import device_array
from .._common.primes import has_prime_above
from .._core.decomposition import Decomposition, check_decomposition
from .._operator.fft import FFT
from .._operator.planned import pad
from ..spectral._vector import times
from ._mesh import ParticleMesh
from ._particles import Particles
from ._semicircle import growth, semicircle


class NUFFT(eqx.Module):
    """The non-uniform fast Fourier transform: between particles anywhere in a periodic box, and Fourier modes.

    Type 1 sums waves at the particles: mode `k` of the spectrum is `sum_j c_j exp(-i k x_j)`. Type 2 is its adjoint: it
    evaluates the Fourier series of a spectrum at the particles, `sum_k f_k exp(i k x_j)`. Spectra have the modes, the
    order and the sharding that `FFT(decomposition, real=real)` gives them. If the particles are the points of the grid,
    type 1 is this FFT, and type 2 is its inverse times the number of points.

    The particles are those of `particle_mesh`, which places them on the devices and moves them between devices.

    Along an axis with an even number `n` of modes, the mode `n / 2` stands for both signs of its wavenumber, as in
    `FFT.wavenumbers`. Type 1 returns the mean of the two modes, and type 2 takes one half of each. So both use a cosine
    along this axis, and real values have real transforms.

    !!! example

        ```python
        nufft = particles.NUFFT(dec, tolerance=1e-6)
        p = nufft.particle_mesh.place(positions, strength=c)
        spectrum = nufft.type1(p, p["strength"])
        values = nufft.type2(p, spectrum)          # One for each slot.
        ```

    **Arguments:**

    - `decomposition`: the modes: `shape` holds their numbers, and `box` the lengths of the periodic box.
    - `tolerance`: the relative error of the results in the root mean square, for one axis; see docs/nufft.md.
    - `oversampling`: by how much the grid that the particles are deposited on is finer than the modes, at least 1.1.
        With 1.25, the FFT is smaller than with 2, but particles touch more cells.
    - `real`: whether values at particles are real, and spectra half spectra.

    **Raises:** `TypeError` if `decomposition` is not a `Decomposition`; `ValueError` for a `tolerance` that cannot be
    reached, or for numbers out of range.

    **Source:** Barnett, Magland & af Klinteberg, SIAM J. Sci. Comput. 41(5), C479 (2019).
    """

    decomposition: Decomposition
    tolerance: float | int = eqx.field(static=True, converter=taking(Real, as_number), default=1e-6)
    oversampling: float | int = eqx.field(static=True, converter=taking(Real, as_number), default=2.0)
    real: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_decomposition(self.decomposition)
        check_flag("real", self.real)
        check_number("oversampling", self.oversampling, least=1.1)
        if not 0 < check_number("tolerance", self.tolerance) < 1:
            raise ValueError(f"`tolerance` must be between 0 and 1; got {self.tolerance!r}.")
        semicircle(self.tolerance, self.oversampling)  # Raises an error if no window reaches the tolerance.

    @property
    def particle_mesh(self) -> ParticleMesh:
        """The particles and the fine grid that they are deposited on. Its methods place, exchange and gather them."""
        dec, window = self.decomposition, semicircle(self.tolerance, self.oversampling)
        shape = fine_grid(dec, [max(self.oversampling * n, 2.0 * window.width) for n in dec.shape])
        return ParticleMesh(Decomposition(dec, shape=shape, pad=True), window)

    @property
    def _growth(self) -> float:
        """By how much the division by the window's transform enlarges rounding errors."""
        points, modes = self.particle_mesh.decomposition.shape, self.decomposition.shape
        window = semicircle(self.tolerance, self.oversampling)
        return math.prod(growth(window, fine / n) for fine, n in zip(points, modes) if n > 1)

    def type1(self, p: Particles, strengths: Shaped[Array | np.ndarray, "slots ..."]) -> Inexact[Array, "*spectrum"]:
        """Return the sum of the waves of all particles: `sum_j c_j exp(-i k x_j)` for each mode `k`.

        **Arguments:**

        - `p`: particles of `particle_mesh`. Each must be on the device that owns its cell, where `exchange` brings it.
        - `strengths`: the numbers `c_j`, of shape `(slots, *components)`, real or complex; with `real=True`, real.

        **Returns:** a complex spectrum of shape `(*components, *fft.out_layout.shape)` for
        `fft = FFT(decomposition, real=real)`. It is not scaled.

        **Raises:** `TypeError` for strengths that are not real or complex, and for complex strengths if `real` is True.
        `ValueError` for another number of slots, and for a precision that is too low for the tolerance.
        """
        strengths = device_array(strengths, "strengths", self.decomposition.mesh)
        check_precision(self, "strengths", p, strengths)
        if self.real and jnp.iscomplexobj(strengths):
            raise TypeError(f"`strengths` must be real with `real=True`; got {strengths.dtype}.")
        return _type1(self, p, strengths)

    def type2(self, p: Particles, spectrum: Shaped[Array | np.ndarray, "*spectrum"]) -> Inexact[Array, "slots ..."]:
        """Return the Fourier series at all particles: `sum_k f_k exp(i k x_j)` for each particle.

        **Arguments:**

        - `p`: particles of `particle_mesh`. Each must be on the device that owns its cell, where `exchange` brings it.
        - `spectrum`: the numbers `f_k`, of the shape that `type1` returns, with or without padding. With `real=True`,
            this is the half spectrum of a real field. The sum is over all modes, as in `jnp.fft.irfftn`.

        **Returns:** numbers of shape `(slots, *components)`, real with `real=True` and complex otherwise. They are not
        scaled. Slots without a particle hold zeros.

        **Raises:** `ValueError` for a spectrum of another shape, and for a precision that is too low for the tolerance.
        """
        spectrum = device_array(spectrum, "spectrum", self.decomposition.mesh)
        check_precision(self, "spectrum", p, spectrum)
        FFT(self.decomposition, real=self.real).out_layout.check(spectrum, "spectrum")
        return _type2(self, p, spectrum)

    def _fft(self, norm: Any) -> FFT:
        """Return the transform of the fine grid that keeps only the modes."""
        fine = self.particle_mesh.decomposition
        return FFT(fine, real=self.real, norm=norm, modes=self.decomposition.shape, nyquist=True)

    def _deconvolved(self, spectrum: Array, nyquist: float) -> Array:
        """Divide a spectrum by the Fourier transform of the window, and multiply the Nyquist modes by `nyquist`."""
        window, fft, factors = semicircle(self.tolerance, self.oversampling), self._fft("backward"), []
        for basis, n, fine in zip(fft.bases, self.decomposition.shape, fft.decomposition.shape):
            turns = basis.wavenumbers(n)  # 2π times the number of the mode.
            factors.append(np.where(np.abs(turns) == math.pi * n, nyquist, 1) / window.transform(turns / fine))
        return times(fft.separable(factors, dtype=jnp.finfo(spectrum.dtype).dtype), spectrum)


@eqx.filter_jit
def _type1(nufft: NUFFT, p: Particles, strengths: Array) -> Array:
    spectrum = nufft._fft("backward")(nufft.particle_mesh.deposit(p, strengths))
    return nufft._deconvolved(spectrum, 0.5)  # The transform has added the modes n / 2 and -n / 2.


@eqx.filter_jit
def _type2(nufft: NUFFT, p: Particles, spectrum: Array) -> Array:
    series = nufft._fft("forward").inverse  # It is not scaled, and shares out the Nyquist modes.
    spectrum = pad(spectrum, series.in_layout.blocks)
    return nufft.particle_mesh.read(p, series(nufft._deconvolved(spectrum, 1.0)))


def check_precision(nufft: Any, name: str, p: Particles, values: Array) -> None:
    """Raise an error for values that are not inexact, or if rounding errors exceed the tolerance of `nufft`."""
    check_inexact(name, values)
    for what, dtype in (("positions", p.positions.dtype), (name, values.dtype)):
        eps = float(jnp.finfo(dtype).eps)
        least, rounding = 8 * eps, eps / 2 * nufft._growth
        if nufft.tolerance < least:
            raise ValueError(
                f"`tolerance` must be at least {least:.0e} for {dtype} {what}; got {nufft.tolerance!r}. Pass a larger "
                f"tolerance, or {what} of double precision."
            )
        if nufft.tolerance < rounding:
            raise ValueError(
                f"`tolerance` must be above rounding errors of {rounding:.0e} with `oversampling="
                f"{nufft.oversampling!r}` for {dtype} {what}; got {nufft.tolerance!r}. Pass a larger tolerance or "
                f"`oversampling`, or {what} of double precision."
            )


def fine_grid(decomposition: Decomposition, least: list[float]) -> tuple[int, ...]:
    """Return a grid of at least so many points along each axis, which the mesh divides and an FFT transforms fast."""
    parts = decomposition.pencil(decomposition.ndim - 1, decomposition.shape).parts
    return tuple(_fast_length(math.ceil(n), math.lcm(2, count)) for n, count in zip(least, parts))


def _fast_length(least: int, step: int) -> int:
    """Return the smallest multiple of `step` of at least `least` whose other prime factors are 2, 3 and 5."""
    count = -(-least // step)
    while has_prime_above(count, 5):
        count += 1
    return count * step
