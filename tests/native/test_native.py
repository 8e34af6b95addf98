"""Tests of the compiled kernels on all devices of one process, against NumPy, SciPy and the XLA backend."""

import contextlib
import os
import subprocess
import sys
import threading

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import io, pde
from decompops._backend.native import fft_library, library
from decompops._operator.unbound import bound
from hypothesis import given, settings, strategies as st
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

import checks
import spectral_checks
import wires
from checks import assert_block, assert_exact, distributed
from helpers import assert_close, make_mesh, put, random_field
from plans import check_plans
from transforms import check_some


NATIVE = dops.Native(planning="estimate", threads=2)


def test_kernels_work():
    assert library.NATIVE.problem() is None
    assert dops.Native().problem() is None


@pytest.mark.parametrize("check", [checks.operators, checks.transformations, check_plans])
def test_results(check):
    check(NATIVE)


def test_everything_on_top_of_transforms():
    spectral_checks.spectral(NATIVE, everything=True)


def test_narrow_exchanges():
    wires.check(NATIVE, make_mesh((2, 4)))


def test_many_programs_in_flight():
    checks.stress(NATIVE)


def test_thin_selection_of_all_transforms():
    check_some(NATIVE, every=73)


FEW = {"int4", "uint2", "bool", "float8_e5m2"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.sweep) for n in checks.DTYPES])
@pytest.mark.parametrize("backend", [NATIVE, dops.XLA()])
def test_every_dtype(backend, name):
    checks.check_dtype(backend, name)


def test_kernels_refuse_plans_for_other_kernels(monkeypatch):
    """A compiled program may have been stored before the kernels were updated."""
    other = {**library.build(), "stamp": "7"}
    monkeypatch.setattr(library, "build", lambda: other)
    transpose = dops.Transpose(make_mesh((2, 4)), "z", "x", shape=(8, 8, 16), backend=NATIVE)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"the stamp of its kernels is 7\)"):
        jax.block_until_ready(transpose(random_field((8, 8, 16))))


def test_kernels_refuse_numbers_that_share_bytes(monkeypatch):
    """Without the check in Python, a kernel itself refuses numbers that share a byte with others."""
    monkeypatch.setattr("decompops._operator.planned.check_dtype", lambda name, dtype: dtype)
    transpose = dops.Transpose(make_mesh((2, 4)), "z", "x", shape=(8, 8, 8), backend=NATIVE)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the kernels cannot move these numbers"):
        jax.block_until_ready(transpose(jnp.ones((8, 8, 8), jnp.int4)))


def test_cudecomps_matrix():
    checks.matrix(NATIVE, everything=False)


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.sampled_from([(1,), (2,), (3,), (8,), (2, 2), (2, 4), (4, 2), (1, 5), (7, 1)]),
    shape=st.tuples(*[st.integers(1, 20)] * 3),
    batch=st.integers(0, 3),
    threads=st.integers(1, 4),
    real=st.booleans(),
    planning=st.sampled_from(["estimate", "measure"]),
)
def test_random_shapes(sizes, shape, batch, threads, real, planning):
    devices = jax.devices()[: int(np.prod(sizes))]
    mesh = jax.make_mesh(sizes, ("x", "y")[: len(sizes)], devices=devices)
    backend = dops.Native(planning=planning, threads=threads)
    fft = dops.FFT3D(mesh, shape=shape, pad=True, real=real, backend=backend)
    u = random_field((*[batch] * (batch > 0), *shape), np.float64 if real else np.complex128)
    k = fft(fft.decomposition.shard(u))
    assert_block(k, (np.fft.rfftn if real else np.fft.fftn)(u, axes=(-3, -2, -1)))
    assert_block(fft.inverse(k), u)


@pytest.mark.parametrize("shape", [(64, 16), (16, 64), (48, 16), (16, 18), (8, 30)], ids=str)
def test_a_device_with_one_line_beside_padding(shape):
    # In these half spectra, one of eight devices has a single line and lines of padding.
    fft = dops.FFT(make_mesh((8,)), shape=shape, axes="x", pad=True, real=True, backend=NATIVE)
    u = random_field(shape, np.float64)
    k = jax.jit(fft)(fft.decomposition.shard(u))
    assert_block(k, np.fft.rfftn(u))
    assert_block(fft.inverse(k), u)


