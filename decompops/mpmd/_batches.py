"""How much is moved at a time."""

import math
import zlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._mesh import Device, MpmdMesh, without_context


# Where a platform does not say how much memory is free.
DEFAULT_THRESHOLD = 2**30


def batches(sizes: Sequence[int], groups: Sequence[int], threshold: int) -> Iterator[list[int]]:
    """The positions of `sizes`, in batches of `threshold` together; what is larger comes alone.

    The groups take turns, each with the largest that it has left, so that all of them are busy and the most room is
    needed first.
    """
    left: dict[int, list[int]] = {}
    for position in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        left.setdefault(groups[position], []).append(position)
    rounds = range(max(map(len, left.values()), default=0))
    order = [left[group][turn] for turn in rounds for group in sorted(left) if turn < len(left[group])]
    batch, total = [], 0
    for position in order:
        if batch and total + sizes[position] > threshold:
            yield batch
            batch, total = [], 0
        batch.append(position)
        total += sizes[position]
    if batch:
        yield batch


@without_context()
def agreed_threshold(mpmd_mesh: MpmdMesh, described: Sequence[tuple], threshold: int | None) -> int:
    """The threshold that all processes of the mesh keep, after a check that they mean the same arrays."""
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | np.integer)):
        raise TypeError(f"`threshold` must be a whole number of bytes; got {threshold!r}.")
    if threshold is not None and not 0 < threshold < 2**63:
        raise ValueError(f"`threshold` must be positive, in bytes; got {threshold}.")
    devices = mpmd_mesh.mesh.devices
    free = _free_bytes([device for device in devices.flat if device.process_index == jax.process_index()])
    proposed = free // 3 if threshold is None else int(threshold)
    if not mpmd_mesh.mesh.is_multi_process:
        return proposed
    checksum = zlib.crc32(repr((described, threshold)).encode())
    # In words of 32 bits, whatever `jax_enable_x64` says.
    words = np.array([proposed >> 32, proposed & 0xFFFFFFFF, checksum], np.uint32)
    line = NamedSharding(Mesh(devices.reshape(-1), ("device",)), PartitionSpec("device"))
    everyone = jax.make_array_from_callback((devices.size, 3), line, lambda index: words[None])
    everywhere = NamedSharding(line.mesh, PartitionSpec())
    words = np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(everyone)).astype(np.int64)
    if len(set(words[:, 2].tolist())) > 1:
        raise ValueError(
            "All processes must move arrays of the same shapes, dtypes and shardings (NumPy arrays: the same values), "
            f"in the same order, with the same `threshold`; process {jax.process_index()} differs from another."
        )
    return int(np.min((words[:, 0] << 32) + words[:, 1]))


def _free_bytes(devices: list[Device]) -> int:
    """The least free memory of `devices`, in bytes."""
    free = math.inf
    for device in devices:
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            free = min(free, stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return 3 * DEFAULT_THRESHOLD if free == math.inf else max(int(free), 3)
