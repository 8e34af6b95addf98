"""The case `reshard` of the benchmark: a field moves from one group of devices to another and is resharded."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ...mpmd import MpmdMesh, reshard
from ...mpmd._transfer import Route
from .program import Contestant, random_field


@dataclass(frozen=True)
class HandOver:
    """A move of a field from the first to the last group of devices along the mesh axis x.

    The mesh axis y shards the first axis of the field before the move, and the second axis after the move.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    dtype: np.dtype

    @cached_property
    def route(self) -> Route:
        groups = MpmdMesh(self.mesh, "x").groups
        return Route(self.shape, self.dtype, NamedSharding(groups[0], P("y")), NamedSharding(groups[-1], P(None, "y")))

    def entrants(self) -> Iterator[tuple[str, Callable[[], Contestant], Any]]:
        u = random_field(self.shape, self.dtype)
        source, target = self.route.source, self.route.target
        field = jax.make_array_from_callback(self.shape, source, lambda index: u[index], dtype=self.dtype)

        def by_jax() -> Array:
            # Each run gets a new array, because JAX would reuse the copy of an old array that it has on the host.
            blocks: Any = [shard.data for shard in field.addressable_shards]
            return jax.device_put(jax.make_array_from_single_device_arrays(self.shape, source, blocks), target)

        yield "decompops", lambda: Contestant(lambda: reshard(field, target), self._collect), u
        yield "jax.device_put", lambda: Contestant(by_jax, self._collect), u

    def report(self) -> dict[str, Any]:
        """Return the communication and memory of one receiving device, which holds no part of the field at first."""
        devices = len(self.route.target.device_set)
        least = math.prod(self.route.target_block) * self.dtype.itemsize
        permutes = len(self.route.rounds)
        sent = self.route.sent_bytes // devices
        kind = {"kind": "collective-permute", "group_size": 2 * devices}
        return {
            "collectives": [{**kind, "count": permutes, "bytes": sent}] if permutes else [],
            "kernel_messages": 0,
            "communicated_bytes": sent,
            "least_communicated_bytes": least,
            "block_bytes": least,
            "temporary_bytes": self.route.working_bytes,
            "temporary_blocks": self.route.working_bytes / least,
            "temporary_bytes_of_parts": {},
            "kernel_workspace_bytes": 0,
            "least_bytes_per_fft_pass": [],
        }

    def _collect(self, result: Array) -> np.ndarray:
        """Gather the field in every process."""
        everywhere = reshard(result, NamedSharding(self.mesh, P()))
        return np.asarray(everywhere.addressable_data(0))
