"""Particles that are drawn at random from a density."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec

from .._backend.base import Caller
from .._common.host import device_array
from .._common.keys import threefry
from .._common.sharding import is_eager
from .._core.decomposition import Decomposition, check_field
from .._core.rows import everywhere
from .._operator.placed import Placed
from ._exchange import exchanged
from ._home import Home
from ._particles import Particles


def as_density(decomposition: Decomposition, density: Any) -> Array:
    """Return a density as an array. Raises an error if it is wrong. If it is traced, its values are not known."""
    density = device_array(density, "density")
    if not jnp.issubdtype(density.dtype, jnp.floating):
        raise TypeError(f"`density` must be real numbers; got {density.dtype}.")
    check_field("density", density, decomposition)
    if density.ndim > decomposition.ndim:
        raise ValueError(f"`density` must be one field, of {decomposition.ndim} axes; got the shape {density.shape}.")
    if not isinstance(density, Tracer) and is_eager():
        least, most = decomposition.min(density), decomposition.max(density)
        if not (least >= 0 and jnp.isfinite(most)):
            raise ValueError(f"`density` must be finite and at least zero; got {most if least >= 0 else least}.")
    return density


@eqx.filter_jit
def sampled(home: Home, density: Array, key: Array, capacity: int, caller: Caller) -> Particles:
    """Return particles drawn from a density. See `ParticleMesh.sample`."""
    dec, blocks = home.decomposition, home.blocks
    # The positions have the precision of the density, and at least single precision: cells have many numbers.
    density = Placed(dec)(density.astype(np.promote_types(density.dtype, np.float32)))
    group = home.group("ParticleMesh.sample", caller)

    def on_block(lengths: Any, key: Array, density: Array) -> tuple[Array, Array, Array]:
        shape, dtype = density.shape, density.dtype
        cells = [jax.lax.broadcasted_iota(np.int32, shape, axis).ravel() for axis in range(len(shape))]
        places = [cell + jnp.asarray(home.first_cell(axis), np.int32) for axis, cell in enumerate(cells)]
        valid = jnp.all((density >= 0) & jnp.isfinite(density))
        # The key of a cell depends only on its place in the grid, so the particles are the same on every mesh.
        keys = jnp.broadcast_to(threefry(key), (density.size,))
        for place in places:
            keys = jax.vmap(jax.random.fold_in)(keys, place)
        # Number 0 of the keys that a cell's key folds into is for its count, the others are for its particles. The
        # cell's key itself must draw nothing: `poisson` splits a key, and the parts are the keys that it folds into.
        drawn = jax.vmap(lambda key, mean: jax.random.poisson(jax.random.fold_in(key, 0), mean))
        counts = drawn(keys, jnp.where(valid, density, 0).ravel()).astype(np.int32)
        ends = jnp.cumsum(counts, dtype=np.int32)
        slot = jnp.arange(capacity, dtype=np.int32)
        cell = jnp.minimum(jnp.searchsorted(ends, slot, side="right"), density.size - 1).astype(np.int32)
        number = slot - (ends - counts)[cell]
        inside = jax.vmap(lambda key, n: jax.random.uniform(jax.random.fold_in(key, n), (len(shape),), dtype))
        shift = inside(keys[cell], number + 1) - 0.5
        along = zip(places, lengths, blocks.lengths)
        start = [place[cell].astype(dtype) * (jnp.asarray(length, dtype) / n) for place, length, n in along]
        spacing = [jnp.asarray(length, dtype) / n for length, n in zip(lengths, blocks.lengths)]
        positions = jnp.stack(start, axis=1) + shift * jnp.stack(spacing)[None]
        # A device with an invalid density has one particle at NaN, so that the result says so. All devices know this.
        total = jnp.sum(counts.astype(np.float32))  # 32 bits may not hold the number of particles.
        most = jnp.asarray(np.iinfo(np.int32).max, np.int32)
        needed = everywhere(group, jnp.where(valid, jnp.where(total < 0.99 * 2.0**31, ends[-1], most), 1))
        # A sample without all of its particles has no positions, because no exchange can bring the others back.
        complete = valid & (jnp.max(needed) <= capacity)
        return jnp.where(complete, positions, jnp.nan), jnp.minimum(needed, capacity), needed

    slots, same = home.spec, PartitionSpec()
    run = home.mapped(on_block, (same, same, dec.spec()), (slots, same, same))
    positions, counts, needed = run(dec.box_lengths, key, density)
    p = exchanged(home, Particles(positions, {}, counts, counts, jnp.zeros_like(counts)), caller)
    invalid = jnp.where(jnp.max(needed) > capacity, 0, p.invalid)  # The capacity is the cause.
    return Particles(p.positions, {}, p.counts, jnp.maximum(p.needed, needed), invalid)
