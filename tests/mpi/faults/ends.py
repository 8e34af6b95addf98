"""Faults in which a rank ends or is late. Run `mpiexec -n N python ends.py FAULT`."""

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import decompops as dops
import jax
import numpy as np
from decompops import particles
from jax.sharding import Mesh
from job import field_of, happens, run, transform, victim, waiting


# --- A rank ends.


def raises() -> None:
    fft, field = waiting()
    if victim():
        raise ValueError("the victim's own error")
    fft(field)


def raises_before_an_exchange() -> None:
    """The other ranks wait for the particles of the victim. No collective of XLA runs in between."""
    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), "x")
    dec = dops.Decomposition(mesh, shape=(n, 4), axes=("x",), box=dops.Box((1.0, 1.0)), backend=dops.MPI())
    pm = particles.ParticleMesh(dec)
    p = pm.place(np.random.default_rng(0).random((50 * n, 2)), capacity=50 * n)
    moved = p.replace(p.positions + 0.5)
    jax.block_until_ready(pm.exchange(moved))
    happens()
    if victim():
        raise ValueError("the victim's own error")
    pm.exchange(moved)


def raises_where_links_lie() -> None:
    """Someone else has put a link where ranks once wrote their tracebacks. What it leads to stays as it is."""
    fft, field = waiting()
    tempfile.tempdir = os.environ["FOLDER"]
    kept = os.path.join(tempfile.tempdir, f"kept-{jax.process_index()}")
    with open(kept, "w") as file:
        file.write("of someone else")
    os.symlink(kept, os.path.join(tempfile.tempdir, f"decompops-{os.getpid()}-rank{jax.process_index()}.txt"))
    if victim():
        raise ValueError("the victim's own error")
    fft(field)


def raises_without_a_folder() -> None:
    """No rank can write a file."""
    fft, field = waiting()
    tempfile.tempdir = os.path.join(os.environ["FOLDER"], "missing")
    if victim():
        raise ValueError("the victim's own error")
    fft(field)


def raises_on_all_ranks() -> None:
    waiting()
    raise ValueError("everybody's error")


def raises_before_the_first_call() -> None:
    fft = transform()
    field = field_of(fft)
    happens()
    if victim():
        raise ValueError("the victim's own error")
    fft(field)


def raises_in_a_thread() -> None:
    def work():
        raise ValueError("the victim's own error")

    fft, field = waiting()
    if victim():
        threading.Thread(target=work).start()
        time.sleep(100)
    fft(field)


def raises_in_a_callback() -> None:
    def callback(block):
        if victim():
            raise ValueError("the victim's own error")
        return block

    fft, field = waiting()
    mapped = jax.shard_map(
        lambda block: jax.pure_callback(callback, jax.ShapeDtypeStruct(block.shape, block.dtype), block),
        mesh=fft.decomposition.mesh,
        in_specs=fft.in_spec,
        out_specs=fft.in_spec,
    )
    jax.block_until_ready(jax.jit(lambda u: fft(mapped(u)))(field))


def is_killed() -> None:
    fft, field = waiting()
    if victim():
        os.kill(os.getpid(), signal.SIGKILL)
    fft(field)


def gets_sigterm() -> None:
    fft, field = waiting()
    if victim():
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        time.sleep(100)
    fft(field)


def gets_sigterm_in_an_operator() -> None:
    fft, field = waiting()
    if not victim():
        time.sleep(100)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    fft(field)


def simulates(body: Callable[[], None]) -> None:
    """Run a simulation that saves itself. It calls `body` when it writes its first snapshot."""
    fft = transform(real=True)
    solver = dops.pde.ETDRK(dops.pde.Diffusion(fft, 0.1), 0.01)
    state = solver.equation.transform(field_of(fft, float))

    def fields(u):
        body()
        return {"u": solver.equation.fields(u)}

    folder = os.environ["FOLDER"]
    snapshots = dops.pde.Snapshots(f"{folder}/{{}}.zarr", fields=fields)
    dops.pde.simulate(solver, state, 1.0, write=snapshots, checkpoint=f"{folder}/checkpoints", progress=False)


def is_killed_in_a_simulation() -> None:
    fft, field = waiting()

    def body():
        here = Path(os.environ["FOLDER"], "here")
        if victim():
            while not here.exists():  # On a busy machine, the other rank needs a while to come to its operator.
                time.sleep(0.05)
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        here.touch()
        fft(field)

    simulates(body)


def gets_sigterm_after_a_simulation() -> None:
    """All ranks get SIGTERM in a simulation, which saves itself. Afterwards, one rank gets SIGTERM in an operator."""
    try:
        simulates(lambda: os.kill(os.getpid(), signal.SIGTERM))
    except SystemExit as stop:
        print(f"stopped with {stop.code}", flush=True)
    gets_sigterm_in_an_operator()


def crashes() -> None:
    fft, field = waiting()
    if not victim():
        time.sleep(100)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGSEGV)).start()
    fft(field)


def crashes_after_a_simulation() -> None:
    """A simulation puts its own handler of SIGTERM in front of the kernels' handler, and takes it away at its end."""
    faulthandler.enable(all_threads=False)
    simulates(lambda: None)
    happens()
    os.kill(os.getpid(), signal.SIGSEGV)


