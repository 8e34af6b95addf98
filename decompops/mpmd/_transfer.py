"""Moves arrays between any two shardings on any devices. All `reshard` functions of `decompops.mpmd` use this module.

An array is cut into regions. Each region lies within one block of the source and one block of the target. The sender
cuts the region out of its block and sends the region directly to the receiver. The receiver joins the regions of its
new block. Regions move by `jax.device_put` within a process, and by `jax.lax.ppermute` between processes.

`jax.device_put` of a whole array moves data directly only if source and target have the same blocks. For other blocks,
`jax.device_put` copies the array through the host within a process, and fails between processes.
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

from .._common.sharding import map_blocks
from ._mesh import Device, without_context


AXIS = "device"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """Cells that move from a block of `sender` (at index `start`) to a block of `receiver` (at index `end`)."""

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
        """Whether the region moves to another process."""
        return self.sender.process_index != self.receiver.process_index


@dataclass(frozen=True)
class Route:
    """The movement of an array with a given shape and dtype from one sharding to another."""

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
        """The regions that each device sends or keeps."""
        found = defaultdict(list)
        for region in self.regions:
            found[region.sender].append(region)
        return dict(found)

    @functools.cached_property
    def rounds(self) -> list[list[Region]]:
        """The regions that move to another process, grouped into the rounds of `_rounds`."""
        return _rounds([region for region in self.regions if region.crosses])

    @property
    def sent_bytes(self) -> int:
        """The number of bytes that all devices together send to others. No device receives a cell twice."""
        return sum(region.nbytes for region in self.regions if region.sender != region.receiver)

    @property
    def working_bytes(self) -> int:
        """The largest number of bytes that a device needs for cut regions, for received regions and for the target."""
        source, target = (math.prod(block) * self.dtype.itemsize for block in (self.source_block, self.target_block))
        cut = 0 if all(region.shape == self.source_block for region in self.regions) else source
        joined = 0 if all(region.shape == self.target_block for region in self.regions) else target
        # In a round, every participating device holds one region to send, and memory to receive one region.
        crossing = [regions[0].nbytes for regions in self.rounds]
        return cut + target + sum(crossing) + max(crossing, default=0) + joined


@functools.lru_cache(maxsize=1024)
def find_route(shape: Shape, dtype: np.dtype, source: NamedSharding, target: NamedSharding) -> Route:
    """Return the route for these arguments. Equal arguments give the same object, so its regions are computed once."""
    return Route(shape, dtype, source, target)


@without_context()
def transfer(
    sources: Sequence[Mapping[Device, jax.Array]], routes: Sequence[Route], *, donate: Sequence[bool]
) -> list[jax.Array]:
    """Move arrays along `routes`, and return the moved arrays. `sources` holds this process's blocks of each array.

    Every process that has a device in one of the routes must call this function with the same routes. A process without
    devices of a target gets an array without blocks. `donate` says which sources are consumed. If a block of a consumed
    source stays unchanged on its device, the result reuses the memory of the block. The caller deletes all other blocks
    of consumed sources.
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
            # Without a copy, the result would share memory with the source, and would be deleted with the source.
            part = _handed_over(part) if donate[number] else jnp.copy(part)
        received[number, region.receiver].append((region.end, part))
    results = []
    for number, route in enumerate(routes):
        mine = route.target.addressable_devices
        blocks = [_join(route, device, received.pop((number, device), [])) for device in mine]
        results.append(jax.make_array_from_single_device_arrays(route.shape, route.target, blocks, dtype=route.dtype))
    return results


def _cut(block: jax.Array, regions: Sequence[Region]) -> list[jax.Array]:
    """Cut regions out of a block. A region that several devices need is cut once; a whole block needs no cut."""
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
    """Join regions, given with their positions, into a block of the target."""
    if not parts:  # The block has no cells.
        return jnp.zeros(route.target_block, route.dtype, device=device)
    ends, blocks = zip(*parts)
    return blocks[0] if len(blocks) == 1 else _joined(route.target_block, ends, blocks)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _joined(shape: Shape, ends: tuple[Shape, ...], blocks: tuple[jax.Array, ...]) -> jax.Array:
    # The block is written in place, because nested concatenations would need memory for another block.
    whole = jnp.zeros(shape, blocks[0].dtype)
    for end, block in zip(ends, blocks):
        whole = jax.lax.dynamic_update_slice(whole, block, end)
    return whole


Key = tuple[int, Region]


def _exchange(rounds: list[list[Key]], cuts: Mapping[Key, jax.Array]) -> dict[Key, jax.Array]:
    """Move regions between processes, with one program for all devices that send or receive regions."""
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
        # Every device must provide a block in every round. A device that has no region to send provides zeros.
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
    """Group regions of the same shape into rounds. In a round, a device sends and receives at most one region.

    Regions are assigned by increasing distance between sender and receiver. So an exchange between all devices needs at
    most as many rounds as there are devices.
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
    """Return the devices that send or receive one of the regions, in an order that is the same in every process."""
    return sorted(
        {device for region in regions for device in (region.sender, region.receiver)}, key=lambda device: device.id
    )


def _regions(route: Route) -> Iterator[Region]:
    """Yield the regions of each block of the target, cut at the bounds of the source's blocks."""
    holders = defaultdict(list)
    for device, index in route.source.devices_indices_map(route.shape).items():
        holders[_bounds(index, route.shape)].append(device)
    # The blocks of the source form a grid with these intervals along each axis.
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
            # If several devices have the region, the sender is the receiver itself if possible, otherwise a device of
            # the same process. Among equal candidates, the device that sends the fewest regions is chosen.
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
