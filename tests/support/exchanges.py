"""Exchanges of particles with given moves, and what they should do, in plain NumPy."""

import functools
from typing import Any

import decompops as dops
import jax
import numpy as np
from decompops import particles
from jax.sharding import Mesh


COUNT, CAPACITY = 160, 160
# How particles move. No device may get more than all of them.
MOVES = ("few", "none", "random", "rotated", "all to one", "from one", "emptied", "swapped")


def mesh_of(mesh: Mesh, backend: Any) -> particles.ParticleMesh:
    """Return slabs along x, with one cell for each device."""
    n, names = mesh.size, [str(name) for name in mesh.axis_names]
    axes = (tuple(names) if len(names) > 1 else names[0],)
    dec = dops.Decomposition(mesh, shape=(n, 3), axes=axes, box=dops.Box((1.0, 1.0)), pad=True, backend=backend)
    return particles.ParticleMesh(dec)


def owners(moves: str, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the device of each particle, before and after the exchange."""
    rng = np.random.default_rng(devices)
    before, other = rng.integers(0, devices, COUNT), rng.integers(0, devices, COUNT)
    last = devices - 1
    match moves:
        case "few":
            return before, np.where(rng.random(COUNT) < 0.05, other, before)
        case "none":
            return before, before
        case "random":
            return before, other
        case "rotated":
            return before, (before + 1) % devices
        case "all to one":
            return before, np.full(COUNT, last)
        case "from one":
            return np.zeros(COUNT, int), other
        case "emptied":  # Some devices lose all particles, some have none, and some lose the first ones.
            return before // 2, np.where(before < devices // 2, last, before // 2)
        case "swapped":
            return np.where(before < devices / 2, 0, last), np.where(before < devices / 2, last, 0)
    raise ValueError(moves)


def attributes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "id": rng.permutation(COUNT),
        "spin": rng.normal(size=(COUNT, 2, 3)).astype(np.float32),
        "phase": (rng.normal(size=COUNT) + 1j).astype(np.complex64),
        "bound": rng.random(COUNT) < 0.5,
        "short": rng.normal(size=(COUNT, 5)).astype(np.float16),
        "byte": rng.integers(-9, 9, (COUNT, 3)).astype(np.int8),
        "nothing": np.zeros((COUNT, 0)),
    }


def start(pm: particles.ParticleMesh, moves: str) -> tuple[np.ndarray, np.ndarray, particles.Particles]:
    """Return the owners before and after, and particles that must move."""
    devices = pm.decomposition.sizes[0]
    before, after = owners(moves, devices)
    inside = np.random.default_rng(2).uniform(0.1, 0.9, (COUNT, 2)).astype(np.float32)
    x, y = (
        np.stack([(owner + inside[:, 0]) / devices, inside[:, 1]], 1).astype(np.float32) for owner in (before, after)
    )
    p = pm.place(x, capacity=CAPACITY, y=y, **attributes())
    others = {name: value for name, value in p.attributes.items() if name != "y"}
    return before, after, particles.Particles(p["y"], others, p.counts, p.needed, p.invalid)


@functools.cache
def _compiled(pm: particles.ParticleMesh):
    return jax.jit(pm.exchange)


def check(pm: particles.ParticleMesh, moves: str) -> None:
    """Check that each particle is on its device with all of its attributes, and that others do not change slots."""
    devices = pm.decomposition.sizes[0]
    before, after, p = start(pm, moves)
    q = _compiled(pm)(p).check()
    given, found = attributes(), pm.gather(q)
    by_id = np.argsort(given["id"])
    np.testing.assert_array_equal(found.pop("positions"), pm.gather(p)["positions"])
    for name, values in given.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values[by_id])
    np.testing.assert_array_equal(q.counts, np.bincount(after, minlength=devices))
    ids = ([np.asarray(s.data) for s in x.addressable_shards] for x in (p["id"], q["id"]))
    for was, now, shard in zip(*ids, q["id"].addressable_shards):
        device = (shard.index[0].start or 0) // CAPACITY
        count = int(np.sum(after == device))
        np.testing.assert_array_equal(np.sort(now[:count]), np.sort(given["id"][after == device]))
        assert not now[count:].any()
        mine = np.isin(was, given["id"][(before == device) & (after == device)]) & (np.arange(CAPACITY) < count)
        mine &= np.arange(CAPACITY) < np.sum(before == device)
        np.testing.assert_array_equal(now[mine], was[mine])


def check_counts(pm: particles.ParticleMesh, moves: str) -> None:
    """Check that a device sends one message to each device that gets particles from it, with these particles only."""
    devices, backend = pm.decomposition.sizes[0], pm.decomposition.backend
    before, after, p = start(pm, moves)
    sent = np.zeros((devices, devices), int)
    np.add.at(sent, (before, after), 1)
    np.fill_diagonal(sent, 0)
    here = sent[[(shard.index[0].start or 0) // CAPACITY for shard in p["id"].addressable_shards]]
    jax.block_until_ready(_compiled(pm)(p))
    was = backend.counters()
    jax.block_until_ready(_compiled(pm)(p))
    now = backend.counters()
    # A device also sends its numbers of particles to all others: one for each device, and that of invalid particles.
    others = len(here) * (devices - 1)
    assert now.messages - was.messages == np.count_nonzero(here) + others
    row = sum(x.nbytes // x.shape[0] for x in (p.positions, *p.attributes.values()))
    assert now.sent_bytes - was.sent_bytes == here.sum() * row + others * (devices + 1) * 4