class TestDefault:
    def test_on_devices_of_this_process(self, monkeypatch):
        monkeypatch.delenv("DECOMPOPS_BACKEND")
        mesh = make_mesh((2, 4))
        assert dops.FFT3D(mesh).decomposition.backend == dops.Native()
        assert dops.FFT3D(mesh, backend=dops.XLA()).decomposition.backend == dops.XLA()
        with dops.config.use(backend=dops.XLA()):
            assert dops.FFT3D(mesh).decomposition.backend == dops.XLA()
        assert dops.FFT3D(mesh.abstract_mesh).decomposition.backend == dops.XLA()

    def test_of_an_operator_without_a_mesh(self, monkeypatch):
        monkeypatch.delenv("DECOMPOPS_BACKEND")
        u = put(make_mesh((2, 4)), random_field((8, 8, 8)), "x", "y", None)
        chosen = lambda fft: bound(fft, u).decomposition.backend
        assert chosen(dops.FFT3D()) == chosen(dops.FFT3D(shape=u.shape)) == dops.Native()
        fft = dops.FFT3D(backend="xla")
        assert chosen(fft) == chosen(fft.replace(norm="ortho")) == dops.XLA()
        with dops.config.use(backend="xla"):
            fft = dops.FFT3D()
        assert chosen(fft) == dops.XLA()  # The default is read when an operator is built.
        fft = dops.FFT3D()
        with dops.config.use(backend="xla"):
            assert chosen(fft) == dops.Native()

    def test_of_functions(self, monkeypatch):
        monkeypatch.delenv("DECOMPOPS_BACKEND")
        mesh, before = make_mesh((8,)), dops.Native().counters()
        u = random_field((8, 8, 3), np.complex128)
        assert_block(dops.fft.fftn(distributed(u, mesh, P("x"), u.shape)), np.fft.fftn(u))
        assert dops.Native().counters().messages > before.messages


def test_groups_exchange_inside_only():
    """In a batched transform, devices exchange data only within their group, so fewer bytes move."""
    mesh = make_mesh((2, 2, 2))
    u = random_field((2, 8, 8, 8), np.complex128)
    fft = dops.FFT3D(mesh, shape=(8, 8, 8), axes=("x", "y"), backend=NATIVE)
    field = distributed(u, mesh, P("c", *fft.in_spec), u.shape)
    program = jax.jit(jax.vmap(fft)).lower(field).compile()
    before = NATIVE.counters()
    assert_block(program(field), np.fft.fftn(u, axes=(1, 2, 3)))
    after = NATIVE.counters()
    # There are two exchanges. In each of them, each of eight devices sends half of its block to one other device.
    assert after.messages - before.messages == 2 * 8
    assert after.sent_bytes - before.sent_bytes == 2 * u.nbytes // 2


def test_independent_operators_in_any_order():
    """Many independent operators in one program give NumPy's results.

    XLA may run these operators at the same time, and in a different order on each device.
    """
    mesh = make_mesh((2, 4))
    ffts = [dops.FFT3D(mesh, shape=shape, pad=True, backend=NATIVE) for shape in ((8, 8, 8), (9, 10, 11), (4, 6, 30))]
    fields = [random_field(ffts[i % 3].decomposition.shape, np.complex128, seed=i) for i in range(24)]
    blocks = [ffts[i % 3].decomposition.shard(u) for i, u in enumerate(fields)]
    program = jax.jit(lambda blocks: [ffts[i % 3](u) for i, u in enumerate(blocks)])
    for _ in range(20):
        results = program(blocks)
    for k, u in zip(results, fields):
        assert_block(k, np.fft.fftn(u))


def test_loops_of_many_steps():
    mesh = make_mesh((8,))
    fft = dops.FFT3D(mesh, shape=(8, 8, 8), backend=NATIVE)
    u = random_field((8, 8, 8), np.complex128)
    turned = np.exp(1j * np.arange(8))[None, None]

    @jax.jit
    def program(v):
        step = lambda v, _: (fft.inverse(turned * fft(v)), jnp.linalg.norm(v))  # The norm is a collective of XLA.
        return lax.scan(step, v, length=2000)

    result, norms = program(fft.decomposition.shard(u))
    assert_block(result, np.fft.ifftn(turned**2000 * np.fft.fftn(u)))
    np.testing.assert_allclose(norms, np.linalg.norm(u), rtol=1e-9)


def test_threads_of_python():
    """Two Python threads can run programs on the same devices at the same time."""
    mesh = make_mesh((2, 4))
    fft = dops.FFT3D(mesh, shape=(9, 10, 11), pad=True, backend=NATIVE)
    failures = []

    def work(seed):
        u = random_field((9, 10, 11), np.complex128, seed=seed)
        block = fft.decomposition.shard(u)
        program = jax.jit(lambda v: fft(v) * seed)
        try:
            for _ in range(30):
                assert_block(program(block), seed * np.fft.fftn(u))
        except AssertionError as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the number of threads is not known")
