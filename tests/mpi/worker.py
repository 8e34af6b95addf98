"""One rank of a run under `mpiexec`. test_mpi.py starts several ranks and reads their output.

mpiexec -n N python worker.py TASK[,TASK...]
"""

import ctypes
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops import io, particles
from decompops._backend.native.library import OVER_MPI
from decompops.tools.bench.order import children
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

import checks
import exchanges
import spectral_checks
import wires
from checks import PRIMES, UNEVEN, assert_block, distributed, meshes
from helpers import make_mesh, random_field


MPI = dops.MPI(planning="estimate", threads=1)


# Some tasks import what takes half a second to import, in every rank.
def operators() -> None:
    from plans import check_plans
    from transforms import check_some

    checks.operators(MPI)
    check_plans(MPI)
    check_some(MPI, every=73)
    for name in ("int4", "bool", "float8_e5m2"):
        checks.check_dtype(MPI, name)
    checks.check_overlap(MPI, meshes()[-1])
    wires.check(MPI, meshes()[-1])


def uneven() -> None:
    """Test numbers of ranks that do not divide the grid: a slab on 3 or 5 ranks, and pencils on 6."""
    n = jax.device_count()
    mesh = make_mesh((2, 3) if n == 6 else (n,))
    checks.check_fft(MPI, mesh, UNEVEN, n == 6)
    checks.check_transposes(MPI, mesh, PRIMES, False, ["zx", "xz"])
    checks.check_halos(MPI, mesh, UNEVEN)


def transformations() -> None:
    checks.transformations(MPI)


def spectral() -> None:
    spectral_checks.spectral(MPI)


def on_top() -> None:
    spectral_checks.spectral(MPI, everything=True)


def systems() -> None:
    import coefficients

    coefficients.check(MPI, meshes()[-1])


def moving_particles() -> None:
    import clouds

    clouds.check_moves(MPI, meshes()[-1])
    n = jax.device_count()
    pm = exchanges.mesh_of(make_mesh((n,)), MPI)
    for moves in exchanges.MOVES:
        exchanges.check(pm, moves)
        exchanges.check_counts(pm, moves)
    if n == 4:  # Two groups of ranks, each with particles of its own.
        mesh = make_mesh((2, 2), "auto", ("copies", "x"))
        dec = dops.Decomposition(mesh, shape=(2, 3), axes=("x",), box=dops.Box((1.0, 1.0)), pad=True, backend=MPI)
        exchanges.check(particles.ParticleMesh(dec), "random")


def threads() -> None:
    """Test transforms, transposes and halos with three threads in each rank."""
    backend, grid = replace(MPI, threads=3), meshes()[-1]
    checks.check_fft(backend, grid, UNEVEN, True)
    checks.check_transposes(backend, grid, UNEVEN, True, ["zx", "yz"])
    checks.check_halos(backend, grid, UNEVEN)
    wires.check(backend, grid)


def tuned() -> None:
    """Test that `autotune` tries all meshes and all working backends, and returns the same choice on every rank."""
    trials = []
    dec = dops.autotune((8, 6, 4), pad=True, repeats=1, on_trial=trials.append)
    assert {type(trial.decomposition.backend) for trial in trials} == {dops.XLA, dops.MPI}
    assert all(trial.failure is None for trial in trials)
    chosen = [trial.decomposition for trial in trials].index(dec)
    assert np.ptp(multihost_utils.process_allgather(np.int32(chosen))) == 0
    assert dec == min(trials, key=lambda trial: trial.seconds).decomposition


