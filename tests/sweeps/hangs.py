"""Starts many programs on several CPU devices of one process. Run `python hangs.py TASK BACKENDS DEVICES COUNT`.

`BACKENDS` are the names of one or more backends, with commas between them.

The process may use two cores only, as on a small machine, because XLA starts more threads on more cores.
"""

import os
import sys
import threading

import jax


if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

import decompops as dops
import numpy as np
from decompops import spectral


def steps(fft: dops.FFT, u: np.ndarray, count: int) -> None:
    """Start a loop of compiled time steps, without waiting for any of them."""
    step = jax.jit(lambda v: fft.inverse(2 * fft(v)) - v)  # The result is `v`.
    v = fft.decomposition.shard(u)
    for _ in range(count):
        v = step(v)
    np.testing.assert_allclose(np.asarray(v), u, atol=2e-6 * count)


def small(fft: dops.FFT, u: np.ndarray, count: int) -> None:
    """Start small programs that do not depend on each other."""
    v = fft.decomposition.shard(u)
    programs = [jax.jit(lambda v, i=i: fft(v) * i) for i in range(1, 5)]
    results = [programs[i % 4](v) for i in range(count)]
    for i, result in enumerate(results):
        expected = np.fft.fftn(u) * (i % 4 + 1)
        np.testing.assert_allclose(np.asarray(result), expected, atol=1e-5 * abs(expected).max())


def eager(fft: dops.FFT, u: np.ndarray, count: int) -> None:
    """Call ten operators, without `jax.jit` and without waiting for any of them."""
    for _ in range(count):
        poisson, v = spectral.Poisson(fft), fft.decomposition.shard(u)
        means = [fft.decomposition.mean(poisson(v * i)) for i in range(10)]
        np.testing.assert_allclose(np.asarray(means), np.zeros(10), atol=1e-4)


def threads(fft: dops.FFT, u: np.ndarray, count: int) -> None:
    """Start time steps in three Python threads."""
    workers = [threading.Thread(target=steps, args=(fft, u, count)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    name, backends, devices, times = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", int(devices))
    mesh = jax.make_mesh((int(devices) // 2, 2), ("x", "y"))
    field = np.random.default_rng(0).standard_normal((16, 16, 16)).astype(np.complex64)
    for backend in backends.split(","):
        transform = dops.FFT3D(mesh, shape=(16, 16, 16), backend=backend)
        {task.__name__: task for task in (steps, small, eager, threads)}[name](transform, field, int(times))
    print("done")
