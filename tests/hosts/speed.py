"""One rank of a job on two hosts. Prints the bytes that a transpose sends, and its median time. See test_hosts.py."""

import time

import decompops as dops
import jax
import numpy as np

from helpers import make_mesh


def main() -> None:
    dops.MPI.initialize()
    transpose = dops.Transpose(make_mesh((2,)), "z", "x", shape=(256, 128, 128), backend=dops.MPI())
    u = transpose.decomposition.shard(np.zeros((256, 128, 128), np.complex64))
    counters = transpose.decomposition.backend.counters
    jax.block_until_ready(transpose(u))
    seconds, before = [], counters().sent_bytes
    for _ in range(7):
        start = time.perf_counter()
        jax.block_until_ready(transpose(u))
        seconds.append(time.perf_counter() - start)
    sent = (counters().sent_bytes - before) // len(seconds)
    print(f"rank {jax.process_index()}: {sent} bytes in {np.median(seconds):.3f} s", flush=True)


if __name__ == "__main__":
    main()
