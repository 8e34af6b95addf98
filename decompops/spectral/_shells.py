"""Sums over shells: of the modes of a spectrum by their wavenumber, or of separations by their length.

`shell_sums` is the only mechanism. Power spectra, multipoles, bispectra and correlation functions differ in the values
that they sum, and in the factors of these values.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec

from .._basis.base import AbstractBasis
from .._common import compat
from .._common.blocks import Blocks, axis_names, flat_names
from .._common.host import check_mask
from .._common.sharding import map_blocks
from .._common.typed import batch_in_type
from .._core.block_reduction import BlockReduction
from .._core.decomposition import Decomposition
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft, checked_wavenumbers
from ._mean_square import square_weights
from ._modes import inner_transform


Coordinates = tuple[Array, ...]


class Lattice(NamedTuple):
    """Points around an origin: the modes of a spectrum, or the separations of two points of a grid.

    - `decomposition`: the grid of the fields.
    - `blocks`: how the lattice is cut into blocks.
    - `coordinates`: takes a dtype, inside a `shard_map`, and returns the coordinates of the points of a block, one
        array for each axis, which broadcast against the block.
    - `counts`: takes a dtype, and returns how often each point counts: zero in the padding.
    """

    decomposition: Decomposition
    blocks: Blocks
    coordinates: Callable[[Any], Coordinates]
    counts: Callable[[Any], Array]


def statistics_transform(fft: AbstractTransform) -> AbstractTransform:
    """Return the transform that statistics compute with: `fft` with coefficients of the expansion, `norm="forward"`.

    Between `fft` and this transform, only the scale and the storage order of spectra differ. The Nyquist modes of a
    coarser grid are zero.
    """
    return inner_transform(fft.replace(norm="forward", nyquist=False))


def modes_of(fft: AbstractTransform, across: int | None = None) -> Lattice:
    """Return the modes of the spectra of `fft`, each with its number in the full spectrum.

    The points along axes that `fft` does not transform count by their quadrature weights; along the axis `across`, each
    counts as one.
    """
    shape = check_fft(fft)
    counts = [
        square_weights(basis, n, kept, nyquist=False) if basis.is_transformed else basis.weights(n) * n
        for basis, n, kept in zip(fft.bases, shape, fft.modes or shape)
    ]
    if across is not None:
        counts[across] = np.ones(shape[across])
    return Lattice(
        fft.decomposition,
        fft.out_layout.blocks,
        lambda dtype: checked_wavenumbers(fft, dtype),
        lambda dtype: fft.separable(counts, dtype=dtype),
    )


def shell_sums(
    lattice: Lattice,
    values: Array,
    bounds: tuple[float, ...],
    *,
    factors: Callable[[Coordinates], Sequence[Array]] | None = None,
    across: int | None = None,
) -> tuple[Array, Array, Array]:
    """Return sums over the points in each shell around the origin of a lattice.

    The only communication is an all-reduce of the sums.

    **Arguments:**

    - `lattice`: the points, such as `modes_of(fft)`.
    - `values`: real numbers of shape `(*batch, *lattice.blocks.shape)`, such as the squares of a spectrum.
    - `bounds`: the bounds of the shells. A point belongs to a shell if `lower <= distance < upper`, as if distances had
        no rounding errors.
    - `factors`: takes the coordinates, and returns arrays to multiply the values with, such as polynomials of the
        direction.
    - `across`: an axis along which points are not summed; its coordinates must be zero.

    **Returns:** three sums over each shell: of the values, of shape `(*batch, shells)`; of the distances from the
    origin and of the number of points, of shape `(shells,)`. With `factors`, the sums of the values have an axis for
    the factors before the axis of shells. With `across`, the three sums have an axis for this axis of the grid before
    the axis of shells.
    """
    blocks, dtype, shells = lattice.blocks, values.dtype, len(bounds) - 1
    ndim, result = blocks.ndim, ("s",) if across is None else ("p", "s")

    @jax.checkpoint  # Otherwise a derivative would store the shell of each point.
    def sums(values: Array) -> tuple[Array, Array, Array]:
        position = lattice.coordinates(dtype)
        distance = _vector.length(position)
        weights = jnp.broadcast_to(lattice.counts(dtype), distance.shape)
        # Points outside of all shells have the number 0 or `shells + 1`.
        shell = compat.count_up_to(rounded_down(bounds, dtype), distance)

        @functools.partial(jnp.vectorize, signature=f"({','.join(axis_names(ndim))})->({','.join(result)})")
        def over_shells(values: Array) -> Array:
            # Each plane is summed separately, and then the sums of the planes are added, because short sums lose little
            # precision.
            planes = (values, shell) if ndim > 1 else (values[None], shell[None])
            if across is not None:
                planes = tuple(jnp.moveaxis(array, blocks.position(across), 0) for array in planes)
            sums = jax.vmap(lambda v, i: jnp.zeros(shells + 2, dtype).at[i].add(v))(*planes)[:, 1:-1]
            if across is None:
                return jnp.sum(sums, 0)
            first = first_cell(blocks, across)
            whole = jnp.zeros((blocks.shape[blocks.position(across)], shells), dtype)
            return jax.lax.dynamic_update_slice_in_dim(whole, sums, first, 0)[: blocks.lengths[across]]

        weighted = _vector.times(weights, values)
        if factors is not None:
            weighted = _vector.stack((_vector.times(factor, weighted) for factor in factors(position)), ndim)
        return over_shells(weighted), over_shells(weights * distance), over_shells(weights)

    axes = len(result) + (factors is not None), len(result), len(result)
    found = summed_over_grid("Sums over shells", lattice.decomposition, blocks, sums, values, axes)
    total, distances, points = found
    return total, distances, points


def rounded_down(bounds: tuple[float, ...], dtype: Any) -> tuple[float, ...]:
    """Return the bounds of shells, lowered by the rounding errors that distances of a dtype can have.

    Many modes are exactly on the bounds of usual shells. Without this, each of them would belong to the shell above or
    below by chance: by the dtype, the device and the length of the box.
    """
    return tuple(bound * (1 - 4 * float(jnp.finfo(dtype).eps)) for bound in bounds)


def check_edges(edges: Any) -> tuple[float, ...]:
    """Return the bounds of shells as numbers. Raises `ValueError` if they do not increase or are traced."""
    check_mask(edges, "edges")
    try:
        bounds = np.asarray(edges, float)
    except (TypeError, ValueError):  # Traced edges raise a `TypeError`.
        bounds = np.zeros(0)
    if bounds.ndim != 1 or len(bounds) < 2 or not (np.diff(bounds) > 0).all():
        raise ValueError(f"`edges` must be two or more increasing numbers, and not traced; got {edges!r}.")
    return tuple(bounds.tolist())


def known_lengths(fft: AbstractTransform) -> list[float]:
    """Return the lengths of the box as numbers. Raises `ValueError` if they are traced: no shells can be chosen."""
    if any(isinstance(length, Tracer) for length in fft.box_lengths):
        raise ValueError("`edges` must be given if the lengths of the box are traced; got None.")
    return list(map(float, fft.box_lengths))


def centred_bounds(step: float, shells: int, first: int = 1) -> tuple[float, ...]:
    """Return the bounds of shells that are centred on the multiples `first`, `first + 1`, ... of `step`."""
    return tuple((step * (np.arange(first, first + shells + 1) - 0.5)).tolist())


def wavenumber_bounds(fft: AbstractTransform, edges: Any, *, complete: bool = False) -> tuple[float, ...]:
    """Return the bounds of shells of |k|, which are `edges` unless these are `None`.

    By default, the shells are centred on the multiples of the smallest wavenumber, from the first up to the smallest
    Nyquist wavenumber. If `complete`, for densities, they begin at zero, and every mode has a shell; `edges` must then
    be finite.
    """
    if edges is not None:
        bounds = check_edges(edges)
        if complete and not all(map(math.isfinite, bounds)):
            raise ValueError(f"`edges` must be finite, because energies are divided by the widths; got {edges!r}.")
        return bounds
    sizes, lengths = fft.modes or check_fft(fft), known_lengths(fft)
    # The only wavenumber along an axis of one cell is zero, so such axes do not count.
    axes = [i for i in fft.transformed if sizes[i] > 1] or fft.transformed
    step = min(step_along(fft.bases[i], sizes[i]) / lengths[i] for i in axes)
    if complete:
        highest = [abs(fft.bases[i].wavenumbers(sizes[i])).max() / lengths[i] for i in axes]
        first, shells = 0, math.floor(math.hypot(*highest) / step + 0.5) + 1
    else:
        highest = min(nyquist_along(fft.bases[i], sizes[i]) / lengths[i] for i in axes)
        first, shells = 1, math.floor(highest / step * (1 + 1e-12))
    if shells > 100 * math.prod(sizes):  # Nearly all of them would be empty.
        raise ValueError(
            f"`edges` must be given for such a long box, {lengths}: by default, there would be {shells} shells for "
            f"{math.prod(sizes)} modes; got None."
        )
    return centred_bounds(step, shells, first)


def step_along(basis: AbstractBasis, n: int) -> float:
    """Return the distance between the wavenumbers of neighbouring modes on an axis of length one."""
    waves = np.unique(np.abs(basis.wavenumbers(n)))
    return float(waves[1] - waves[0]) if len(waves) > 1 else 2 * math.pi


def nyquist_along(basis: AbstractBasis, n: int) -> float:
    """Return the Nyquist wavenumber of `n` points on an axis of length one: π divided by the distance of two points."""
    return math.pi / (float(np.ptp(basis.points(max(n, 2))[:2])) * max(2 / n, 1))


def first_cell(blocks: Blocks, axis: int) -> Array | int:
    """Return the number of the first cell of a block along a grid axis, inside a `shard_map`."""
    name = blocks.names[axis]
    return 0 if name is None else blocks.core(axis) * jax.lax.axis_index(name)


def summed_over_grid(
    name: str, dec: Decomposition, blocks: Blocks, function: Callable, x: Array, axes: tuple[int, ...]
) -> tuple[Array, ...]:
    """Apply `function` to the block of `x` on each device, and add up the arrays that it returns over all devices.

    The first of these arrays has the batch axes of `x`. `axes` says how many other axes each array has. Error messages
    begin with `name`.
    """
    ndim, batch = blocks.ndim, batch_in_type(x, blocks.ndim)
    leads = [batch, *[()] * (len(axes) - 1)]
    specs = tuple(PartitionSpec(*lead, *[None] * own, *blocks.spec) for lead, own in zip(leads, axes))
    field = PartitionSpec(*batch, *blocks.spec)
    with_devices = lambda block: tuple(jnp.expand_dims(one, tuple(range(-ndim, 0))) for one in function(block))
    # In a `jax.vmap` with `spmd_axis_name`, JAX gives numbers a type that they cannot have here, before `map_blocks`
    # could refuse this argument.
    found = map_blocks(with_devices, dec.mesh, set(flat_names(field)), field, specs, check_types=False)(x)
    parts = tuple(blocks.parts[axis] for axis in blocks.order)
    over = BlockReduction(dec.mesh, Blocks(parts, parts, tuple(blocks.spec)), dec.backend, dec.backend.caller(), name)
    return tuple(map(over, found))