def test_all_settings_share_their_threads():
    """A process never has more threads of the kernels than cores, and results do not depend on `threads`."""

    def threads_of_process() -> int:
        return len(os.listdir("/proc/self/task"))

    mesh, expected, before = make_mesh((2, 4)), {}, None
    for threads in (1, 2, 3, 7, 48):
        fft = dops.FFT3D(mesh, shape=(32, 32, 32), backend=dops.Native(planning="estimate", threads=threads))
        for batch in (1, 2, 6):
            u = random_field((batch, 32, 32, 32), np.complex128, seed=batch)
            result = fft(fft.decomposition.shard(u))
            assert_block(result, np.fft.fftn(u, axes=(1, 2, 3)))
            assert_exact(result, expected.setdefault(batch, np.asarray(result)))
        before = before or threads_of_process()  # Later settings can only add threads of the kernels.
    assert threads_of_process() - before <= len(os.sched_getaffinity(0)) - 1


def test_devices_in_another_order():
    backwards = Mesh(np.array(jax.devices())[::-1].reshape(2, 4), ("x", "y"))
    some = Mesh(np.array(jax.devices())[[5, 2, 7]], ("x",))
    u = random_field((13, 17, 19), np.complex128)
    for mesh in (backwards, some):
        fft = dops.FFT3D(mesh, shape=u.shape, pad=True, backend=NATIVE)
        assert_block(fft(fft.decomposition.shard(u)), np.fft.fftn(u))


WAITING = """
import ctypes, jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
import decompops as dops
from decompops._backend.native.library import NATIVE
from jax.sharding import PartitionSpec as P
NATIVE.call("set_limits", 1.0, 2.0)
mesh = jax.make_mesh((2,), ("x",))
fft = dops.FFT3D(mesh, shape=(4, 4, 4), backend="native")
@jax.jit
@jax.shard_map(mesh=mesh, in_specs=fft.in_spec, out_specs=fft.in_spec, check_vma=False)
def one_stays_away(block):
    return jax.lax.cond(jax.lax.axis_index("x") == 0, lambda b: fft.inverse.local(fft.local(b)), lambda b: b, block)
try:
    one_stays_away(fft.decomposition.shard(np.ones((4, 4, 4), np.complex64))).block_until_ready()
except Exception as error:
    print("ERROR", str(error))
"""


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_programs_refuse_the_devices_of_the_mesh_in_another_order(kind):
    """Types do not name devices, so a program would run kernels that are compiled for another order of the devices."""
    mesh = make_mesh((2, 2), kind)
    other = Mesh(mesh.devices.ravel()[[3, 1, 0, 2]].reshape(2, 2), ("x", "y"), axis_types=mesh.axis_types)
    fft = dops.FFT3D(mesh, shape=(4, 4, 4), backend=NATIVE)
    roll = dops.Roll(fft.decomposition, (1, 1, 0))
    x = put(other, random_field((4, 4, 4)), "x", "y")
    local = jax.shard_map(fft.local, mesh=other, in_specs=fft.in_spec, out_specs=fft.out_spec)
    total = lambda x: jnp.sum(jnp.abs(fft(x)) ** 2)
    for function in (fft, roll, fft.decomposition.norm, jax.grad(total), local):
        for context in (contextlib.nullcontext(), jax.set_mesh(other)):
            with context, pytest.raises(ValueError, match=r"device ids \[3, 1, 0, 2\].* ids \[0, 1, 2, 3\]"):
                jax.jit(function)(x)
    retyped = dops.FFT3D(make_mesh((2, 2), "explicit" if kind == "auto" else "auto"), shape=(4, 4, 4), backend=NATIVE)
    with jax.set_mesh(other), pytest.raises(ValueError, match=r"device ids \[3, 1, 0, 2\].* ids \[0, 1, 2, 3\]"):
        jax.jit(retyped)(x)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_programs_that_close_over_fields(kind):
    """Nothing but the primitive tells JAX the devices of such a program."""
    mesh, u = make_mesh((2, 2), kind), random_field((4, 4, 4))
    fft, field = dops.FFT3D(mesh, shape=(4, 4, 4), backend=NATIVE), put(mesh, u, "x", "y")
    assert_close(jax.jit(lambda factor: fft(factor * field))(2.0), 2 * np.fft.fftn(u))


