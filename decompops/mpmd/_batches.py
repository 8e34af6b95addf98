"""Splits the movement of many arrays into batches that fit into memory."""

import math
import zlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._mesh import Device, MpmdMesh, without_context


# The threshold in bytes for platforms that do not report their free memory.
DEFAULT_THRESHOLD = 2**30


def batches(sizes: Sequence[int], groups: Sequence[int], threshold: int) -> Iterator[list[int]]:
    """Yield batches of positions in `sizes`. The sizes of a batch add up to at most `threshold`.

    A size above `threshold` forms a batch of its own. Positions are taken from the groups in turn, always the largest
    remaining size of a group. All groups are therefore busy, and the batches that need the most memory come first.
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


def check_threshold(threshold: int | None) -> None:
    """Raise `TypeError` or `ValueError` unless a threshold is a positive number of bytes or `None`."""
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | np.integer)):
        raise TypeError(f"`threshold` must be a whole number of bytes; got {threshold!r}.")
    if threshold is not None and not 0 < threshold < 2**63:
        raise ValueError(f"`threshold` must be a positive number of bytes below 2**63; got {threshold}.")


@without_context()
def agreed_threshold(mpmd_mesh: MpmdMesh, described: Sequence[tuple], threshold: int | None) -> int:
    """Return the threshold in bytes for all processes of the mesh: the smallest threshold that any process proposes.

    Raises `ValueError` if the processes describe different arrays or pass different thresholds.
    """
    devices = mpmd_mesh.mesh.devices
    free = _free_bytes([device for device in devices.flat if device.process_index == jax.process_index()])
    proposed = free // 3 if threshold is None else int(threshold)
    if not mpmd_mesh.mesh.is_multi_process:
        return proposed
    checksum = zlib.crc32(repr((described, threshold)).encode())
    # JAX has 64-bit integers only with `jax_enable_x64`, so the numbers are split into 32-bit words.
    words = np.array([proposed >> 32, proposed & 0xFFFFFFFF, checksum], np.uint32)
    line = NamedSharding(Mesh(devices.reshape(-1), ("device",)), PartitionSpec("device"))
    everyone = jax.make_array_from_callback((devices.size, 3), line, lambda index: words[None])
    everywhere = NamedSharding(line.mesh, PartitionSpec())
    words = np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(everyone)).astype(np.int64)
    if len(set(words[:, 2].tolist())) > 1:
        raise ValueError(
            "All processes must move arrays of the same shapes, dtypes and shardings (NumPy arrays: the same values), "
            f"in the same order, with the same `threshold`; process {jax.process_index()} differs from another process."
        )
    return int(np.min((words[:, 0] << 32) + words[:, 1]))


def _free_bytes(devices: list[Device]) -> int:
    """Return the smallest free memory of any device in bytes, or `3 * DEFAULT_THRESHOLD` if no device reports it."""
    free = math.inf
    for device in devices:
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            free = min(free, stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return 3 * DEFAULT_THRESHOLD if free == math.inf else max(int(free), 3)
