"""The exchange of particles: each goes to the device that owns its cell."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._core.order import order
from ._home import Home
from ._particles import Particles
from ._route import Route


@eqx.filter_jit
def exchanged(home: Home, p: Particles) -> Particles:
    """Return the particles on the devices that own their cells. See `ParticleMesh.exchange`."""

    def on_block(lengths: Any, counts: Array, *arrays: Array) -> tuple[Array, ...]:
        capacity, me, devices = arrays[0].shape[0], home.me(), home.devices
        positions = jax.lax.stop_gradient(arrays[0])
        live = jnp.arange(capacity, dtype=np.int32) < counts[me]
        finite = jnp.all(jnp.isfinite(positions), axis=1)
        owner = home.owners(jnp.where(finite[:, None], positions, 0), jax.lax.stop_gradient(lengths))
        target = jnp.where(live, jnp.where(finite, owner, me), devices).astype(np.int32)
        invalid = home.everywhere(jnp.sum(live & ~finite, dtype=np.int32))
        stays = target == me
        by_target, leaving = order(jnp.where(stays, devices, target), devices, threads)
        leaving = leaving.at[me].set(jnp.sum(stays, dtype=np.int32))
        wanted = home.everywhere(leaving)
        needed = jnp.sum(wanted, 0, dtype=np.int32)
        moves = (jnp.max(needed) <= capacity) & ~jnp.any(invalid > 0)
        counts = jnp.where(moves, needed, counts)
        if devices == 1:
            return *arrays, counts, needed, invalid
        # Particles fill the slots before `counts[me]` that nobody has or that others leave. Those behind must move.
        stays, is_first = stays | (live & ~moves), jnp.arange(capacity, dtype=np.int32) < counts[me]
        kind = jnp.where(is_first, jnp.where(stays, 2, 0), jnp.where(stays, 1, 2))
        free, (gaps, _) = order(kind.astype(np.int32), 2, threads)
        sent = jnp.where(moves & ~np.eye(devices, dtype=bool), wanted, 0)
        way = Route(by_target, sent, free, gaps, counts[me], me, threads)
        return *way(arrays, home.all_to_all), counts, needed, invalid

    dec = home.decomposition
    threads = dec.backend.point_threads(dec.mesh)
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
