"""A rank of a job on two hosts, in which a fault happens. test_faults.py starts the ranks and reads their output.

mpiexec ... python faulty.py TASK
"""

import importlib.metadata
import os
import socket
import sys
import time

import decompops as dops
import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from mpi4py import MPI


SHAPE = (16, 16, 16)
WORLD = MPI.COMM_WORLD


def start(**options) -> None:
    dops.MPI.initialize(**{"timeout": 1.0, **options})
    print(f"rank {jax.process_index()} started on {socket.gethostname()}", flush=True)


def choose() -> None:
    """Start under variables of Slurm, after an address that not all hosts reach was given."""
    os.environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    os.environ |= {"SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_NUM_TASKS": "2"}
    with pytest.raises(
        RuntimeError, match=r"at 10\.66\.0\.1:\d+: host 'host2' \(rank 1\): it cannot connect to '10\.6"
    ):
        dops.MPI.initialize(coordinator="10.66.0.1")
    with pytest.MonkeyPatch.context() as patch:
        if WORLD.rank == 1:
            patch.setattr(importlib.metadata, "version", lambda _: "0.0.1")
        with pytest.raises(RuntimeError, match=r"host 'host2' \(rank 1\): it has decompops 0\.0\.1 instead of "):
            dops.MPI.initialize()
    start()
    assert jax.device_count() == 2


def transform() -> None:
    """Transform again and again for SECONDS seconds, without XLA's collectives."""
    start(limit=float(os.environ["LIMIT"]))
    fft = dops.FFT3D(Mesh(np.array(jax.devices()), "x"), shape=SHAPE, backend=dops.MPI(planning="estimate"))
    sharding = fft.decomposition.sharding("z")
    field = jax.make_array_from_callback(SHAPE, sharding, lambda index: np.ones(SHAPE, np.complex64)[index])
    step = jax.jit(lambda u: fft.inverse(fft(u)))
    step(field).block_until_ready()
    print("transforming", flush=True)
    end = time.monotonic() + float(os.environ["SECONDS"])
    while not WORLD.bcast(time.monotonic() > end):
        for _ in range(20):
            field = step(field).block_until_ready()
    np.testing.assert_allclose(np.asarray(field.addressable_data(0)), 1, rtol=1e-3)
    print(f"rank {WORLD.rank} ended", flush=True)


if __name__ == "__main__":
    {"start": start, "choose": choose, "transform": transform}[sys.argv[1]]()
