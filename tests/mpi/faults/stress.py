"""Many calls of several operators in a random order. All results are right, and the memory does not grow.

Run `mpiexec -n N python stress.py mixed`. The environment variable CALLS sets the number of calls (default: 100000).
"""

import os

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from job import field_of, run, transform


def mixed() -> None:
    """Run programs of up to 200 calls, mixed with eager calls, in a random order that is the same on all ranks."""
    fft = transform()
    halo = dops.HaloExchange(fft.decomposition, 1)
    rfft = fft.replace(real=True)
    u = field_of(fft)
    # Each call changes the result of the last call, and FFTs mix all cells. So any error changes the last result.
    turned = np.exp(1j * np.arange(16))

    def step(v):
        v = fft.inverse(turned * fft(v))
        v = (v + halo.T(halo(v)) / 8) / 2
        return v + 1j * rfft.inverse(turned[:9] * rfft(v.real))

    many = {n: jax.jit(lambda v, n=n: lax.fori_loop(0, n, lambda i, w: step(w) / jnp.sqrt(3.0), v)) for n in (1, 7, 33)}
    calls, total = 0, int(os.environ.get("CALLS", "100000"))
    order = np.random.default_rng(0)
    field, begin, memory = u, int(total * 0.2), None
    results = {}
    while calls < total:
        n = int(order.choice(list(many)))
        field = many[n](u)
        calls += 6 * n
        key = n
        found = np.asarray(field.addressable_data(0))
        np.testing.assert_array_equal(found, results.setdefault(key, found))
        if order.random() < 0.05:
            jax.block_until_ready(fft(u))
            calls += 1
        if memory is None and calls > begin:
            memory = resident()
    check(u, results)
    growth = resident() - memory
    print(f"{calls} calls, {growth / 2**20:.1f} MiB more", flush=True)
    assert growth < 8 * 2**20, growth


def check(u: jax.Array, results: dict) -> None:
    """Compare the results of every program with the same steps in NumPy."""
    from mpi4py import MPI

    whole = np.concatenate(MPI.COMM_WORLD.allgather(np.asarray(u.addressable_data(0))), axis=0)
    ranks, rank, turned = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank, np.exp(1j * np.arange(16))
    cells = 16 // ranks
    for n, found in results.items():
        v = whole
        for _ in range(n):
            v = np.fft.ifftn(turned * np.fft.fftn(v))
            v = (v + copies(ranks) * v / 8) / 2
            v = (v + 1j * np.fft.irfftn(turned[:9] * np.fft.rfftn(v.real), s=v.shape, axes=(0, 1, 2))) / np.sqrt(3.0)
        block = v[rank * cells : (rank + 1) * cells]
        np.testing.assert_allclose(found, block, rtol=0, atol=1e-9 * np.abs(v).max())


def copies(ranks: int) -> np.ndarray:
    """Return how often each cell occurs in extended blocks: once in its own block, and again in halos of width 1."""
    along = []
    for blocks in (ranks, 1, 1):
        count = np.ones(16)
        edges = np.arange(blocks) * (16 // blocks)
        np.add.at(count, edges, 1)
        np.add.at(count, (edges - 1) % 16, 1)
        along.append(count)
    return along[0][:, None, None] * along[1][:, None] * along[2]


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    run(globals(), timeout=60.0)
