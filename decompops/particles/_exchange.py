"""The exchange of particles: each goes to the device that owns its cell."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._backend.base import Caller
from .._core.order import order
from .._core.rows import everywhere, move_rows
from ._home import Home
from ._particles import Particles


@eqx.filter_jit
def exchanged(home: Home, p: Particles, caller: Caller) -> Particles:
    """Return the particles on the devices that own their cells. See `ParticleMesh.exchange`."""
    dec = home.decomposition
    group = home.group("ParticleMesh.exchange", caller)

    def on_block(lengths: Any, counts: Array, *arrays: Array) -> tuple[Array, ...]:
        capacity, me, devices = arrays[0].shape[0], home.me(), home.devices
        positions = jax.lax.stop_gradient(arrays[0])
        live = jnp.arange(capacity, dtype=np.int32) < counts[me]
        # XLA computes this with `owner` in one loop, but it would have a loop of its own for a reduction.
        finite = functools.reduce(jnp.logical_and, (jnp.isfinite(positions[:, i]) for i in range(positions.shape[1])))
        owner = home.owners(positions, jax.lax.stop_gradient(lengths))
        # The number of its new device for each particle that leaves, and one more for positions that are not finite.
        key = jnp.where(finite, jnp.where(owner == me, devices + 1, owner), devices)
        key = jnp.where(live, key, devices + 1).astype(np.int32)
        leaving, found = order(key, devices + 1, dec.backend.point_threads(dec.mesh))
        found = everywhere(group, found)
        sent, invalid = found[:, :devices], found[:, devices]
        needed = counts - jnp.sum(sent, 1, dtype=np.int32) + jnp.sum(sent, 0, dtype=np.int32)
        moves = (jnp.max(needed) <= capacity) & ~jnp.any(invalid > 0)
        if devices > 1:
            arrays = move_rows(group, leaving, jnp.where(moves, sent, 0), counts[me], arrays)
        return *arrays, jnp.where(moves, needed, counts), needed, invalid

    slots, same, arrays = home.spec, PartitionSpec(), home.placed(p.positions, *p.attributes.values())
    run = home.mapped(on_block, (same, same, *[slots] * len(arrays)), (*[slots] * len(arrays), same, same, same))
    positions, *others, counts, needed, invalid = run(dec.box_lengths, p.counts, *arrays)
    return Particles(positions, dict(zip(p.attributes, others)), counts, needed, invalid)


@eqx.filter_jit
def grown(home: Home, p: Particles, capacity: int) -> Particles:
    """Return the particles with more slots on each device."""

    def on_block(*arrays: Array) -> tuple[Array, ...]:
        return tuple(jnp.pad(x, [(0, capacity - p.capacity), *[(0, 0)] * (x.ndim - 1)]) for x in arrays)

    arrays = home.placed(p.positions, *p.attributes.values())
    slots = (home.spec,) * len(arrays)
    positions, *others = home.mapped(on_block, slots, slots)(*arrays)
    return Particles(positions, dict(zip(p.attributes, others)), p.counts, p.needed, p.invalid)
