"""The bispectrum: averages of products of three modes whose wavevectors form a triangle."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Shaped

from .._common import compat
from .._common.byte_order import device_array
from .._core.layout import check_global
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft, check_periodic
from ._shells import check_edges, modes_of, nyquist_along, shell_sums, statistics_transform, transformed_box
from ._spectra import real_product


Triangle = tuple[int, int, int]


class Bispectrum(NamedTuple):
    """A bispectrum: averages over triangles of wavevectors with sides in three shells of |k|.

    - `k`: the mean |k| of the modes in the three shells, in radians per unit of length, of shape `(bins, 3)`.
    - `bispectrum`: the mean over the triangles of each bin, of shape `(*batch, bins)`; zero for bins without triangles.
    - `number`: the number of triangles in each bin, of shape `(bins,)`. Each triple of wavevectors with the sum zero
        counts once.
    - `triangles`: the numbers of the three shells of each bin, of shape `(bins, 3)`.
    """

    k: Array
    bispectrum: Array
    number: Array
    triangles: Array


def bispectrum(
    fft: AbstractTransform,
    u: Shaped[Array | np.ndarray, "*field"],
    edges: Any,
    *,
    triangles: Sequence[Sequence[int]] | None = None,
) -> Bispectrum:
    """Return the bispectrum of real fields: `V² û(p) û(q) û(r) / N³`, averaged over the triangles `p + q + r = 0`.

    V, N and û have the same meaning as in `power_spectrum`. In three dimensions, the bispectrum is an estimate of
    B(k1, k2, k3) in the convention of cosmology. Triangles are binned by the shells of |p|, |q| and |r|.

    Source: Scoccimarro, Phys. Rev. D 92, 083532 (2015), and Sefusatti et al., Mon. Not. R. Astron. Soc. 460, 3624
    (2016), section 2.2. A field with the modes of one shell only is computed for each of two shells. Products of the
    third modes with the spectrum of the product of these fields are the sums over triangles. So all triangles that
    share two shells cost two inverse transforms and one forward transform. The number of triangles is computed in the
    same way, with one in place of each mode. In single precision, numbers above ten million are rounded.

    Pairs of shells are processed one after the other, and a derivative computes the fields of each pair again. So the
    memory is that of a few fields, for any number of shells.

    !!! example

        ```python
        edges = np.arange(0.5, 6)
        found = spectral.bispectrum(fft, delta, edges)
        p = spectral.power_spectrum(fft, delta, edges=edges).power[found.triangles]
        reduced = found.bispectrum / (p[:, 0] * p[:, 1] + p[:, 1] * p[:, 2] + p[:, 2] * p[:, 0])
        equilateral = spectral.bispectrum(fft, delta, edges, triangles=[(i, i, i) for i in range(5)])
        ```

    **Arguments:**

    - `fft`: the transform, built with a `shape`. All axes that it transforms must be periodic.
    - `u`: real fields, such as `(*batch, nx, ny, nz)`.
    - `edges`: the bounds of the shells, in increasing order, in radians per unit of length. The last bound must be at
        most two thirds of the smallest Nyquist wavenumber of the grid. Otherwise a sum of three wavevectors could be a
        multiple of the grid's own wavenumber instead of zero, which the grid cannot distinguish. This is not checked
        if the lengths of the box are traced.
    - `triangles`: the bins: triples of numbers of shells, from zero. By default, all triples `i <= j <= k` of shells
        in which some triangle can close.

    **Returns:** a `Bispectrum`.

    **Raises:** `TypeError` if `fft` is not a transform, or if u is complex; `ValueError` if `fft` has no `shape` or is
    not periodic, if `edges` do not increase, are traced, negative or too high, or if no triangle can close in a bin of
    `triangles`.
    """
    check_fft(fft)
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    check_periodic(fft)
    if jnp.iscomplexobj(u):
        raise TypeError(f"`u` must be real; got {jnp.result_type(u)}. Pass the real or the imaginary part.")
    fft = statistics_transform(fft)
    bounds = _checked_bounds(fft, edges)
    return _bispectrum(fft, device_array(u), bounds, _checked_triangles(triangles, bounds))


@eqx.filter_jit
def _bispectrum(
    fft: AbstractTransform, u: Array, bounds: tuple[float, ...], triangles: tuple[Triangle, ...]
) -> Bispectrum:
    spectrum, lattice = fft(u), modes_of(fft)
    dtype = jnp.finfo(spectrum.dtype).dtype
    k, table = _vector.length(fft.wavenumbers(dtype=dtype)), jnp.asarray(bounds, dtype)
    inside = fft.separable([np.ones(n) for n in fft.out_layout.true_shape], dtype=dtype)
    one = inside + jnp.zeros_like(k)
    # The third shell costs no transform, so that all bins with the same first two shells are computed at once.
    pairs = sorted({(i, j) for i, j, _ in triangles})

    def sums(spectrum: Array, pair: Array) -> Array:
        """Return the sums over the triangles with two sides in the shells of a `pair`, and the third in each shell."""

        def in_shell(number: Array) -> Array:
            mask = (table[number] <= k) & (k < table[number + 1])
            return fft.inverse(_vector.times(mask.astype(dtype), spectrum)).real

        product = fft(in_shell(pair[0]) * in_shell(pair[1]))
        return shell_sums(lattice, real_product(spectrum, product), bounds)[0]

    def of_pair(pair: Array) -> tuple[Array, Array]:
        return sums(spectrum, pair), sums(one.astype(spectrum.dtype), pair)

    # Without `saving_nothing`, the derivative of the loop would keep the fields of all pairs.
    totals, numbers = jax.lax.map(compat.saving_nothing(of_pair, prevent_cse=False), jnp.asarray(pairs, np.int32))
    _, distances, modes = shell_sums(lattice, one, bounds)
    places = np.array([(pairs.index((i, j)), last) for i, j, last in triangles]).T
    number = jnp.abs(jnp.round(numbers[*places]))
    share = jnp.where(number == 0, 0, 1 / jnp.maximum(number, 1))  # The sums over no triangles are rounding errors.
    mean = _vector.times(share, jnp.moveaxis(totals, 0, -2)[..., *places])
    shells = np.array(triangles, np.int32)
    volume = jnp.asarray(transformed_box(fft).volume, dtype)
    return Bispectrum((distances / jnp.maximum(modes, 1))[shells], mean * volume**2, number, jnp.asarray(shells))


def _checked_bounds(fft: AbstractTransform, edges: Any) -> tuple[float, ...]:
    bounds, shape, lengths = check_edges(edges), check_fft(fft), fft.box_lengths
    if bounds[0] < 0:
        raise ValueError(f"`edges` must be at least zero; got {bounds[0]}.")
    # An axis of one cell has the wavenumber zero only.
    axes = [axis for axis in fft.transformed if shape[axis] > 1]
    if not axes or any(isinstance(length, Tracer) for length in lengths):
        return bounds
    highest = 2 / 3 * min(nyquist_along(fft.bases[axis], shape[axis]) / lengths[axis] for axis in axes)
    if bounds[-1] > highest * (1 + 1e-12):
        raise ValueError(
            f"`edges` must be at most {highest:.6g}, two thirds of the smallest Nyquist wavenumber, so that no sum of "
            f"three wavevectors is ambiguous; got {bounds[-1]:.6g}. Pass lower edges, or resample u to a finer grid."
        )
    return bounds


def _checked_triangles(triangles: Any, bounds: tuple[float, ...]) -> tuple[Triangle, ...]:
    shells = len(bounds) - 1

    def closes(triangle: Triangle) -> bool:
        # The longest side is shorter than the sum of the two others.
        upper = sum(bounds[i + 1] for i in triangle)
        return all(bounds[i] < upper - bounds[i + 1] for i in triangle)

    if triangles is None:
        found = filter(closes, itertools.combinations_with_replacement(range(shells), 3))
        return tuple(found)
    array: Any
    try:
        array = np.asarray(triangles)
    except (TypeError, ValueError):
        array = np.zeros(0)
    fits = array.ndim == 2 and array.shape[1:] == (3,) and len(array) and np.issubdtype(array.dtype, np.integer)
    if not fits or array.min() < 0 or array.max() >= shells:
        raise ValueError(f"`triangles` must be triples of shells, numbers from 0 to {shells - 1}; got {triangles!r}.")
    wanted = tuple((int(i), int(j), int(last)) for i, j, last in array)
    for triangle in wanted:
        if not closes(triangle):
            sides = ", ".join(f"{bounds[i]:.6g} to {bounds[i + 1]:.6g}" for i in triangle)
            raise ValueError(
                f"`triangles` must be shells in which a triangle can close; got {triangle}, with the sides {sides}."
            )
    return wanted
