"""The two-point correlation function of fields."""

import math
import operator
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from .._core.layout import check_global
from .._operator.transform import AbstractTransform, coordinates_along, product_along
from . import _vector
from ._check import as_field, check_fft, check_periodic, checked_wavenumbers
from ._shells import (
    Coordinates,
    Lattice,
    centred_bounds,
    check_edges,
    known_lengths,
    shell_sums,
    statistics_transform,
)
from ._spectra import real_product


class CorrelationFunction(NamedTuple):
    """A two-point correlation function: averages over separations of two points.

    - `r`: the mean length of the separations in each bin, in the unit of length of the box, of shape `(bins,)`.
    - `correlation`: the mean correlation in each bin, of shape `(*batch, bins)`; zero for bins without separations.
    - `separations`: the number of separations on the grid in each bin, of shape `(bins,)`.
    """

    r: Array
    correlation: Array
    separations: Array


def correlation_function(
    fft: AbstractTransform, u: Shaped[Array | np.ndarray, "*field"], *, edges: Any = None
) -> CorrelationFunction:
    """Return the two-point correlation function `<u(x) u(x + r)>` of periodic fields, averaged over bins of |r|.

    The mean is over all points x of the grid, and over all separations of two points of the grid with |r| in the bin.
    A separation is the shortest one in the periodic box. At r = 0, the correlation is the mean of |u|²: subtract the
    mean of u for a covariance. For complex fields, it is the real part of `<conj(u(x)) u(x + r)>`. By the theorem of
    Wiener and Khinchin, it is the inverse transform of the squares of the spectrum, before they are averaged. Along
    axes that `fft` does not transform, the result is averaged with the quadrature weights of their bases.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields. All axes that it transforms must be
        periodic.
    - `u`: fields, such as `(*batch, nx, ny, nz)`.
    - `edges`: the bounds of the bins, in increasing order, in the unit of length of the box. A separation belongs to a
        bin if `lower <= |r| < upper`. By default, the bins are centred on the multiples of the smallest distance of two
        points, up to half of the shortest length of the box.

    **Returns:** a `CorrelationFunction`. If `fft` keeps some modes only, it is the correlation function of these modes.

    **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` has no `shape` or is not periodic, or if
    `edges` do not increase or are traced.
    """
    check_periodic(fft)
    check_global("u", fft.decomposition.mesh_axes, "Call this function outside of the `shard_map`")
    fft = statistics_transform(fft)
    return _correlation(fft, as_field("u", u, fft), _default_bounds(fft) if edges is None else check_edges(edges))


@eqx.filter_jit
def _correlation(fft: AbstractTransform, u: Array, bounds: tuple[float, ...]) -> CorrelationFunction:
    spectrum = fft(u)
    correlation = fft.inverse(real_product(spectrum, spectrum).astype(spectrum.dtype)).real
    total, r, separations = shell_sums(_separations(fft), correlation, bounds)
    mean = 1 / jnp.maximum(separations, 1)
    return CorrelationFunction(r * mean, _vector.times(mean, total), separations)


def _separations(fft: AbstractTransform) -> Lattice:
    """Return the separations of two points along the axes that `fft` transforms, and the points of the other axes."""
    blocks, mesh, lengths, shape = fft.in_layout.blocks, fft.decomposition.mesh, fft.box_lengths, check_fft(fft)

    def coordinates(dtype: Any) -> Coordinates:
        checked_wavenumbers(fft, dtype)  # The squares of distances must be normal numbers, too.
        cells = [np.fft.fftfreq(n, 1 / n) * (axis in fft.transformed) for axis, n in enumerate(shape)]
        along = enumerate(zip(cells, lengths, shape))
        return tuple(
            coordinates_along(operator.mul, blocks, axis, values, length / n, mesh, dtype)
            for axis, (values, length, n) in along
        )

    counts = [np.ones(n) if basis.is_transformed else basis.weights(n) * n for basis, n in zip(fft.bases, shape)]
    return Lattice(fft.decomposition, blocks, coordinates, lambda dtype: product_along(blocks, counts, mesh, dtype))


def _default_bounds(fft: AbstractTransform) -> tuple[float, ...]:
    shape, lengths = check_fft(fft), known_lengths(fft)
    axes = [axis for axis in fft.transformed if shape[axis] > 1] or fft.transformed
    step, longest = min(lengths[i] / shape[i] for i in axes), min(lengths[i] for i in axes) / 2
    return centred_bounds(step, math.floor(longest / step * (1 + 1e-12)))
