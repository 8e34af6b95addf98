"""Plans of transforms of whole arrays. Each axis of an array is a grid axis, and any of these axes may be sharded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .._basis.base import AbstractBasis
from .._common.blocks import Blocks, MeshAxis, entry_names
from .plan import Plan
from .route import Division, divided_blocks, find_route
from .transform import plan_along


# The mesh axes that shard each axis of an array: a partition spec of full length.
Entries = tuple[MeshAxis | None, ...]


def whole_array_plan(
    name: str,
    bases: tuple[AbstractBasis, ...],
    lengths: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    ends: tuple[Entries | None, Entries | None],
    sizes: Mapping[str, int],
    *,
    scale: float,
    is_complex: bool,
) -> Plan:
    """Return the plan that transforms an array from points to coefficients, on the route that communicates least.

    - `lengths`: the shape of the array before the transform, the lengths that are transformed, and the shape of the
        result.
    - `ends`: the entries that shard the array, and the entries that shard the result. One of the two may be `None`.
        Then, of all shardings that need no padding, the plan uses the one that is cheapest to reach.
    - `sizes`: the sizes of the mesh axes.
    - `is_complex`: whether the input is complex.

    Raises `NoRouteError`, a `ValueError`, if there is no route.
    """
    before, points, after = lengths
    start, end = (None if entries is None else _division(entries, sizes) for entries in ends)
    legs = find_route(before, start, end, bases, after, is_complex=is_complex)
    labels = next(entries for entries in ends if entries is not None)
    source = _labelled(divided_blocks(before, legs[0].division), ends[0] or labels, sizes)
    target = _labelled(divided_blocks(after, legs[-1].division), ends[1] or labels, sizes)
    return plan_along(name, legs, source, target, bases, points, points=points, scale=scale)


def default_entries(shape: Sequence[int], sizes: Mapping[str, int], fixed: Entries | None = None) -> Entries:
    """Return the default sharding of an array of `shape` on mesh axes of `sizes`.

    If there are more mesh axes than array axes, only the last mesh axes are used. One after the other, each mesh axis
    shards the next free array axis whose length it divides. Entries in `fixed` stay. A one-dimensional array is not
    sharded, because its transform needs the whole axis.
    """
    entries = list(fixed or [None] * len(shape))
    free = [axis for axis, entry in enumerate(entries) if entry is None] if len(shape) > 1 else []
    for name in list(sizes)[-len(shape) :]:
        found = next((axis for axis in free if shape[axis] % sizes[name] == 0), None)
        if found is not None:
            entries[found] = name
            free = [axis for axis in free if axis > found]
    return tuple(entries)


def undivided_axis(shape: Sequence[int], entries: Entries, sizes: Mapping[str, int]) -> int | None:
    """Return the first axis of an array whose length is not divisible by its number of blocks, or `None`."""
    counts = [math.prod(sizes[name] for name in entry_names(entry)) for entry in entries]
    return next((axis for axis, (n, count) in enumerate(zip(shape, counts)) if n % count), None)


def _division(entries: Entries, sizes: Mapping[str, int]) -> Division:
    """Return the mesh axes, with their sizes, that shard each array axis. Exchanges may move mesh axes separately."""
    return tuple(tuple((name, sizes[name]) for name in entry_names(entry) if sizes[name] > 1) for entry in entries)


def _labelled(blocks: Blocks, entries: Entries, sizes: Mapping[str, int]) -> Blocks:
    """Return `blocks`, but give whole axes the mesh axes of size 1 in `entries` as names.

    These mesh axes shard nothing. But they are part of the type of an array in JAX, and JAX compares types.
    """
    labels = (entry if all(sizes[name] == 1 for name in entry_names(entry)) else None for entry in entries)
    return replace(blocks, names=tuple(name or label for name, label in zip(blocks.names, labels)))
