"""Deposit values of particles on a grid, and read a field at particles."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._core.points import Cloud, deposit, read
from .._core.window import Window
from .._operator.halo import HaloExchange
from .._operator.placed import Placed
from ._home import Home
from ._particles import Particles


@eqx.filter_jit
def deposited(home: Home, window: Window, p: Particles, values: Array | None, offset: float = 0.0) -> Array:
    """Return the field of `values` of all particles; `None` stands for one each. See `ParticleMesh.deposit`.

    Along each axis, the points of the field are shifted by `offset` cells.
    """
    exchange = _halo(home, window, offset)
    values = jnp.ones_like(p.positions[:, 0]) if values is None else values

    def on_block(lengths: Any, counts: Array, positions: Array, values: Array) -> Array:
        cloud, points, live, fault = _cloud(home, window, lengths, counts, positions, offset)
        values = jnp.where(_beside(live, values), values, 0)
        return exchange.T.local(deposit(cloud, points, jnp.moveaxis(values + fault.astype(values.dtype), 0, -1)))

    slots, field = home.spec, PartitionSpec(*[None] * (values.ndim - 1), *home.decomposition.spec())
    run = home.mapped(on_block, (PartitionSpec(), PartitionSpec(), slots, slots), field)
    return run(home.decomposition.box_lengths, p.counts, *home.placed(p.positions, values))


@eqx.filter_jit
def read_at(home: Home, window: Window, p: Particles, field: Array) -> Array:
    """Return the values of `field` at all particles. See `ParticleMesh.read`."""
    dec, exchange = home.decomposition, _halo(home, window)
    field = Placed(dec)(field)

    def on_block(lengths: Any, counts: Array, positions: Array, block: Array) -> Array:
        cloud, points, live, fault = _cloud(home, window, lengths, counts, positions)
        values = jnp.moveaxis(read(cloud, points, exchange.local(block)), -1, 0)
        return jnp.where(_beside(live, values), values, 0) + fault.astype(values.dtype)

    slots, spec = home.spec, PartitionSpec(*[None] * (field.ndim - dec.ndim), *dec.spec())
    run = home.mapped(on_block, (PartitionSpec(), PartitionSpec(), slots, spec), slots)
    return run(dec.box_lengths, p.counts, *home.placed(p.positions), field)


def _wraps(home: Home) -> tuple[bool, ...]:
    """Return, for each axis, whether clouds wrap around inside a block: the axis is whole and periodic."""
    return tuple(name is None and periodic for name, periodic in zip(home.blocks.names, home.periodic))


def _halo(home: Home, window: Window, offset: float = 0.0) -> HaloExchange:
    """Return the exchange of the cells that particles of other devices touch."""
    halo = tuple((0, 0) if wraps else window.halo(offset) for wraps in _wraps(home))
    return HaloExchange(home.decomposition, halo, periodic=home.periodic)


def _cloud(
    home: Home, window: Window, lengths: Any, counts: Array, positions: Array, offset: float = 0.0
) -> tuple[Cloud, Array, Array, Array]:
    """Return the cloud of the particles of this device, and their coordinates in its extended block.

    Also return which slots hold a particle, and a number: zero, or NaN if a particle is not at home.
    """
    blocks, halo, wraps = home.blocks, _halo(home, window, offset).halo, _wraps(home)
    live = jnp.arange(positions.shape[0], dtype=np.int32) < counts[home.me()]
    positions = jnp.where(live[:, None], positions, 0)  # Other slots may hold NaN, also in derivatives.
    coordinates, at_home = home.coordinates(positions, lengths)
    fault = jnp.where(jnp.all(~live | at_home), 0, jnp.nan)
    points = [s + (before - offset) for s, (before, _) in zip(coordinates, halo)]
    shape = tuple(blocks.core(axis) + sum(pair) for axis, pair in enumerate(halo))
    dec = home.decomposition
    cloud = Cloud(window, shape, wraps, (0,) * blocks.ndim, dec.backend.point_threads(dec.mesh))
    return cloud, jnp.stack(points, axis=1), live, fault


def _beside(live: Array, values: Array) -> Array:
    """Return `live` with as many axes as `values`, whose first axis are the slots."""
    return jnp.expand_dims(live, tuple(range(1, values.ndim)))
