"""The common part of the fault scripts: functions that start a rank of a job, and functions that make an operator.

The victim of a fault is the rank that the environment variable VICTIM names, by default the last rank. Ranks print the
time at which the fault happens.
"""

import os
import sys
import time
from collections.abc import Callable

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding


SHAPE = (16, 16, 16)


def run(functions: dict[str, Callable], **options) -> None:
    """Call `MPI.initialize` with the `options`, and then the function that the command line names."""
    dops.MPI.initialize(**{"timeout": 1.0, "traces": "TRACES" in os.environ, **options})
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # LLVM's optimisations would take most of the time.
    functions[sys.argv[1]]()
    print(f"{sys.argv[1]} ended", flush=True)


def victim() -> bool:
    return jax.process_index() == int(os.environ.get("VICTIM", jax.process_count() - 1))


def happens() -> None:
    # If stdout has no buffer, `print` writes a text and its line end separately, and a line of another rank may come
    # between the two. A single `write` keeps the text and its line end together.
    sys.stdout.write(f"fault at {time.time()}\n")
    sys.stdout.flush()


def field_of(operator, dtype=complex) -> jax.Array:
    """Make a random field without XLA's collectives, which would wait for the other ranks."""
    layout = operator.plan().source
    rng = np.random.default_rng(jax.process_index())
    block = jnp.asarray(rng.standard_normal(layout.block_shape), dtype)
    sharding = NamedSharding(operator.decomposition.mesh, layout.spec)
    return jax.make_array_from_single_device_arrays(layout.shape, sharding, [block])


def transform(shape=SHAPE, step: int = 1, key: str = "world", **options) -> dops.FFT3D:
    mesh = Mesh(np.array(jax.devices()[::step]), "x")
    backend = dops.MPI(key, planning="estimate", overlap=int(os.environ.get("OVERLAP", "1")))
    return dops.FFT3D(mesh, shape=shape, pad=True, backend=backend, **options)


def waiting() -> tuple[dops.FFT3D, jax.Array]:
    """Return an operator that has run once, and its input.

    The victim returns half a second after the other ranks, which then wait for the victim in their next call.
    """
    fft = transform()
    field = field_of(fft)
    jax.block_until_ready(fft(field))
    if victim():
        time.sleep(0.5)
    happens()
    return fft, field
