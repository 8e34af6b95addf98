"""The way of every particle to its device, by at most two messages between any two devices.

Few particles leave a device in one step. If no device sends more than `bucket` particles to any other, one exchange of
buckets of this size brings all of them home. Otherwise there are two exchanges: each device first deals its leaving
particles, in the order of their destinations, to all devices in turn, and these pass them on. Dealing evens out the
messages: whatever moves where, no device passes more than `capacity / devices + devices` particles to any other. So
both ways need a fixed amount of memory, and no particle is ever left over.

All functions compute one device's part, inside a `shard_map`. Every device knows how many particles each device sends
to each other one (a matrix of `devices²` numbers), and works out from that which particles it gets in which order.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


# Brings row d of an array `(devices, bucket, ...)` of each device to device d: row i of the result is from device i.
AllToAll = Callable[[Array], Array]


class Route(NamedTuple):
    """What one device needs to send and receive particles.

    - `order`: the device's own slots, those that leave first, by their destination.
    - `sent`: how many particles device i sends to device d, for all i and d: a matrix.
    - `stays`: the device's own slots, those that stay first.
    - `kept`: how many particles stay.
    - `me`: the number of this device.
    """

    order: Array
    sent: Array
    stays: Array
    kept: Array
    me: Array

    @property
    def devices(self) -> int:
        return self.sent.shape[0]

    @property
    def capacity(self) -> int:
        return self.order.shape[0]

    @property
    def fits_directly(self) -> Array:
        """Whether no device sends more than `bucket` particles to any other."""
        return jnp.max(self.sent) <= self.bucket

    @property
    def bucket(self) -> int:
        return -(-self.capacity // self.devices)

    def __call__(self, x: Array, all_to_all: AllToAll) -> Array:
        """Return the slots of this device after all particles have moved: those that stayed first."""
        ways = (lambda x: self._directly(x, all_to_all)), (lambda x: self._dealt(x, all_to_all))
        return jax.lax.cond(self.fits_directly, *ways, x)

    def _directly(self, x: Array, all_to_all: AllToAll) -> Array:
        own = self.sent[self.me]
        where = _filled(jnp.cumsum(own, dtype=np.int32) - own, own, self.bucket)
        arrived = all_to_all(_taken(x, _taken(self.order, where)))
        return self._settled(x, arrived, self.sent[:, self.me])

    def _dealt(self, x: Array, all_to_all: AllToAll) -> Array:
        devices, capacity = self.devices, self.capacity
        number = jnp.arange(devices, dtype=np.int32)
        leaving = jnp.sum(self.sent, 1, dtype=np.int32)
        # Device i deals particle number r of those that leave it to device (i + r) mod devices.
        turn = jnp.arange(self.bucket, dtype=np.int32) * devices
        dealt = ((number - self.me) % devices)[:, None] + turn[None]
        dealt = jnp.where(dealt < leaving[self.me], dealt, capacity)
        held = all_to_all(_taken(x, _taken(self.order, dealt)))
        # This device now holds the particles (me - i) mod devices + turn of each device i.
        ranks = ((self.me - number) % devices)[:, None] + turn[None]
        ends = jnp.cumsum(self.sent, 1, dtype=np.int32)
        target = jax.vmap(lambda row, rank: jnp.searchsorted(row, rank, side="right"))(ends, ranks)
        target = jnp.where(ranks < leaving[:, None], target, devices).astype(np.int32).ravel()
        passed = _histogram(target, devices)
        bucket = -(-capacity // devices) + devices
        where = _filled(jnp.cumsum(passed, dtype=np.int32) - passed, passed, bucket)
        onwards = _taken(jnp.argsort(target, stable=True).astype(np.int32), where)
        arrived = all_to_all(_taken(held.reshape(-1, *held.shape[2:]), onwards))
        # How many particles for this device each device k passed on: of the ranks from `first` to `last` - 1 of each
        # device i, those that are (k - i) mod devices, modulo devices.
        last = ends[:, self.me][:, None]
        first = last - self.sent[:, self.me][:, None]
        offset = (number[None] - number[:, None]) % devices
        below = lambda rank: (rank - offset + devices - 1) // devices
        return self._settled(x, arrived, jnp.sum(below(last) - below(first), 0, dtype=np.int32))

    def _settled(self, x: Array, arrived: Array, counts: Array) -> Array:
        """Return the particles that stayed, and behind them those that arrived: `counts[i]` in row i of `arrived`."""
        ends = jnp.cumsum(counts, dtype=np.int32)
        number = jnp.arange(self.capacity, dtype=np.int32) - self.kept
        row = jnp.searchsorted(ends, number, side="right").astype(np.int32)
        column = number - _taken(ends - counts, row)
        bucket = arrived.shape[1]
        place = jnp.where((number >= 0) & (row < self.devices), row * bucket + column, arrived.shape[0] * bucket)
        stayed, came = _taken(x, self.stays), _taken(arrived.reshape(-1, *arrived.shape[2:]), place)
        return jnp.where(jnp.expand_dims(number < 0, tuple(range(1, x.ndim))), stayed, came)


def route(target: Array, me: Array, devices: int, gathered: Callable[[Array], Array]) -> Route:
    """Return the `Route` of the particles of this device.

    `target` holds the destination of the particle in each slot; `devices` stands for a slot without a particle.
    `gathered` returns the rows of all devices.
    """
    leaves = (target != me) & (target < devices)
    stays = target == me
    key = jnp.where(leaves, target, devices)
    sent = gathered(_histogram(key, devices))
    first = lambda mask: jnp.argsort(~mask, stable=True).astype(np.int32)
    order = jnp.argsort(key, stable=True).astype(np.int32)
    return Route(order, sent, first(stays), jnp.sum(stays, dtype=np.int32), me)


def _histogram(numbers: Array, length: int) -> Array:
    """Return how often each number below `length` occurs. Other numbers do not count."""
    return jnp.zeros(length, np.int32).at[numbers].add(1, mode="drop")


def _filled(starts: Array, counts: Array, bucket: int) -> Array:
    """Return, for each row, `starts + 0, 1, ...` up to its count, and then a number that is too large for any array."""
    column = jnp.arange(bucket, dtype=np.int32)
    return jnp.where(column[None] < counts[:, None], starts[:, None] + column[None], np.iinfo(np.int32).max)


def _taken(x: Array, where: Array) -> Array:
    """Return the rows of `x` with these numbers, and zeros for numbers that are too large."""
    return x.at[where].get(mode="fill", fill_value=0)


def by_dtype(move: Callable[[Array], Array], arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Apply `move` to arrays with the same rows. Arrays of one dtype are moved together, side by side."""
    found: dict[int, Array] = {}
    for dtype in dict.fromkeys(x.dtype for x in arrays):
        group = [i for i, x in enumerate(arrays) if x.dtype == dtype]
        wide = [arrays[i].reshape(arrays[i].shape[0], -1) for i in group]
        moved = move(jnp.concatenate(wide, axis=1))
        ends = np.cumsum([x.shape[1] for x in wide])[:-1]
        parts = jnp.split(moved, ends.tolist(), axis=1)
        found |= {i: part.reshape(arrays[i].shape) for i, part in zip(group, parts)}
    return tuple(found[i] for i in range(len(arrays)))
