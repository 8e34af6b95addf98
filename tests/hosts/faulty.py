"""A rank of a job on several hosts, in which a fault happens. test_faults.py starts the ranks and reads their output.

mpiexec ... python faulty.py TASK
"""

import os
import socket
import sys
import time

import decompops as dops
import jax
import numpy as np
from jax.sharding import Mesh


def start(**options) -> None:
    dops.MPI.initialize(**{"timeout": 1.0, **options})
    print(f"rank {jax.process_index()} started on {socket.gethostname()}", flush=True)


def transform() -> None:
    """Transform again and again, without XLA's collectives, for SECONDS seconds, and print each second how often."""
    start(limit=float(os.environ.get("LIMIT", "8")), heartbeat=float(os.environ.get("HEARTBEAT", "10")))
    fft = dops.FFT3D(Mesh(np.array(jax.devices()), "x"), shape=(16,) * 3, backend=dops.MPI(planning="estimate"))
    sharding = fft.decomposition.sharding("z")
    field = jax.make_array_from_callback((16,) * 3, sharding, lambda index: np.ones((16,) * 3, np.complex64)[index])
    step = jax.jit(lambda u: fft.inverse(fft(u)))
    number, told, end = 0, time.monotonic(), float(os.environ.get("SECONDS", "60"))
    began = told
    rounds = int(os.environ.get("ROUNDS", "1000000"))
    while number < rounds and time.monotonic() < began + end:
        field = step(field).block_until_ready()
        number += 1
        if time.monotonic() > told + 1:
            told = time.monotonic()
            print(f"rank {jax.process_index()} transformed {number} times", flush=True)
    np.testing.assert_allclose(np.asarray(field.addressable_data(0)), 1, rtol=1e-3)
    print(f"rank {jax.process_index()} ended", flush=True)


if __name__ == "__main__":
    {"start": start, "transform": transform}[sys.argv[1]]()