def test_a_device_that_never_comes():
    """If a device never calls an operator, the other devices print a message and later raise an error.

    The error names the operator and the device.
    """
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=120, check=False)
    assert "has waited 1 s for device 1" in done.stderr, done.stderr
    (error,) = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
    assert "FFT3D" in error
    assert "device 1" in error
    assert "must run the same operators" in error


class TestBadInput:
    def test_options(self, plain):
        for options, error in (
            ({"threads": 0}, "`threads` must be an integer of at least one; got 0"),
            ({"threads": True}, "`threads` must be an integer of at least one; got True"),
            ({"planning": "quick"}, "`planning` must be one of"),
        ):
            with pytest.raises(ValueError, match=error):
                plain.Native(**options)

    def test_mesh_without_devices(self, plain):
        with pytest.raises(ValueError, match=r"`mesh` must have devices for `backend=Native\(\)`"):
            plain.FFT3D(make_mesh((8,)).abstract_mesh, backend=plain.Native())


class TestLibraries:
    """Tests of the FFT libraries: FFTW or MKL if they are installed, and DUCC, which is compiled in."""

    @pytest.mark.parametrize("wanted", ["fftw", "mkl", "ducc"])
    def test_each_one(self, wanted):
        environment = os.environ | {"DECOMPOPS_FFT": wanted, "PYTHONPATH": os.pathsep.join(sys.path)}
        program = (
            "import jax; jax.config.update('jax_num_cpu_devices', 4); jax.config.update('jax_enable_x64', True)\n"
            "import sys, decompops as dops\n"
            "from decompops._backend.native import library\n"
            "if library.NATIVE.problem(): print(library.NATIVE.problem()); sys.exit()\n"
            "import numpy as np, checks\n"
            "from jax import numpy as jnp\n"
            "mesh = jax.make_mesh((2, 2), ('x', 'y'))\n"
            "native = dops.Native(planning='estimate')\n"
            "checks.check_fft(native, mesh, (13, 16, 15), False)\n"
            "checks.check_fft(native, mesh, (6, 4, 331), True)\n"
            "print('passed with', library.fft_version(), library.build().get('ducc_problem'))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False, env=environment
        )
        expected = {"fftw": "passed with fftw-3", "mkl": "passed with MKL", "ducc": "passed with DUCC"}[wanted]
        missing = f"the library of `DECOMPOPS_FFT={wanted}` was not found"
        assert expected in done.stdout or (wanted != "ducc" and missing in done.stdout), done.stdout + done.stderr

    def test_of_an_unknown_name(self, monkeypatch):
        monkeypatch.setenv("DECOMPOPS_FFT", "pocket")
        fft_library.find.cache_clear()
        with pytest.raises(ValueError, match=r"`DECOMPOPS_FFT` must be one of .*; got 'pocket'"):
            fft_library.find()
        fft_library.find.cache_clear()


def test_files_of_another_backend(tmp_path):
    """A run on the native backend continues from a snapshot and from a checkpoint of a run on the XLA backend."""
    first, second = (
        pde.ETDRK(pde.NavierStokes(dops.FFT3D(mesh, shape=(10, 9, 8), pad=True, real=True, backend=backend), 0.05), 0.1)
        for mesh, backend in ((make_mesh((2, 4)), dops.XLA()), (make_mesh((4, 2)), NATIVE))
    )
    initial = random_field((3, 10, 9, 8))
    u, like = (one.equation.state(one.equation.fft.decomposition.shard(initial)) for one in (first, second))
    u, _ = first.rollout(u, 2)
    io.write(tmp_path / "u.h5", {"u": first.equation.fields(u)}, first.equation.fft)
    with io.Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(2, {"u": u}, {"u": first.in_structure})
        restored = checkpoints.restore({"u": like}, {"u": second.in_structure})["u"]
    read = second.equation.state(io.read(tmp_path / "u.h5", second.equation.fft).arrays["u"])
    expected = first.equation.fft.decomposition.gather(first.equation.fields(first.rollout(u, 2)[0]))
    for v in (restored, read):
        assert_block(second.equation.fields(second.rollout(v, 2)[0]), expected)


def test_counting():
    before = NATIVE.counters()
    dops.FFT3D(make_mesh((8,)), backend=NATIVE)(jnp.zeros((16, 16, 16), jnp.complex64)).block_until_ready()
    after = NATIVE.counters()
    assert after.messages - before.messages == 8 * 7
    assert after.sent_bytes - before.sent_bytes == 16**3 * 8 * 7 // 8
