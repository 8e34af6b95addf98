"""Several Python threads call operators. Run `mpiexec -n N python python_threads.py FAULT`."""

import threading
import time

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from job import field_of, run, transform


def run_in_threads(bodies: dict) -> dict:
    results = {}

    def run(name, body):
        try:
            results[name] = body()
        except Exception as error:
            results[name] = error

    threads = [threading.Thread(target=run, args=item) for item in bodies.items()]
    for thread in threads if jax.process_index() % 2 else reversed(threads):
        thread.start()
        time.sleep(0.3)  # On odd ranks, the threads make their first calls in the opposite order.
    for thread in threads:
        thread.join()
    return results


def named_threads() -> None:
    """A time step and a diagnostic run at the same time in two threads with names. Both results are right."""
    fft = transform()
    u = field_of(fft)
    step = jax.jit(lambda v: fft.inverse(fft(v) * jnp.exp(1j * jnp.arange(16.0))))
    power = jax.jit(lambda v: jnp.abs(fft(v)) ** 2)
    shared = jax.jit(lambda v: fft.inverse(2 * fft(v)))  # This program has no collectives of XLA.
    expected = {"step": u, "power": None, "main": None}
    for _ in range(20):
        expected["step"] = step(expected["step"])
    expected["power"] = [power(i * u) for i in range(20)]
    inputs = {"step": u, "power": 3 * u}
    both = {name: shared(v) for name, v in inputs.items()}

    def stepping():
        with dops.MPI.thread("step"):
            v = u
            for _ in range(20):
                v = step(v)
                assert_same(shared(inputs["step"]), both["step"])
            return v

    def diagnosing():
        with dops.MPI.thread("power"):
            found = []
            for i in range(20):
                found.append(power(i * u))
                assert_same(shared(inputs["power"]), both["power"])
            return found

    results = run_in_threads({"step": stepping, "power": diagnosing})
    for name in ("step", "power"):
        assert not isinstance(results[name], Exception), results[name]
        jax.tree.map(assert_same, results[name], expected[name])
    print("right", flush=True)


def assert_same(found: jax.Array, expected: jax.Array) -> None:
    found, expected = (np.asarray(x.addressable_data(0)) for x in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max() + 1e-300)


def unnamed_threads() -> None:
    fft = transform()
    u = field_of(fft)
    step = jax.jit(lambda v: fft.inverse(2 * fft(v)))
    step(u)
    results = run_in_threads({"one": lambda: step(u), "two": lambda: fft(u)})
    for error in results.values():
        assert "inside `with dops.MPI.thread(name):`" in str(error), error
    print("caught threads without names", flush=True)


def threads_that_pass_for_one() -> None:
    """Two threads call a function that was compiled ahead of time. JAX allows such calls in any thread.

    If both threads run this function at the same time, all ranks raise an error.
    """
    fft = transform()
    u = field_of(fft)

    def body(v):
        return jax.lax.fori_loop(0, 200, lambda i, w: fft.inverse(fft(w) * jnp.exp(1j * jnp.arange(16.0))), v)

    compiled = jax.jit(body).lower(u).compile()
    many = {name: lambda v=factor * u: [compiled(v) for _ in range(20)] for name, factor in (("one", 1), ("two", 2))}
    results = run_in_threads(many)
    assert any("several Python threads" in str(error) for error in results.values()), results
    print("caught threads that pass for one", flush=True)


def threads() -> None:
    named_threads()
    unnamed_threads()
    threads_that_pass_for_one()  # This must be the last task, because the mesh cannot be used after an error.


if __name__ == "__main__":
    run(globals())
