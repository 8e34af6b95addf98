"""A process of a job with `XLA()` over Gloo on two hosts, in which a fault happens. test_gloo.py starts it.

python gloo.py ADDRESS HEARTBEAT SECONDS PROCESS
"""

import socket
import sys
import time

import decompops as dops
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh


SHAPE = (16, 16, 16)


def main() -> None:
    """Transform again and again for SECONDS seconds."""
    address, heartbeat, seconds, process = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(address, 2, process, heartbeat_timeout_seconds=heartbeat)
    fft = dops.FFT3D(Mesh(np.array(jax.devices()), "x"), shape=SHAPE, backend=dops.XLA())
    sharding = fft.decomposition.sharding("z")
    field = jax.make_array_from_callback(SHAPE, sharding, lambda index: np.ones(SHAPE, np.complex64)[index])
    step = jax.jit(lambda u: fft.inverse(fft(u)))
    step(field).block_until_ready()
    print("transforming", flush=True)
    end = time.monotonic() + seconds
    while not multihost_utils.broadcast_one_to_all(np.array(time.monotonic() > end)):
        for _ in range(20):
            field = step(field).block_until_ready()
    np.testing.assert_allclose(np.asarray(field.addressable_data(0)), 1, rtol=1e-3)
    print(f"process {process} ended on {socket.gethostname()}", flush=True)


if __name__ == "__main__":
    main()
