"""Faults in which ranks run different programs ("misfits"). All ranks raise an error that a program can catch.

`mpiexec -n N python misfits.py different_programs` runs one misfit after the other. Each misfit has its own
communicator, because a mesh cannot be used after an error.
"""

import time

import decompops as dops
import jax
import numpy as np
import pytest
from job import SHAPE, field_of, run, transform, victim
from mpi4py import MPI


def raises_everywhere(name: str, body, pattern: str) -> None:
    start = time.time()
    for _ in range(2):  # The second call raises the same error.
        # JAX raises a `JaxRuntimeError` if the program has run before, and otherwise a `ValueError`.
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="(?s)" + pattern):
            jax.block_until_ready(body())
    print(f"caught {name} after {time.time() - start:.1f} s", flush=True)


def misfits(key) -> dict:
    """Return functions by name. Each function returns a `body` that causes a misfit, and a pattern for the error."""
    other = victim()
    line = r"misfits\.py:\d+"

    def skipped():
        """The victim skips one of three identical calls."""
        fft = transform(key=key())
        u = field_of(fft)

        def body():
            a = fft(u)
            b = a if other else fft(u)
            c = fft(u)
            return a, b, c

        return body, rf"rank 0 is in FFT3D.* at {line}, rank \d is in FFT3D.* at {line}"

    def reordered():
        fft = transform(key=key())
        u = field_of(fft)
        first, second = jax.jit(lambda v: fft(2 * v)), jax.jit(lambda v: 2 * fft(v))

        def body():
            return (second(u), first(u)) if other else (first(u), second(u))

        return body, rf"rank 0 is in FFT3D.* called at {line}:\d+\), rank \d is in FFT3D.* called at {line}:\d+\)"

    def calls(fft, dtype=complex):
        u = field_of(fft, dtype)
        return lambda: fft(u)

    def shape():
        return calls(transform((8, 8, 8) if other else SHAPE, key=key())), r"\(16, 16, 16\).*\(8, 8, 8\)"

    def dtype():
        return calls(transform(key=key()), np.complex64 if other else np.complex128), "complex128.*complex64"

    def norm():
        return calls(transform(key=key(), norm="ortho" if other else "backward")), r"times 1,.*times 0\.015625,"

    def order():
        return calls(transform(key=key(), axis_contiguous=other)), r"stored as xyz -> xyz.*stored as xyz -> yzx"

    def mesh():
        return calls(transform(key=key(), step=-1 if other else 1)), "this one waits for rank .* for this one in FFT3D"

    return {f.__name__: f for f in (skipped, reordered, shape, dtype, norm, order, mesh)}


def different_programs() -> None:
    count = 0

    def key() -> str:
        nonlocal count
        count += 1
        dops.MPI.initialize(MPI.COMM_WORLD.Dup(), key=f"communicator {count}")
        return f"communicator {count}"

    for name, misfit in misfits(key).items():
        body, pattern = misfit()
        raises_everywhere(name, body, "run different programs: .*" + pattern)


if __name__ == "__main__":
    run(globals())
