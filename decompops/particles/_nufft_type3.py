"""`NUFFTType3`: Fourier transforms from points to any wavenumbers. Each is a deposit, and a NUFFT of type 2."""

import functools
import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Inexact, Shaped
from numpy.polynomial import Chebyshev

from .._common.box import Box, Number
from .._common.check import Real, as_number, taking
from .._core.decomposition import Decomposition
from .._operator.transpose import Transpose
from ._home import Home
from ._mesh import ParticleMesh
from ._nufft import NUFFT, check_precision, fine_grid
from ._particles import Particles, of_slots
from ._semicircle import growth, semicircle


class NUFFTType3(eqx.Module):
    """The non-uniform fast Fourier transform of type 3: from particles to any wavenumbers, `sum_j c_j exp(-i k x_j)`.

    Nothing is periodic. Points lie in a box about the origin, and wavenumbers below the Nyquist wavenumber of a grid in
    this box. Wavenumbers are placed on the devices like particles, by a `ParticleMesh` of their own.

    !!! example

        ```python
        nufft = particles.NUFFTType3(dec, tolerance=1e-6)
        p = nufft.particle_mesh.place(positions, strength=c)
        k = nufft.wavenumber_mesh.place(wavenumbers)
        values = nufft(p, p["strength"], k)        # One for each slot of `k`.
        ```

    **Arguments:**

    - `decomposition`: the devices, and how far points and wavenumbers reach. Along an axis with n cells in a box of
        length L, points `x` have `|x| <= L / 2`, and wavenumbers `k`, in radians per unit of length, `|k| <= pi n / L`.
    - `tolerance`: the relative error of the results in the root mean square, for one axis; see docs/nufft.md.
    - `oversampling`: by how much both grids are finer than points and wavenumbers require, as in `NUFFT`.

    **Arguments of a call:**

    - `p`: particles of `particle_mesh`, at home, where `exchange` brings them.
    - `strengths`: the numbers `c_j`, real or complex, of shape `(slots of p, *components)`.
    - `k`: particles of `wavenumber_mesh`, at home. Their positions are the wavenumbers.

    **Returns** (when called): complex numbers of shape `(slots of k, *components)`. All are NaN if a point is outside
    its box, and one is NaN if its wavenumber is too large. Slots without a wavenumber hold zeros.

    **Raises:** as `NUFFT`. Calls raise `TypeError` or `ValueError` as `NUFFT.type1` and `NUFFT.type2`.

    **Source:** Lee & Greengard, J. Comput. Phys. 206, 1 (2005); Barnett, Magland & af Klinteberg, SIAM J. Sci. Comput.
    41(5), C479 (2019), section 3.3.
    """

    decomposition: Decomposition
    tolerance: float | int = eqx.field(static=True, converter=taking(Real, as_number), default=1e-6)
    oversampling: float | int = eqx.field(static=True, converter=taking(Real, as_number), default=2.0)

    def __check_init__(self):
        NUFFT(self.decomposition, self.tolerance, self.oversampling)  # Raises an error for a wrong argument.

    @property
    def particle_mesh(self) -> ParticleMesh:
        """The points, and the grid that they are deposited on. Its methods place, exchange and gather them."""
        dec, window = self.decomposition, semicircle(self.tolerance, self.oversampling)
        # With the margin, clouds at both ends of the box do not meet.
        shape = fine_grid(dec, [self.oversampling * n + window.width + 1 for n in dec.shape])
        along = zip(shape, dec.box_lengths, dec.shape)
        lengths = tuple(length * (fine / (self.oversampling * n)) for fine, length, n in along)
        return ParticleMesh(Decomposition(dec, shape=shape, box=Box(lengths), pad=True), window)

    @property
    def wavenumber_mesh(self) -> ParticleMesh:
        """The wavenumbers, and a grid among them. Its methods place, exchange and gather them."""
        return self._series.particle_mesh

    @property
    def _series(self) -> NUFFT:
        """Return the transform from the grid of points, whose modes are its points, to the wavenumbers."""
        grid = self.particle_mesh.decomposition
        return NUFFT(
            Decomposition(grid, box=Box(tuple(2 * math.pi / h for h in grid.spacing))),
            self.tolerance,
            self.oversampling,
        )

    @property
    def _growth(self) -> float:
        """By how much the division by the window's transform enlarges rounding errors: more than in `_series`."""
        return growth(semicircle(self.tolerance, self.oversampling), self.oversampling) ** self.decomposition.ndim

    def __call__(
        self, p: Particles, strengths: Shaped[Array | np.ndarray, "slots ..."], k: Particles
    ) -> Inexact[Array, "wavenumbers ..."]:
        strengths = of_slots(p, strengths)
        for points in (p, k):
            check_precision(self, "strengths", points, strengths)
        return _transformed(self, p, strengths, k)


