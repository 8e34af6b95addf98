"""Moves arrays between any two shardings, on any devices: the one mechanism below everything in this package.

Source and target are cut into regions, each within one block of either. A region is cut out where it is, goes straight
to the device that wants it, and is joined to the others there: between devices of one process by `jax.device_put`,
between processes by `jax.lax.ppermute`. `jax.device_put` of whole arrays does that only where the blocks of both
sides are the same; where they differ it goes through the host, and between processes it refuses.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._sharding import map_blocks
from ._mesh import Device, without_context


AXIS = "device"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """Cells that one device has and another wants, with their places in both blocks."""

    shape: Shape
    dtype: np.dtype
    sender: Device
    receiver: Device
    start: Shape
    end: Shape

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def crosses(self) -> bool:
        """Whether it goes to another process."""
        return self.sender.process_index != self.receiver.process_index


@dataclass(frozen=True)
class Route:
    """An array of one shape and dtype on its way from one sharding to another."""

    shape: Shape
    dtype: np.dtype
    source: NamedSharding
    target: NamedSharding

    @functools.cached_property
    def regions(self) -> tuple[Region, ...]:
        return tuple(_regions(self))

    @property
    def source_block(self) -> Shape:
        return self.source.shard_shape(self.shape)

    @property
    def target_block(self) -> Shape:
        return self.target.shard_shape(self.shape)

    @functools.cached_property
    def by_sender(self) -> dict[Device, list[Region]]:
        """The regions that each device has to send, or to keep."""
        found = defaultdict(list)
        for region in self.regions:
            found[region.sender].append(region)
        return dict(found)

    @functools.cached_property
    def rounds(self) -> list[list[Region]]:
        """The regions that go to another process, in the order of their travel."""
        return _rounds([region for region in self.regions if region.crosses])

    @property
    def sent_bytes(self) -> int:
        """The bytes that leave their device, over all devices. Nothing is sent to a device twice."""
        return sum(region.nbytes for region in self.regions if region.sender != region.receiver)

    @property
    def working_bytes(self) -> int:
        """The most that a device holds beside the source: what is cut out, what arrives, and the target."""
        source, target = (math.prod(block) * self.dtype.itemsize for block in (self.source_block, self.target_block))
        cut = 0 if all(region.shape == self.source_block for region in self.regions) else source
        joined = 0 if all(region.shape == self.target_block for region in self.regions) else target
        # In a round every device that takes part has a region to send and room for another, wanted or not.
        crossing = [regions[0].nbytes for regions in self.rounds]
        return cut + target + sum(crossing) + max(crossing, default=0) + joined


@functools.lru_cache(maxsize=1024)
def find_route(shape: Shape, dtype: np.dtype, source: NamedSharding, target: NamedSharding) -> Route:
    """The same route for the same question: what it consists of is worked out once."""
    return Route(shape, dtype, source, target)


@without_context()
def transfer(
    sources: Sequence[Mapping[Device, jax.Array]], routes: Sequence[Route], *, donate: Sequence[bool]
) -> list[jax.Array]:
    """The arrays of `routes` at their targets, made from this process's blocks of their sources.

    Every process that has a device in one of the routes must call this with the same routes. A process without devices
    at a target gets an array without blocks. Where `donate` says so, the source is of no use any more: a block that
    stays as it is keeps its memory, and the caller deletes the others.
    """
    cuts: dict[Key, jax.Array] = {}
    for number, (blocks, route) in enumerate(zip(sources, routes)):
        for sender, regions in route.by_sender.items():
            if sender.process_index == jax.process_index():
                cuts |= zip(((number, region) for region in regions), _cut(blocks[sender], regions))
    local = [key for key in cuts if not key[1].crosses]
    arrived = dict(zip(local, jax.device_put([cuts[key] for key in local], [region.receiver for _, region in local])))
    rounds = [
        [(number, region) for region in regions] for number, route in enumerate(routes) for regions in route.rounds
    ]
    arrived |= _exchange(rounds, cuts)
    del cuts
    received = defaultdict(list)
    for (number, region), part in arrived.items():
        if (
            region.sender == region.receiver
            and region.shape == routes[number].source_block == routes[number].target_block
        ):
            # Else it would share the memory of the source's block, and end with it.
            part = _handed_over(part) if donate[number] else jnp.copy(part)
        received[number, region.receiver].append((region.end, part))
    results = []
    for number, route in enumerate(routes):
        mine = route.target.addressable_devices
        blocks = [_join(route, device, received.pop((number, device), [])) for device in mine]
        results.append(jax.make_array_from_single_device_arrays(route.shape, route.target, blocks, dtype=route.dtype))
    return results


def _cut(block: jax.Array, regions: Sequence[Region]) -> list[jax.Array]:
    """The regions that leave a block, which may be one itself. What several devices want is cut out once."""
    if regions[0].shape == block.shape:
        return [block] * len(regions)
    places = tuple(dict.fromkeys((region.start, region.shape) for region in regions))
    pieces = dict(zip(places, _sliced(places, block)))
    return [pieces[region.start, region.shape] for region in regions]


@functools.partial(jax.jit, static_argnums=0)
def _sliced(places: tuple[tuple[Shape, Shape], ...], block: jax.Array) -> list[jax.Array]:
    return [jax.lax.slice(block, start, [a + n for a, n in zip(start, shape)]) for start, shape in places]


@functools.partial(jax.jit, donate_argnums=0)
def _handed_over(block: jax.Array) -> jax.Array:
    return block


def _join(route: Route, device: Device, parts: list[tuple[Shape, jax.Array]]) -> jax.Array:
    """A block of the target from its regions and their places."""
    if not parts:  # it has no cells
        return jnp.zeros(route.target_block, route.dtype, device=device)
    ends, blocks = zip(*parts)
    return blocks[0] if len(blocks) == 1 else _joined(route.target_block, ends, blocks)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _joined(shape: Shape, ends: tuple[Shape, ...], blocks: tuple[jax.Array, ...]) -> jax.Array:
    # In place: nested concatenations would need room for another block.
    whole = jnp.zeros(shape, blocks[0].dtype)
    for end, block in zip(ends, blocks):
        whole = jax.lax.dynamic_update_slice(whole, block, end)
    return whole


Key = tuple[int, Region]


def _exchange(rounds: list[list[Key]], cuts: Mapping[Key, jax.Array]) -> dict[Key, jax.Array]:
    """Carry regions between processes, in one program for all devices that send or receive one."""
    devices = _involved([region for keys in rounds for _, region in keys])
    mine = [device for device in devices if device.process_index == jax.process_index()]
    if not mine:
        return {}
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))
    place = {device: index for index, device in enumerate(devices)}
    empty = functools.cache(lambda shape, dtype, device: jnp.zeros(shape, dtype, device=device))
    arguments, pairs = [], []
    for keys in rounds:
        region = keys[0][1]
        shape = region.shape or (1,)
        sent = {key[1].sender: key for key in keys}
        # Every device takes part: what has nothing to send brings room for it.
        blocks = [
            cuts[sent[device]].reshape(shape) if device in sent else empty(shape, region.dtype, device)
            for device in mine
        ]
        whole = (shape[0] * len(devices), *shape[1:])
        arguments.append(jax.make_array_from_single_device_arrays(whole, sharding, blocks))
        pairs.append(tuple((place[region.sender], place[region.receiver]) for _, region in keys))
    arrived = {}
    for keys, result in zip(rounds, _permute(sharding, tuple(pairs))(*arguments)):
        shards = {shard.device: shard.data for shard in result.addressable_shards}
        for number, region in keys:
            if region.receiver in shards:
                arrived[number, region] = shards[region.receiver].reshape(region.shape)
    return arrived


@functools.lru_cache(maxsize=256)
def _permute(sharding: NamedSharding, pairs: tuple[tuple[tuple[int, int], ...], ...]) -> Any:
    def send(*blocks: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jax.lax.ppermute(block, AXIS, step) for block, step in zip(blocks, pairs))

    return jax.jit(map_blocks(send, sharding.mesh, (AXIS,), sharding.spec, sharding.spec))


def _rounds(regions: Sequence[Region]) -> list[list[Region]]:
    """Regions of one shape that travel at the same time, a device sending at most one and receiving at most one.

    They are taken by distance: so, where everyone sends to everyone, there are no more rounds than devices.
    """
    devices = _involved(regions)
    place = {device: index for index, device in enumerate(devices)}

    def distance(region: Region) -> tuple[int, int]:
        return (place[region.receiver] - place[region.sender]) % len(devices), place[region.sender]

    rounds: list[tuple[Shape, set[tuple[str, Device]], list[Region]]] = []
    for region in sorted(regions, key=distance):
        busy = {("sends", region.sender), ("receives", region.receiver)}
        for shape, taken, found in rounds:
            if shape == region.shape and taken.isdisjoint(busy):
                taken |= busy
                found.append(region)
                break
        else:
            rounds.append((region.shape, busy, [region]))
    return [found for _, _, found in rounds]


def _involved(regions: Sequence[Region]) -> list[Device]:
    """The devices that send or receive one of them, in an order that is the same in every process."""
    return sorted(
        {device for region in regions for device in (region.sender, region.receiver)}, key=lambda device: device.id
    )


def _regions(route: Route) -> Iterator[Region]:
    """What each device of the target wants, cut at the bounds of the source's blocks."""
    holders = defaultdict(list)
    for device, index in route.source.devices_indices_map(route.shape).items():
        holders[_bounds(index, route.shape)].append(device)
    # The source is a grid: along each axis, its blocks have these intervals.
    intervals = [sorted({bounds[axis] for bounds in holders}) for axis in range(len(route.shape))]
    sent: dict[Device, int] = defaultdict(int)
    for receiver, index in route.target.devices_indices_map(route.shape).items():
        wanted = _bounds(index, route.shape)
        overlapping = [
            [(start, stop) for start, stop in cuts if start < high and low < stop]
            for cuts, (low, high) in zip(intervals, wanted)
        ]
        for bounds in product(*overlapping):
            common = [(max(start, low), min(stop, high)) for (start, stop), (low, high) in zip(bounds, wanted)]
            # Of several devices that have it: itself, else one of the same process, else the one that sends least.
            sender = min(
                holders[bounds], key=lambda d: (d != receiver, d.process_index != receiver.process_index, sent[d])
            )
            sent[sender] += sender != receiver
            yield Region(
                shape=tuple(stop - start for start, stop in common),
                dtype=route.dtype,
                sender=sender,
                receiver=receiver,
                start=tuple(start - origin for (start, _), (origin, _) in zip(common, bounds)),
                end=tuple(start - origin for (start, _), (origin, _) in zip(common, wanted)),
            )


def _bounds(index: tuple[slice, ...], shape: Shape) -> tuple[tuple[int, int], ...]:
    return tuple(part.indices(length)[:2] for part, length in zip(index, shape))
