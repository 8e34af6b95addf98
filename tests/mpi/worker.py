"""One rank of a run under `mpiexec`. test_mpi.py starts several of them and reads what they print.

mpiexec -n N python worker.py TASK
"""

import os
import signal
import sys
import time

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import checks
from checks import UNEVEN, assert_block, distributed, make_mesh, meshes
from helpers import assert_close, random_field


MPI = dops.MPI(planning="estimate", threads=int(os.environ.get("THREADS", "1")))


def operators() -> None:
    checks.operators(MPI)


def transformations() -> None:
    checks.transformations(MPI)


def spectral() -> None:
    checks.spectral(MPI, everything=True)


def threads() -> None:
    """The same with several threads in each rank, if THREADS says so."""
    grid = meshes()[-1]
    checks.check_fft(MPI, grid, UNEVEN, True)
    checks.check_transposes(MPI, grid, UNEVEN, True, ["zx", "yz"])
    checks.check_halos(MPI, grid, UNEVEN)


def tuned() -> None:
    """Every rank gets the same decomposition, of all meshes and backends that work here."""
    trials = []
    dec = dops.autotune((8, 6, 4), repeats=1, on_trial=trials.append)
    assert {type(trial.decomposition.backend) for trial in trials} == {dops.XLA, dops.MPI}
    assert all(trial.failure is None for trial in trials)
    chosen = [trial.decomposition for trial in trials].index(dec)
    assert np.ptp(multihost_utils.process_allgather(np.int32(chosen))) == 0
    assert dec == min(trials, key=lambda trial: trial.seconds).decomposition


