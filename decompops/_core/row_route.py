"""How XLA moves rows of arrays between devices: by at most two messages between any two devices.

Few rows leave a device in one step of a simulation. If no device sends more than `bucket` rows to any other, one
exchange of buckets of this size brings all of them home; small buckets are tried first. Otherwise there are two
exchanges: each device first deals its leaving rows, in the order of their destinations, to all devices in turn, and
these pass them on. Dealing evens out the messages: whatever moves where, no device passes more than
`slots / devices + devices` rows to any other. So both ways need a fixed amount of memory, and no row is left over.

All functions compute one device's part, inside a `shard_map`. Every device knows how many rows each device sends to
each other one (a matrix of `devices²` numbers), and works out from that which rows it gets in which order.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._backend.base import Group
from .._backend.xla.backend import all_to_all
from .order import order


Arrays = tuple[Array, ...]

# Buckets for which there is one exchange only, as parts of `slots / devices`.
PARTS = (8, 2)
_NONE = np.int32(np.iinfo(np.int32).max)  # A number that is too large for any array.


class RowRoute(NamedTuple):
    """What one device needs to send and receive rows.

    - `names`: the mesh axes between whose devices rows move.
    - `leaving`: the device's own slots whose rows leave, by their destination.
    - `entering`: its slots that rows fill which come, by their source.
    - `others`: its slots whose rows change their slot on the device, and the slots that they fill.
    - `sent`: how many rows device i sends to device d, for all i and d: a matrix.
    - `kept`: of how many of the first slots the rows stay, unless other rows fill them.

    Lists of slots end with numbers that are too large.
    """

    names: tuple[str, ...]
    leaving: Array
    entering: Array
    others: tuple[Array, Array]
    sent: Array
    kept: Array

    @classmethod
    def of(cls, group: Group, leaving: Array, sent: Array, count: Array, *, back: bool) -> "RowRoute":
        """Return the route of `move_rows`. With `back`, it is the way back."""
        slots, number = leaving.shape[0], jnp.arange(leaving.shape[0], dtype=np.int32)
        me = jax.lax.axis_index(group.names)
        left, came = jnp.sum(sent[me], dtype=np.int32), jnp.sum(sent[:, me], dtype=np.int32)
        after = count - left + came
        leaving = jnp.where(number < left, leaving, slots)
        leaves = jnp.zeros(slots, bool).at[leaving].set(True, mode="drop")
        # Rows fill the slots before `after` that others leave, and then the slots behind the last row.
        is_free = (leaving < after).astype(np.int32)
        free = jnp.sum(is_free, dtype=np.int32)
        places = jnp.where(is_free == 1, jnp.cumsum(is_free, dtype=np.int32) - 1, slots)
        entering = jnp.where(number >= free, number - free + count, slots)
        entering = entering.at[places].set(leaving, mode="drop")
        # Rows in slots from `after` on that do not leave fill the slots that are free then: at most half of the slots.
        # There are at most as many as have left the device.
        moves = (number >= after) & (number < count) & ~leaves
        ends = jnp.cumsum(moves, dtype=np.int32)
        most = (slots + 1) // 2
        from_ = jnp.full(most, slots, np.int32).at[jnp.where(moves, ends - 1, slots)].set(number, mode="drop")
        rank = number[:most]
        to = _taken(entering, jnp.where(rank < ends[-1:], came + rank, slots), slots)
        entering = jnp.where(number < came, entering, slots)
        kept = jnp.minimum(count, after)
        if back:
            return cls(group.names, entering, leaving, (to, from_), sent.T, kept)
        return cls(group.names, leaving, entering, (from_, to), sent, kept)

    @property
    def devices(self) -> int:
        return self.sent.shape[0]

    @property
    def slots(self) -> int:
        return self.leaving.shape[0]

    @property
    def me(self) -> Array:
        return jax.lax.axis_index(self.names).astype(np.int32)

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the slots of this device after all rows have moved. Slots without a row hold zeros."""
        if not all(x.size for x in arrays):  # Arrays without elements stay as they are.
            moved = iter(self(tuple(x for x in arrays if x.size)))
            return tuple(next(moved) if x.size else x for x in arrays)
        if not arrays:
            return ()
        buckets = sorted({-(-self.slots // (self.devices * factor)) for factor in PARTS})
        move = self._dealt
        for bucket in reversed(buckets):
            move = self._directly_or(move, bucket)
        return move(arrays)

    def _directly_or(self, otherwise: Callable[[Arrays], Arrays], bucket: int) -> Callable[[Arrays], Arrays]:
        fits = jnp.max(self.sent) <= bucket
        return lambda arrays: jax.lax.cond(fits, lambda x: self._directly(x, bucket), otherwise, arrays)

    def _directly(self, arrays: Arrays, bucket: int) -> Arrays:
        own = self.sent[self.me]
        where = _taken(self.leaving, _filled(jnp.cumsum(own, dtype=np.int32) - own, own, bucket), self.slots)
        arrived = self._by_dtype([_taken(x, where) for x in arrays])
        came = self.sent[:, self.me]
        return self._settled(arrays, arrived, _filled(jnp.cumsum(came, dtype=np.int32) - came, came, bucket))

    def _dealt(self, arrays: Arrays) -> Arrays:
        devices, slots = self.devices, self.slots
        number = jnp.arange(devices, dtype=np.int32)
        leaving = jnp.sum(self.sent, 1, dtype=np.int32)
        # Device i deals row number r of those that leave it to device (i + r) mod devices.
        turn = jnp.arange(-(-slots // devices), dtype=np.int32) * devices
        dealt = ((number - self.me) % devices)[:, None] + turn[None]
        dealt = _taken(self.leaving, jnp.where(dealt < leaving[self.me], dealt, slots), slots)
        held = self._by_dtype([_taken(x, dealt) for x in arrays])
        # This device now holds the rows (me - i) mod devices + turn of each device i.
        ranks = ((self.me - number) % devices)[:, None] + turn[None]
        ends = jnp.cumsum(self.sent, 1, dtype=np.int32)
        target = jax.vmap(lambda row, rank: jnp.searchsorted(row, rank, side="right"))(ends, ranks)
        target = jnp.where(ranks < leaving[:, None], target, devices).astype(np.int32).ravel()
        by_target, passed = order(target, devices)
        bucket = len(turn) + devices
        where = _filled(jnp.cumsum(passed, dtype=np.int32) - passed, passed, bucket)
        onwards = _taken(by_target, where, len(by_target))
        arrived = self._by_dtype([_taken(x.reshape(-1, *x.shape[2:]), onwards) for x in held])
        # How many rows of device i each device k passed on to this device. Of the ranks from `first` to `last` - 1, it
        # had those that are (k - i) mod devices, modulo devices.
        came = self.sent[:, self.me]
        last = ends[:, self.me]
        first = last - came
        offset = (number[None] - number[:, None]) % devices
        below = lambda rank: (rank[:, None] - offset + devices - 1) // devices
        passed = below(last) - below(first)
        # Row j of device k is number `within` of those of device `source`. In the end, rows are in the order of their
        # sources, so that the way back is the transpose.
        stop, column = jnp.cumsum(passed, 0, dtype=np.int32), jnp.arange(bucket, dtype=np.int32)
        source = jax.vmap(lambda row: jnp.searchsorted(row, column, side="right"))(stop.T).astype(np.int32)
        is_row, source = source < devices, jnp.minimum(source, devices - 1)
        within = column[None] - (stop - passed)[source, number[:, None]]
        shift = (number[:, None] - source - first[source]) % devices
        numbers = (jnp.cumsum(came, dtype=np.int32) - came)[source] + shift + within * devices
        return self._settled(arrays, arrived, jnp.where(is_row, numbers, _NONE))

    def _settled(self, arrays: Arrays, arrived: Arrays, numbers: Array) -> Arrays:
        """Return the slots after row `[i, j]` of `arrived` has filled slot number `numbers[i, j]` of `entering`."""
        places = self._places(_taken(self.entering, numbers.ravel(), self.slots))
        from_, to = self.others
        to = self._places(to)
        stays = jnp.arange(self.slots, dtype=np.int32) < self.kept

        def settled(x: Array, arrived: Array) -> Array:
            kept = jnp.where(jnp.expand_dims(stays, tuple(range(1, x.ndim))), x, jnp.zeros((), x.dtype))
            came = arrived.reshape(-1, *x.shape[1:])
            filled = kept.at[places].set(came, mode="drop", unique_indices=True)
            return filled.at[to].set(_taken(x, from_), mode="drop", unique_indices=True)

        return tuple(map(settled, arrays, arrived))

    def _places(self, slots: Array) -> Array:
        """Return slots to write to. Those that are no slots become different numbers beyond all slots."""
        nowhere = self.slots + jnp.arange(len(slots), dtype=np.int32)
        return jnp.where(slots < self.slots, slots, nowhere)

    def _by_dtype(self, arrays: list[Array]) -> Arrays:
        """Send row d of each array to device d. Arrays of one dtype are sent together, side by side."""
        found: dict[int, Array] = {}
        for dtype in dict.fromkeys(x.dtype for x in arrays):
            group = [i for i, x in enumerate(arrays) if x.dtype == dtype]
            wide = [arrays[i].reshape(*arrays[i].shape[:2], -1) for i in group]
            moved = all_to_all(jnp.concatenate(wide, axis=2), self.names, 0)
            ends = np.cumsum([x.shape[2] for x in wide])[:-1]
            parts = jnp.split(moved, ends.tolist(), axis=2)
            found |= {i: part.reshape(*moved.shape[:2], *arrays[i].shape[2:]) for i, part in zip(group, parts)}
        return tuple(found[i] for i in range(len(arrays)))


def _filled(starts: Array, counts: Array, bucket: int) -> Array:
    """Return, for each row, `starts + 0, 1, ...` up to its count, and then `_NONE`."""
    column = jnp.arange(bucket, dtype=np.int32)
    return jnp.where(column[None] < counts[:, None], starts[:, None] + column[None], _NONE)


def _taken(x: Array, where: Array, otherwise: int = 0) -> Array:
    """Return the rows of `x` with these numbers, and `otherwise` for numbers that are too large."""
    return x.at[where].get(mode="fill", fill_value=otherwise)
