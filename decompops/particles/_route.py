"""The way of every particle to its device, by at most two messages between any two devices.

Few particles leave a device in one step. If no device sends more than `bucket` particles to any other, one exchange of
buckets of this size brings all of them home; small buckets are tried first. Otherwise there are two exchanges: each
device first deals its leaving particles, in the order of their destinations, to all devices in turn, and these pass
them on. Dealing evens out the messages: whatever moves where, no device passes more than `capacity / devices + devices`
particles to any other. So both ways need a fixed amount of memory, and no particle is ever left over.

Particles that stay keep their slots, and those that arrive fill the slots that others have left. If more leave than
arrive, the last particles of the device fill the slots that are still free. So a device copies its slots once, and
moves few rows. The order of particles on a device has no meaning.

All functions compute one device's part, inside a `shard_map`. Every device knows how many particles each device sends
to each other one (a matrix of `devices²` numbers), and works out from that which particles it gets in which order.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._core.order import order


# Brings row d of an array `(devices, bucket, ...)` of each device to device d: row i of the result is from device i.
AllToAll = Callable[[Array], Array]
Arrays = tuple[Array, ...]

# Buckets for which there is one exchange only, as parts of `capacity / devices`.
PARTS = (8, 2)


class Route(NamedTuple):
    """What one device needs to send and receive particles.

    - `order`: the device's own slots whose particles leave, by their destination.
    - `sent`: how many particles device i sends to device d, for all i and d: a matrix.
    - `free`: the device's own slots that particles must fill, and then those of particles that must fill them although
        they stay.
    - `gaps`: how many slots particles must fill.
    - `filled`: how many particles the device has at the end.
    - `me`: the number of this device.
    - `threads`: the threads of compiled kernels; `None` if XLA does all.
    """

    order: Array
    sent: Array
    free: Array
    gaps: Array
    filled: Array
    me: Array
    threads: int | None

    @property
    def devices(self) -> int:
        return self.sent.shape[0]

    @property
    def capacity(self) -> int:
        return self.order.shape[0]

    def __call__(self, arrays: Arrays, all_to_all: AllToAll) -> Arrays:
        """Return the slots of this device after all particles have moved. Slots without a particle hold zeros."""
        buckets = sorted({-(-self.capacity // (self.devices * factor)) for factor in PARTS})
        move = lambda arrays: self._dealt(arrays, all_to_all)
        for bucket in reversed(buckets):
            move = self._directly_or(move, bucket, all_to_all)
        return move(arrays)

    def _directly_or(self, otherwise: Callable[[Arrays], Arrays], bucket: int, all_to_all: AllToAll) -> Callable:
        fits = jnp.max(self.sent) <= bucket
        return lambda arrays: jax.lax.cond(fits, lambda x: self._directly(x, bucket, all_to_all), otherwise, arrays)

    def _directly(self, arrays: Arrays, bucket: int, all_to_all: AllToAll) -> Arrays:
        own = self.sent[self.me]
        where = _taken(self.order, _filled(jnp.cumsum(own, dtype=np.int32) - own, own, bucket), self.capacity)
        arrived = _by_dtype(all_to_all, [_taken(x, where) for x in arrays])
        return self._settled(arrays, arrived, self.sent[:, self.me])

    def _dealt(self, arrays: Arrays, all_to_all: AllToAll) -> Arrays:
        devices, capacity = self.devices, self.capacity
        number = jnp.arange(devices, dtype=np.int32)
        leaving = jnp.sum(self.sent, 1, dtype=np.int32)
        # Device i deals particle number r of those that leave it to device (i + r) mod devices.
        turn = jnp.arange(-(-capacity // devices), dtype=np.int32) * devices
        dealt = ((number - self.me) % devices)[:, None] + turn[None]
        dealt = _taken(self.order, jnp.where(dealt < leaving[self.me], dealt, capacity), capacity)
        held = _by_dtype(all_to_all, [_taken(x, dealt) for x in arrays])
        # This device now holds the particles (me - i) mod devices + turn of each device i.
        ranks = ((self.me - number) % devices)[:, None] + turn[None]
        ends = jnp.cumsum(self.sent, 1, dtype=np.int32)
        target = jax.vmap(lambda row, rank: jnp.searchsorted(row, rank, side="right"))(ends, ranks)
        target = jnp.where(ranks < leaving[:, None], target, devices).astype(np.int32).ravel()
        by_target, passed = order(target, devices, self.threads)
        bucket = len(turn) + devices
        where = _filled(jnp.cumsum(passed, dtype=np.int32) - passed, passed, bucket)
        onwards = _taken(by_target, where, len(by_target))
        arrived = _by_dtype(all_to_all, [_taken(x.reshape(-1, *x.shape[2:]), onwards) for x in held])
        # How many particles for this device each device k passed on: of the ranks from `first` to `last` - 1 of each
        # device i, those that are (k - i) mod devices, modulo devices.
        last = ends[:, self.me][:, None]
        first = last - self.sent[:, self.me][:, None]
        offset = (number[None] - number[:, None]) % devices
        below = lambda rank: (rank - offset + devices - 1) // devices
        return self._settled(arrays, arrived, jnp.sum(below(last) - below(first), 0, dtype=np.int32))

    def _settled(self, arrays: Arrays, arrived: Arrays, counts: Array) -> Arrays:
        """Return the slots after `counts[i]` particles in row i of `arrived` have filled gaps."""
        bucket, came = arrived[0].shape[1], jnp.sum(counts, dtype=np.int32)
        gaps = _filled(jnp.cumsum(counts, dtype=np.int32) - counts, counts, bucket).ravel()
        to_gaps = self._places(_taken(self.free, gaps, self.capacity))
        # Particles that fill gaps although they stay are in slots from `filled` on, and their gaps are before: at most
        # half of the slots. And there are at most as many as have left the device, which fitted into the buckets.
        rank = jnp.arange(min(self.devices * bucket, (self.capacity + 1) // 2), dtype=np.int32)
        rank = jnp.where(rank < self.gaps - came, rank, self.capacity)
        last = _taken(self.free, self.gaps + rank, self.capacity)
        to_others = self._places(_taken(self.free, came + rank, self.capacity))
        has_particle = jnp.arange(self.capacity, dtype=np.int32) < self.filled

        def settled(x: Array, arrived: Array) -> Array:
            kept = jnp.where(jnp.expand_dims(has_particle, tuple(range(1, x.ndim))), x, jnp.zeros((), x.dtype))
            came = arrived.reshape(-1, *x.shape[1:])
            filled = kept.at[to_gaps].set(came, mode="drop", unique_indices=True)
            return filled.at[to_others].set(_taken(x, last), mode="drop", unique_indices=True)

        return tuple(map(settled, arrays, arrived))

    def _places(self, slots: Array) -> Array:
        """Return slots to write to. Those that are no slots become different numbers beyond all slots."""
        nowhere = self.capacity + jnp.arange(len(slots), dtype=np.int32)
        return jnp.where(slots < self.capacity, slots, nowhere)


def _filled(starts: Array, counts: Array, bucket: int) -> Array:
    """Return, for each row, `starts + 0, 1, ...` up to its count, and then a number that is too large for any array."""
    column = jnp.arange(bucket, dtype=np.int32)
    return jnp.where(column[None] < counts[:, None], starts[:, None] + column[None], np.iinfo(np.int32).max)


def _taken(x: Array, where: Array, otherwise: int = 0) -> Array:
    """Return the rows of `x` with these numbers, and `otherwise` for numbers that are too large."""
    return x.at[where].get(mode="fill", fill_value=otherwise)


def _by_dtype(move: Callable[[Array], Array], arrays: list[Array]) -> Arrays:
    """Apply `move` to arrays with the same first two axes. Arrays of one dtype are moved together, side by side."""
    found: dict[int, Array] = {}
    for dtype in dict.fromkeys(x.dtype for x in arrays):
        group = [i for i, x in enumerate(arrays) if x.dtype == dtype]
        wide = [arrays[i].reshape(*arrays[i].shape[:2], -1) for i in group]
        moved = move(jnp.concatenate(wide, axis=2))
        ends = np.cumsum([x.shape[2] for x in wide])[:-1]
        parts = jnp.split(moved, ends.tolist(), axis=2)
        found |= {i: part.reshape(*moved.shape[:2], *arrays[i].shape[2:]) for i, part in zip(group, parts)}
    return tuple(found[i] for i in range(len(arrays)))
