"""The bispectrum: averages of products of three modes whose wavevectors form a triangle."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Shaped

from .._common.host import check_mask
from .._common.placement import place_field
from .._common.primes import has_prime_above
from .._common.sharding import mesh_in_context
from .._common.typed import at_places
from .._core.layout import check_global
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import as_field, check_fft, check_periodic, check_real, of_transformed
from ._shells import check_edges, modes_of, rounded_down, shell_sums, statistics_transform
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
    (2016). A field with the modes of one shell only is computed for each of two shells. Products of the third modes
    with the spectrum of the product of these fields are the sums over triangles. So all triangles that share two shells
    cost two inverse transforms and one forward transform. The number of triangles is computed in the same way, with one
    in place of each mode; in single precision, numbers above ten million are rounded.

    The transforms have only the modes below the last bound, and a grid on which the sum of three wavevectors cannot
    alias to zero: for n of these modes along an axis, about 3 n / 2 points. So the result is exact for all bounds, and
    cheap if the last bound is far below the Nyquist wavenumber.

    Pairs of shells are processed one after the other, and a derivative computes the fields of each pair again. So the
    memory is that of a few fields, for any number of shells.

    !!! example

        ```python
        edges = np.arange(0.5, 5)  # Four shells.
        found = spectral.bispectrum(fft, u, edges)
        p = spectral.power_spectrum(fft, u, edges=edges).power[found.triangles]
        reduced = found.bispectrum / (p[:, 0] * p[:, 1] + p[:, 1] * p[:, 2] + p[:, 2] * p[:, 0])
        equilateral = spectral.bispectrum(fft, u, edges, triangles=[(i, i, i) for i in range(4)])
        ```

    **Arguments:**

    - `fft`: the transform, built with a `shape`. All axes that it transforms must be periodic.
    - `u`: real fields, such as `(*batch, nx, ny, nz)`.
    - `edges`: the bounds of the shells, in increasing order, in radians per unit of length. If the lengths of the box
        are traced, the transforms have all modes, and more points than the grid.
    - `triangles`: the bins: triples of numbers of shells, from zero. By default, all triples `i <= j <= k` of shells
        in which some triangle can close.

    **Returns:** a `Bispectrum`. Modes that `fft` does not keep, and Nyquist modes, belong to no shell. Along axes that
    `fft` does not transform, the result is averaged over the points, and `number` counts the triangles of all points.

    **Raises:** `TypeError` if `fft` is not a transform, or if u is complex; `ValueError` if `fft` has no `shape` or is
    not periodic, if `edges` do not increase, are traced or negative, or if no triangle can close in a bin of
    `triangles`.
    """
    check_periodic(fft)
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    check_real("u", u)
    bounds = check_edges(edges)
    if bounds[0] < 0:
        raise ValueError(f"`edges` must be at least zero; got {bounds[0]}.")
    return _bispectrum(statistics_transform(fft), as_field("u", u, fft), bounds, _checked_triangles(triangles, bounds))


@eqx.filter_jit
def _bispectrum(
    fft: AbstractTransform, u: Array, bounds: tuple[float, ...], triangles: tuple[Triangle, ...]
) -> Bispectrum:
    low, fft = _low_modes(fft, bounds[-1])
    spectrum, lattice = low(u), modes_of(fft)
    dtype = jnp.finfo(spectrum.dtype).dtype
    k, table = _vector.length(fft.wavenumbers(dtype=dtype)), jnp.asarray(rounded_down(bounds, dtype), dtype)
    inside = fft.separable([np.ones(n) for n in fft.out_layout.true_shape], dtype=dtype)
    one = place_field(inside + jnp.zeros_like(k), mesh_in_context(fft.decomposition.mesh), fft.out_layout.blocks, ())
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

    # Without `checkpoint`, the derivative of the loop would keep the fields of all pairs.
    totals, numbers = jax.lax.map(jax.checkpoint(of_pair, prevent_cse=False), jnp.asarray(pairs, np.int32))
    _, distances, modes = shell_sums(lattice, one, bounds)
    places = np.array([(pairs.index((i, j)), last) for i, j, last in triangles]).T
    number = jnp.abs(jnp.round(numbers[*places]))
    share = jnp.where(number == 0, 0, 1 / jnp.maximum(number, 1))  # The sums over no triangles are rounding errors.
    mean = _vector.times(share, at_places(jnp.moveaxis(totals, 0, -2), places))
    shells = np.array(triangles, np.int32)
    found = _vector.times_each(2 * of_transformed(fft, fft.box_lengths), mean)
    return Bispectrum((distances / jnp.maximum(modes, 1))[shells], found, number, jnp.asarray(shells))


def _low_modes(fft: AbstractTransform, highest: float) -> tuple[AbstractTransform, AbstractTransform]:
    """Return two transforms with the same modes: the modes of `fft` with |k| below `highest`.

    The first one takes fields on the grid of `fft`. The second one takes fields on a grid on which the wavenumbers of
    three modes have the sum zero only if they have the sum zero without aliasing.
    """
    modes, grid, lengths = list(fft.modes or check_fft(fft)), list(check_fft(fft)), fft.box_lengths
    for axis in fft.transformed:
        last, length = modes[axis] // 2, lengths[axis]
        if not isinstance(length, Tracer):  # In single precision, a mode may be just below a bound or just above.
            last = math.floor(min(last, highest * length / (2 * math.pi) * (1 + 1e-6)))
        modes[axis] = min(modes[axis], 2 * last + 1)
        grid[axis] = _smooth(3 * last + 1)
    low = fft.replace(modes=tuple(modes))
    return low, fft.replace(shape=tuple(grid), modes=tuple(modes), pad=True)


def _smooth(n: int) -> int:
    """Return the smallest number of at least `n` without prime factors above five, for fast transforms."""
    while has_prime_above(n, 5):
        n += 1
    return n


def _checked_triangles(triangles: Any, bounds: tuple[float, ...]) -> tuple[Triangle, ...]:
    shells = len(bounds) - 1

    def closes(triangle: Triangle) -> bool:
        # Each side of a triangle is shorter than the two others together, and may have any length in its shell. No
        # bound is subtracted, because the last one may be infinite.
        return all(bounds[a] < bounds[b + 1] + bounds[c + 1] for a, b, c in itertools.permutations(triangle))

    if triangles is None:
        found = filter(closes, itertools.combinations_with_replacement(range(shells), 3))
        return tuple(found)
    check_mask(triangles, "triangles")
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