def ends_early() -> None:
    fft, field = waiting()
    if not victim():
        fft(field)


def ends_before_the_first_call() -> None:
    fft = transform()
    field = field_of(fft)
    happens()
    if not victim():
        fft(field)


def exits_at_once() -> None:
    fft, field = waiting()
    if victim():
        os._exit(0)
    fft(field)


def ends_one_of_two_meshes() -> None:
    """The victim ends after it has used two meshes.

    The victim must first tell the ranks of both meshes that it ends, and only then wait for the ranks of one mesh.
    """
    backwards = transform(step=-1)
    jax.block_until_ready(backwards(field_of(backwards)))
    fft, field = waiting()
    if victim():
        sys.exit(3)
    fft(field)


def does_not_initialize() -> None:
    """The victim raises an exception before `initialize`. The other ranks wait in `initialize`."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    if rank == MPI.COMM_WORLD.size - 1:
        time.sleep(1)
        happens()
        raise ValueError("the victim's own error")
    dops.MPI.initialize(timeout=1.0, limit=4.0)


def finds_a_nan() -> None:
    """With `jax_debug_nans`, the victim runs a program again, because only its block of the result has NaNs.

    The error must not come only after the timeout.
    """
    fft, field = waiting()
    divisor = field.addressable_data(0) * (0 if victim() else 1)
    divisors = jax.make_array_from_single_device_arrays(field.shape, field.sharding, [divisor])
    jax.config.update("jax_debug_nans", True)
    fft(jax.jit(lambda u, v: fft.inverse(fft(u)) / v)(field, divisors))


# --- A rank is late.


def stopped_for_a_while() -> None:
    """The victim pauses. The other ranks print that they wait for the victim, and then all results are right."""
    fft, field = waiting()
    expected = np.asarray(fft(field).addressable_data(0))
    if victim():
        happens()
        time.sleep(3)
    found = fft(2 * field).addressable_data(0)
    np.testing.assert_allclose(found, 2 * expected)
    print("right", flush=True)


def stopped_for_ever() -> None:
    """SIGSTOP stops the victim, and the other ranks wait until the time limit."""
    fft, field = waiting()
    if victim():
        os.kill(os.getpid(), signal.SIGSTOP)
    fft(field)


# --- A rank ends without a fault.


def finalizes() -> None:
    from mpi4py import MPI

    fft, field = waiting()
    fft(field)
    writes()
    MPI.Finalize()
    writes()
    print("finalized", flush=True)


def writes() -> None:
    """Check that text appears on standard error at once, even if its line is not complete.

    The text is written by Python, by a system call, and by functions of C.
    """
    library = ctypes.CDLL(None)
    stream = ctypes.c_void_p.in_dll(library, "stderr")
    texts = {
        "of Python": lambda: print("of Python", end="", file=sys.stderr, flush=True),
        "of the system": lambda: os.write(2, b"of the system"),
        "E1231 of C": lambda: library.fputs(b"E1231 of C", stream),
        "Fatal 7\n": lambda: library.fprintf(stream, b"Fatal %d\n", 7),
    }
    assert library.fileno(stream) == 2
    reading, writing = os.pipe()
    terminal = os.dup(2)
    os.dup2(writing, 2)
    try:
        found = []
        for write in texts.values():
            write()
            found.append(os.read(reading, 100).decode())
    finally:
        os.dup2(terminal, 2)
    assert found == list(texts), found


def in_child(queue=None) -> str:
    try:
        MADE[0](MADE[1])
    except Exception as error:
        return str(error)
    return "no error"


def forks() -> None:
    """Some forked children end normally, some raise an exception, and some are terminated. The job goes on.

    An operator in a forked child raises an error.
    """
    global MADE
    MADE = fft, field = waiting()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, range(-100, 0)) == list(range(100, 0, -1))
        assert "forked from one that uses MPI" in pool.apply(in_child), pool.apply(in_child)
    child = os.fork()
    if child == 0:
        if victim():
            raise ValueError("the child's own error")
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (1 if victim() else 0)
    child = os.fork()
    if child == 0:
        time.sleep(100)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    jax.block_until_ready(fft(field))
    print("right", flush=True)


def ends_one_by_one() -> None:
    """The victim calls the last operator late, and the result is right.

    The ranks that need no data of the victim have ended before this call.
    """
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    transpose = dops.Transpose(mesh, "z", "y", shape=(8, 8, 8), backend=dops.MPI())
    field = field_of(transpose)
    expected = np.asarray(transpose(field).addressable_data(0))
    happens()
    if victim():
        time.sleep(4)
    np.testing.assert_array_equal(transpose(field).addressable_data(0), expected)
    print("right", flush=True)


OPTIONS = {"stopped_for_ever": {"limit": 4.0}, "finds_a_nan": {"timeout": 100.0}}

if __name__ == "__main__":
    if sys.argv[1] == "does_not_initialize":
        does_not_initialize()
    else:
        run(globals(), **OPTIONS.get(sys.argv[1], {}))
