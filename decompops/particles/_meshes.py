"""How evenly each mesh of the same number of devices would spread particles."""

import itertools
import math
from collections.abc import Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from .._backend.base import Caller
from .._common.check import check_untraced
from .._core.rows import everywhere
from ._home import Home
from ._load import Load
from ._particles import Particles


def loads(home: Home, p: Particles | np.ndarray) -> dict[tuple[int, ...], Load]:
    """Return the load for each mesh of as many devices. See `ParticleMesh.loads`."""
    dec = home.decomposition
    divides = lambda parts: all(n % count == 0 for n, count in zip(dec.shape, parts))
    meshes = [parts for parts in _products(home.devices, dec.ndim - 1) if dec.pad or divides(parts)]
    if isinstance(p, Particles):
        check_untraced("p", p, "loads", "`p.load`")
        every = list(np.asarray(_counted(home, p, meshes, dec.backend.caller())))
        if every[0].sum() < np.asarray(p.counts).sum():
            raise ValueError("`positions` must be finite; got particles with NaN or infinite positions.")
    else:
        owners = [home.owners(p, dec.box_lengths, parts) for parts in meshes]
        every = [np.bincount(owner, minlength=home.devices) for owner in owners]
    found = sorted(zip(meshes, every), key=lambda pair: (pair[1].max(), pair[0]))
    return {parts: Load(counts) for parts, counts in found}


@eqx.filter_jit
def _counted(home: Home, p: Particles, meshes: list[tuple[int, ...]], caller: Caller) -> Array:
    """Return how many particles each device of each mesh would have."""
    group = home.group("ParticleMesh.loads", caller)

    def on_block(lengths: tuple, counts: Array, positions: Array) -> Array:
        live = jnp.arange(positions.shape[0], dtype=np.int32) < counts[home.me()]
        valid = live & jnp.all(jnp.isfinite(positions), axis=1)
        positions, ones = jnp.where(valid[:, None], positions, 0), valid.astype(np.int32)
        of_mesh = lambda parts: jnp.bincount(home.owners(positions, lengths, parts), ones, length=home.devices)
        return jnp.sum(everywhere(group, jnp.stack([of_mesh(parts) for parts in meshes])), axis=0, dtype=np.int32)

    same = PartitionSpec()
    run = home.mapped(on_block, (same, same, home.spec), same)
    return run(home.decomposition.box_lengths, p.counts, *home.placed(p.positions))


def _products(number: int, factors: int) -> Iterator[tuple[int, ...]]:
    """Yield all tuples of so many factors whose product is `number`."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return (parts for parts in itertools.product(divisors, repeat=factors) if math.prod(parts) == number)