def order() -> None:
    """Run many independent operators in one program, many times, and compare the results with NumPy.

    Each operator starts after a random delay on each rank.
    """
    n, rounds = jax.device_count(), int(os.environ.get("ROUNDS", "100"))
    mesh, rng = make_mesh((n // 2, 2)), np.random.default_rng(jax.process_index())
    sizes = [(8, 8, 8), (16, 8, 24), (9, 10, 11), (24, 12, 7)]
    made = []
    for i in range(24):
        shape = sizes[i % 4]
        kinds = (
            (lambda s: dops.FFT3D(mesh, shape=s, pad=True, backend=MPI), np.fft.fftn),
            (lambda s: dops.FFT3D(mesh, shape=s, pad=True, real=True, backend=MPI), np.fft.rfftn),
            (lambda s: dops.Transpose(mesh, "z", "x", shape=s, pad=True, backend=MPI), lambda u: u),
        )
        make, reference = kinds[i % 3]
        u = random_field(shape, seed=i)
        made.append((make(shape), u, reference(u)))
    fields = [operator.decomposition.shard(u) for operator, u, _ in made]
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
        for i, ((operator, _, _), field) in enumerate(zip(made, fields)):
            results.append(operator(delayed(field, turns[:, i : i + 1])))
        # XLA may run this collective between the operators, which do not depend on it.
        return results, sum(jnp.sum(field) for field in fields)

    for _ in range(rounds):
        turns = rng.integers(0, 20000, (1, 24)).astype(np.int32)
        turns = jax.make_array_from_callback(spinning.shape, spinning.sharding, lambda _, t=turns: t)
        results, _ = program(fields, turns)
        for found, (_, _, expected) in zip(results, made):
            assert_block(found, expected)

    # `turned` multiplies the modes between the transforms, so that errors of two wrong transforms cannot cancel.
    fft, u = made[0][0], made[0][1]
    turned = np.exp(1j * np.arange(u.shape[0]))[:, None, None]
    forth_and_back = np.fft.ifftn(turned * np.fft.fftn(u))

    def filtered(v, factor):
        return fft.inverse(factor * turned * fft(v))

    scanned = jax.jit(lambda v: lax.scan(lambda c, _: (filtered(c, 1) - filtered(v, 1) + v, None), v, length=20))
    expected = u
    for _ in range(20):
        expected = np.fft.ifftn(turned * np.fft.fftn(expected)) - forth_and_back + u
    assert_block(scanned(fields[0] + 0j)[0], expected)
    several = [jax.jit(lambda v, s=s: filtered(v, s)) for s in range(1, 9)]
    pending = [f(fields[0]) for f in several]  # Each program starts without waiting for the previous one.
    for s, result in enumerate(pending, 1):
        assert_block(result, s * forth_and_back)


def tree() -> None:
    """Test that each rank announces every call to as many ranks as the model of `decompops scaling` predicts."""

    def announcements() -> int:
        count = ctypes.c_int64()
        OVER_MPI.call("count_announcements", ctypes.byref(count))
        return count.value

    n, calls = jax.device_count(), 7
    fft = dops.FFT3D(make_mesh((n,)), shape=(8, 8, 8), backend=MPI)
    u = fft.decomposition.shard(np.zeros((8, 8, 8), complex))
    before = announcements()
    for _ in range(calls):
        jax.block_until_ready(fft(u))
    assert announcements() - before == calls * len(children(jax.process_index(), n))


def files() -> None:
    """Write a spectrum to snapshots and to a checkpoint. The test reads these files with the XLA backend."""
    folder = Path(os.environ["FOLDER"])
    fft = dops.FFT3D(make_mesh((jax.device_count(), 1)), shape=UNEVEN, pad=True, real=True, backend=MPI)
    k = fft(fft.decomposition.shard(random_field(UNEVEN)))
    for suffix in (".zarr", ".h5"):
        io.write(folder / f"k{suffix}", {"k": k}, fft, space="spectrum")
    with io.Checkpoints(folder / "run") as checkpoints:
        checkpoints.save(0, {"k": k}, {"k": fft.out_structure})


OPERATORS = (operators, uneven, spectral, on_top, systems, threads, tuned, transformations)
TASKS = {task.__name__: task for task in (*OPERATORS, order, tree, files, moving_particles)}


def main() -> None:
    share = os.environ.get("SHARE_MEMORY", "1") == "1"
    dops.MPI.initialize(share_memory=share)
    dops.MPI.initialize()  # The second call does nothing.
    assert MPI.counters().sharing == (jax.process_count() if share else 0)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # LLVM's optimisations would take most of the time.
    for task in sys.argv[1].split(","):
        start = time.perf_counter()
        TASKS[task]()
        print(f"{task} passed in {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
