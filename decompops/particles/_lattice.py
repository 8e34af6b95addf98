"""Particles at equal distances, made on their devices."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._backend.base import Caller
from .._core.rows import everywhere
from ._home import Home
from ._particles import Particles


@eqx.filter_jit
def on_lattice(home: Home, per_axis: int, offset: float, capacity: int, dtype: np.dtype, caller: Caller) -> Particles:
    """Return `per_axis` particles for each cell along each axis. See `ParticleMesh.lattice`."""
    blocks, ndim, group = home.blocks, home.decomposition.ndim, home.group("ParticleMesh.lattice", caller)
    numbers = np.int32 if math.prod(blocks.lengths) * per_axis**ndim < 2**31 else np.int64
    shape = tuple(per_axis * n for n in blocks.block_shape)
    whole = tuple(per_axis * n for n in blocks.lengths)

    def on_block(lengths: Any) -> tuple[Array, Array, Array]:
        positions, number, inside = [], jnp.zeros(math.prod(shape), numbers), jnp.ones(math.prod(shape), bool)
        for axis, (n, length) in enumerate(zip(whole, lengths)):
            cells = jax.lax.broadcasted_iota(np.int32, shape, axis).ravel()
            place = cells + jnp.asarray(per_axis * home.first_cell(axis), np.int32)
            inside = inside & (place < n)  # Blocks may be padded.
            number = number * n + place.astype(numbers)
            positions.append((place.astype(dtype) + jnp.asarray(offset, dtype)) * (jnp.asarray(length, dtype) / n))
        padded = any(map(blocks.is_padded, range(ndim)))
        order = jnp.argsort(~inside, stable=True) if padded else slice(None)
        slots = lambda x: jnp.pad(x[order], [(0, capacity - len(number)), *[(0, 0)] * (x.ndim - 1)])
        counts = everywhere(group, jnp.sum(inside, dtype=np.int32))
        return slots(jnp.stack(positions, axis=1)), slots(number), counts

    slots, same = home.spec, PartitionSpec()
    run = home.mapped(on_block, (same,), (slots, slots, same))
    positions, number, counts = run(home.decomposition.box_lengths)
    return Particles(positions, {"id": number}, counts, counts, jnp.zeros_like(counts))