def order() -> None:
    """Many independent operators in one program, each after a delay of its own on each rank, again and again."""
    n, rounds = jax.device_count(), int(os.environ.get("ROUNDS", "100"))
    mesh, rng = make_mesh((n // 2, 2)), np.random.default_rng(jax.process_index())
    sizes = [(8, 8, 8), (16, 8, 24), (9, 10, 11), (24, 12, 7)]
    made = []
    for i in range(24):
        shape = sizes[i % 4]
        kinds = (
            lambda s: dops.FFT3D(mesh, shape=s, backend=MPI),
            lambda s: dops.FFT3D(mesh, shape=s, real=True, backend=MPI),
            lambda s: dops.Transpose(mesh, "z", "x", shape=s, backend=MPI),
        )
        made.append((kinds[i % 3](shape), random_field(shape, seed=i)))
    fields = [operator.decomposition.shard(u) for operator, u in made]
    expected = [operator(field) for (operator, _), field in zip(made, fields)]
    spinning = distributed(np.zeros((n, 24), np.int32), mesh, P(("x", "y"), None), (n, 24))

    def delayed(field, turns):
        def spin(block, turns):
            noise = lax.fori_loop(0, turns[0, 0], lambda i, s: s * 1.0000001 + 1e-9, jnp.zeros(()))
            return block + 0 * noise

        spec = field.spec if hasattr(field, "spec") else P("x", "y", None)
        return jax.shard_map(spin, mesh=mesh, in_specs=(spec, P(("x", "y"), None)), out_specs=spec, check_vma=False)(
            field, turns
        )

    @jax.jit
    def program(fields, turns):
        results = []
        for i, ((operator, _), field) in enumerate(zip(made, fields)):
            results.append(operator(delayed(field, turns[:, i : i + 1])))
        # A collective of XLA's own in between, independent of all of them.
        return results, sum(jnp.sum(field) for field in fields)

    def check(results):
        for got, want in zip(results, expected):
            assert_close(got.addressable_data(0), np.asarray(want.addressable_data(0)))

    for _ in range(rounds):
        turns = rng.integers(0, 20000, (1, 24)).astype(np.int32)
        turns = jax.make_array_from_callback(spinning.shape, spinning.sharding, lambda _, t=turns: t)
        results, _ = program(fields, turns)
        check(results)

    fft = made[0][0]
    twice = jax.jit(
        lambda v: lax.scan(lambda c, _: (fft.inverse(fft(c)) + fft.inverse(fft(-c)) + c, None), v, length=20)
    )
    assert_close(twice(fields[0] + 0j)[0].addressable_data(0), np.asarray((fields[0] + 0j).addressable_data(0)))
    several = [jax.jit(lambda v, s=s: s * fft.inverse(fft(v))) for s in range(1, 9)]
    pending = [f(fields[0]) for f in several]  # nothing waits for these before the next starts
    for s, result in enumerate(pending, 1):
        assert_close(result.addressable_data(0), s * np.asarray(fields[0].addressable_data(0)) + 0j)


def leak() -> None:
    """Ten thousand calls do not grow the process."""
    mesh = make_mesh((jax.device_count(),))
    fft = dops.FFT3D(mesh, shape=(16, 16, 16), backend=MPI)
    step = jax.jit(lambda v: fft.inverse(fft(v)))
    field = fft.decomposition.shard(random_field((16, 16, 16), np.complex128))
    for i in range(5000):  # two calls each
        if i == 1000:
            before = resident()
        field = step(field)
    growth = resident() - before
    assert growth < 4 * 2**20, growth
    assert_block(field, random_field((16, 16, 16), np.complex128))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- Failures: what the others see when one rank does something else.


def failing(first: bool = False, step: int = 1) -> tuple[dops.FFT3D, jax.Array]:
    """An operator and what to apply it to; `first` if that is to be the first call of all."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[::step]), "x")
    fft = dops.FFT3D(mesh, shape=(16, 16, 16), backend=MPI)
    field = fft.decomposition.shard(random_field((16, 16, 16), np.complex128))
    if not first:
        fft(field)
    print("ready", flush=True)
    return fft, field


def raises() -> None:
    fft, field = failing()
    if jax.process_index() == 1:
        raise ValueError("the victim's own error")
    fft(field)


def raises_at_once() -> None:
    fft, field = failing(first=True)
    if jax.process_index() == 1:
        raise ValueError("the victim's own error")
    fft(field)


def leaves() -> None:
    fft, field = failing()
    if jax.process_index() != 1:
        fft(field)


def leaves_at_once() -> None:
    fft, field = failing(first=True)
    if jax.process_index() != 1:
        fft(field)


def leaves_one_of_two() -> None:
    """Of two meshes, those who end have to leave both before they wait for the others in either."""
    failing(step=-1)
    fft, field = failing()
    if jax.process_index() != 1:
        fft(field)


def ends_late() -> None:
    """The last rank comes to the last operator when others, who do not need it, have ended."""
    mesh = make_mesh((2, 2))
    transpose = dops.Transpose(mesh, "z", "y", shape=(8, 8, 8), backend=MPI)
    field = transpose.decomposition.shard(random_field((8, 8, 8), np.float64))
    transpose(field)
    if jax.process_index() == 3:
        time.sleep(6)
    assert_block(transpose(field), random_field((8, 8, 8), np.float64))


def dies() -> None:
    fft, field = failing()
    if jax.process_index() == int(os.environ["VICTIM"]):
        os.kill(os.getpid(), signal.SIGKILL)
    fft(field)


def on_its_own(mesh: Mesh, n: int) -> tuple[dops.FFT3D, jax.Array]:
    """An operator and a field, built without XLA's collectives, which would wait for the other ranks."""
    fft = dops.FFT3D(mesh, shape=(n, n, n), backend=MPI)
    block = jnp.ones(fft.decomposition.local_shape("z"), complex)
    return fft, jax.make_array_from_single_device_arrays((n, n, n), NamedSharding(mesh, fft.in_spec), [block])


def assert_different(fft: dops.FFT3D, field: jax.Array, how: str) -> None:
    for _ in range(2):
        # JAX raises one or the other, depending on whether the program has run before.
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="run different programs: " + how):
            jax.block_until_ready(fft(field))
    print("caught", flush=True)


def differs() -> None:
    """Another shape on one rank: an exception on all of them, which can be caught."""
    n = 8 if jax.process_index() == 1 else 16
    assert_different(*on_its_own(make_mesh((jax.device_count(),)), n), "rank 0 of the mesh is at FFT3D")


def differs_in_mesh(first: bool = False) -> None:
    """Another order of ranks on one of them: they wait for each other on different meshes."""
    operators = [on_its_own(Mesh(np.array(jax.devices()[::step]), "x"), 16) for step in (1, -1)]
    for fft, field in () if first else operators:
        jax.block_until_ready(fft(field))
    one = jax.process_index() == 1
    others = ("1, 0", "0, 1")[one]
    assert_different(*operators[one], f"this one waits .* for this one in FFT3D .* of ranks {others}")


def differs_in_first_mesh() -> None:
    differs_in_mesh(first=True)


RESULTS = (operators, spectral, threads, tuned, transformations, order, leak, ends_late)
FAILURES = (
    raises,
    raises_at_once,
    leaves,
    leaves_at_once,
    leaves_one_of_two,
    dies,
    differs,
    differs_in_mesh,
    differs_in_first_mesh,
)
TASKS = {task.__name__: task for task in RESULTS + FAILURES}


def main() -> None:
    dops.MPI.initialize(timeout=3 if sys.argv[1].startswith("differs") else 10)
    dops.MPI.initialize()  # does nothing
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # of LLVM: most of the time goes into compiling
    start = time.perf_counter()
    TASKS[sys.argv[1]]()
    print(f"{sys.argv[1]} passed in {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