@eqx.filter_jit
def _transformed(nufft: NUFFTType3, p: Particles, strengths: Array, k: Particles) -> Array:
    dec, points, series = nufft.decomposition, nufft.particle_mesh, nufft._series
    half = tuple(length / 2 for length in dec.box_lengths)
    most = tuple(math.pi * n / length for n, length in zip(dec.shape, dec.box_lengths))
    strengths = strengths.astype(np.result_type(strengths.dtype, np.complex64))
    deposited = points.deposit(p, _times(_product(points._home, p, half, (1.0,)), strengths))
    # The mode of a point is its number, and negative from the middle of the box on, as in the FFT.
    values = series.type2(k, jnp.conj(Transpose(points.decomposition)(deposited)))
    inverse = _inverse_transform(nufft.tolerance, nufft.oversampling)
    return _times(_product(series.particle_mesh._home, k, most, inverse), jnp.conj(values))


def _product(home: Home, p: Particles, most: tuple[Number, ...], coefficients: tuple[float, ...]) -> Array:
    """Return the product of a function of `x / most` for each coordinate x of each particle.

    The function is a Chebyshev series of `2 x² - 1`. The result is NaN if a coordinate is beyond `most`, and zero in
    slots without a particle.
    """

    def on_block(most: Any, counts: Array, positions: Array) -> Array:
        live = jnp.arange(positions.shape[0], dtype=np.int32) < counts[home.me()]
        limits = jnp.stack([jnp.asarray(limit, positions.dtype) for limit in most])
        scaled = jnp.where(live[:, None], positions, 0) / limits[None]
        inside = jnp.all(jnp.abs(scaled) <= 1 + 4 * jnp.finfo(scaled.dtype).eps, axis=1)
        factors = jnp.prod(_series_at(coefficients, 2 * scaled**2 - 1), axis=1)
        return jnp.where(live, jnp.where(inside, factors, jnp.nan), 0)

    same = PartitionSpec()
    return home.mapped(on_block, (same, same, home.spec), home.spec)(most, p.counts, *home.placed(p.positions))


def _times(factors: Array, values: Array) -> Array:
    """Multiply the rows of `values`."""
    real = factors.astype(jnp.finfo(values.dtype).dtype)
    return jnp.expand_dims(real, tuple(range(1, values.ndim))).astype(values.dtype) * values


@functools.cache
def _inverse_transform(tolerance: float, oversampling: float) -> tuple[float, ...]:
    """Return the inverse of the window's Fourier transform, as a Chebyshev series of `2 (k / k_max)² - 1`."""
    window, most = semicircle(tolerance, oversampling), math.pi / oversampling
    inverse = lambda u: 1 / window.transform(most * np.sqrt((u + 1) / 2))
    return tuple(Chebyshev.interpolate(inverse, 24).coef.tolist())


def _series_at(coefficients: tuple[float, ...], u: Array) -> Array:
    """Return a Chebyshev series, by the recurrence of Clenshaw."""
    last, before = jnp.zeros_like(u), jnp.zeros_like(u)
    for coefficient in coefficients[:0:-1]:
        last, before = 2 * u * last - before + coefficient, last
    return u * last - before + coefficients[0]
