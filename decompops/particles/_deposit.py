"""Deposit values of particles on a grid, and read a field at particles."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._common.typed import whole_along
from .._core.points import Cloud, Frame, deposit, read
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
    values = weights_of(p, values)

    def on_block(lengths: Any, counts: Array, positions: Array, values: Array) -> Array:
        cloud, frame = _cloud(home, window, lengths, counts, positions, offset)
        return exchange.T.local(deposit(cloud, frame, jnp.moveaxis(values, 0, -1)))

    slots, field = home.spec, PartitionSpec(*[None] * (values.ndim - 1), *home.decomposition.spec())
    run = home.mapped(on_block, (PartitionSpec(), PartitionSpec(), slots, slots), field)
    return run(home.decomposition.box_lengths, p.counts, *home.placed(p.positions, values))


@eqx.filter_jit
def read_at(home: Home, window: Window, p: Particles, field: Array) -> Array:
    """Return the values of `field` at all particles. See `ParticleMesh.read`."""
    dec, exchange = home.decomposition, _halo(home, window)
    # A particle reads all components. `Placed` may shard them over mesh axes that are left over.
    field = whole_along(Placed(dec)(field), *range(-field.ndim, -dec.ndim))

    def on_block(lengths: Any, counts: Array, positions: Array, block: Array) -> Array:
        cloud, frame = _cloud(home, window, lengths, counts, positions)
        return jnp.moveaxis(read(cloud, frame, exchange.local(block)), -1, 0)

    slots, spec = home.spec, PartitionSpec(*[None] * (field.ndim - dec.ndim), *dec.spec())
    run = home.mapped(on_block, (PartitionSpec(), PartitionSpec(), slots, spec), slots)
    return run(dec.box_lengths, p.counts, *home.placed(p.positions), field)


def weights_of(p: Particles, values: Array | None) -> Array:
    """Return `values`, or one for each particle, in single or double precision: sums in half precision lose mass."""
    values = jnp.ones_like(p.positions[:, 0]) if values is None else values
    return values.astype(np.promote_types(values.dtype, np.float32))


def _wraps(home: Home) -> tuple[bool, ...]:
    """Return, for each axis, whether clouds wrap around inside a block: the axis is whole and periodic."""
    return tuple(parts == 1 and periodic for parts, periodic in zip(home.blocks.parts, home.periodic))


def _halo(home: Home, window: Window, offset: float = 0.0) -> HaloExchange:
    """Return the exchange of the cells that particles of other devices touch."""
    halo = tuple((0, 0) if wraps else window.halo(offset) for wraps in _wraps(home))
    return HaloExchange(home.decomposition, halo, periodic=home.periodic)


def _cloud(
    home: Home, window: Window, lengths: Any, counts: Array, positions: Array, offset: float = 0.0
) -> tuple[Cloud, Frame]:
    """Return the cloud of the particles of this device, and their coordinates in its extended block."""
    dec, blocks, halo = home.decomposition, home.blocks, _halo(home, window, offset).halo
    shape = tuple(blocks.core(axis) + sum(pair) for axis, pair in enumerate(halo))
    cloud = Cloud(window, shape, _wraps(home), (0,) * blocks.ndim, dec.backend.point_threads(dec.mesh))
    return cloud, home.frame(positions, counts, lengths, [before - offset for before, _ in halo])
