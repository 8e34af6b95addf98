"""The section on the bandwidths of memory and network, and on the share of a bandwidth that each benchmark uses."""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ..._common.sharding import map_blocks
from ..bench.program import Contestant, memory_passes
from ..bench.run import compare
from .setting import Setting


# The number of copies and the number of all-to-alls in one run. An even number of all-to-alls would move all data back
# to their first place, so the check of the result could not tell whether data moved at all.
_PASSES, _ROUNDS = 4, 3


def limits(setting: Setting, results: dict[str, Any]) -> dict[str, Any]:
    """Measure bandwidths for several block sizes, in bytes per second on one device.

    Also compute the share of these bandwidths that each earlier benchmark used.
    """
    found = setting.each(setting.block_bytes, lambda size: _bandwidths(size, setting))
    measured = results.get("benchmarks", {}).get("data", {}).get("rows", [])
    share_memory = setting.devices[0].platform == "cpu" and jax.process_count() == 1
    shares = (_share(row, found["rows"], share_memory=share_memory) for row in measured)
    return {**found, "shares": [share for share in shares if share]}


def _bandwidths(block_bytes: int, setting: Setting) -> dict[str, Any]:
    """Measure the bandwidths for one block size.

    The bandwidth of a copy counts the bytes that a device reads and writes. The bandwidth of an all-to-all counts the
    bytes that a device sends to other devices.
    """
    size = len(setting.devices)
    length = max(block_bytes // (4 * size), 1) * size  # A multiple of the number of devices.
    moved = 2 * 4 * length * _PASSES
    sent = 4 * length * (size - 1) / size
    bytes_of_runs = {"copy_one": moved, "copy_all": moved, "all_to_all": _ROUNDS * sent, "mpi_all_to_all": sent}
    everyone = Mesh(np.array(setting.devices), ("x",))
    alone = Mesh(np.array(jax.local_devices()[:1]), ("x",))
    one = np.ones(())
    entrants: list[tuple[str, Callable[[], Contestant], Any]] = [
        ("copy_one", partial(memory_passes, alone, length, _PASSES), one),
        ("copy_all", partial(memory_passes, everyone, length, _PASSES), one),
    ]
    if size > 1:
        entrants.append(("all_to_all", partial(_all_to_all, everyone, length), one))
    if setting.devices[0].platform == "cpu" and jax.process_count() > 1 and "mpi4py.MPI" in sys.modules:
        entrants.append(("mpi_all_to_all", partial(_mpi_all_to_all, length), one))
    rows = compare(iter(entrants), 0.0, setting.repeats)
    found: dict[str, Any] = {"block_bytes": 4 * length}
    for row in rows:
        if row["failure"]:
            raise RuntimeError(f"{row['name']}: {row['failure']}")
        found[row["name"]] = bytes_of_runs[row["name"]] / row["median_s"]
    return found


def _all_to_all(mesh: Mesh, length: int) -> Contestant:
    """Return a contestant: all-to-alls of XLA with blocks of `length` float32 numbers. Their memory is reused."""
    size = mesh.size
    rows = np.arange(size * size, dtype=np.float32)
    sharding = NamedSharding(mesh, P("x"))
    fill = jax.jit(lambda: jnp.broadcast_to(rows[:, None], (size * size, length // size)), out_shardings=sharding)
    x = fill()

    def exchange(block: jax.Array) -> jax.Array:
        once = lambda _, block: lax.all_to_all(block, "x", 0, 0, tiled=True)
        return lax.fori_loop(0, _ROUNDS, once, block)

    step = jax.jit(map_blocks(exchange, mesh, ("x",), P("x"), P("x")), donate_argnums=0)

    def run() -> jax.Array:
        nonlocal x
        x = step(x)
        return x

    def collect(result: jax.Array) -> np.ndarray:
        """Return 1 if every piece has come from the right device, else 0."""
        right = rows.reshape(size, size).T.reshape(-1, 1)
        return np.asarray(jnp.all(result == right)).astype(float)

    return Contestant(run, collect)


def _mpi_all_to_all(length: int) -> Contestant:
    """Return a contestant: one all-to-all of MPI without JAX, with blocks of `length` float32 numbers."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    sent = np.full((world.size, length // world.size), world.rank, np.float32)
    received = np.empty_like(sent)

    def run() -> np.ndarray:
        world.Alltoall(sent, received)
        return received

    def collect(result: np.ndarray) -> np.ndarray:
        return np.asarray(float((result == np.arange(world.size)[:, None]).all()))

    return Contestant(run, collect)


def _share(row: dict[str, Any], bandwidths: list[dict[str, Any]], *, share_memory: bool) -> dict[str, Any] | None:
    """Return the least times that a benchmark needs for memory and for the network, as shares of its measured time.

    The bandwidth of memory is measured with the largest block, because smaller blocks may stay in a cache. The
    bandwidth of the network is measured with the block whose size is nearest to the block of the benchmark. In one
    process on CPUs, devices share memory, so sending is a copy. The sum of both shares may exceed 1 if a program uses
    memory and network at the same time.
    """
    ours = row["contestants"][0]
    if not bandwidths or not ours["median_s"]:
        return None
    program = row["program"]
    largest = max(bandwidths, key=lambda one: one["block_bytes"])
    nearest = min(bandwidths, key=lambda one: abs(math.log(one["block_bytes"] / program["block_bytes"])))
    network = max(nearest.get("all_to_all", 0.0), nearest.get("mpi_all_to_all", 0.0))
    if share_memory:
        network = max(network, largest["copy_all"] / 2)
    memory_s = sum(program["least_bytes_per_fft_pass"]) / largest["copy_all"]
    network_s = program["least_communicated_bytes"] / network if network else 0.0
    return {
        **{name: row[name] for name in ("operator", "shape", "mesh", "dtype")},
        "memory_block_bytes": largest["block_bytes"],
        "network_block_bytes": nearest["block_bytes"],
        "memory": memory_s / ours["median_s"],
        "network": network_s / ours["median_s"],
    }
