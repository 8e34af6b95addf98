"""One rank of a run under `mpiexec`. test_mpi.py starts several of them and reads what they print.

mpiexec -n N python worker.py TASK
"""

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterable

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from helpers import assert_close, random_field, tolerance


MPI, XLA = dops.MPI(planning="estimate", threads=int(os.environ.get("THREADS", "1"))), dops.XLA()
ALL_PAIRS = list(itertools.permutations("xyz", 2))
EVEN, UNEVEN, PRIMES, TINY = (8, 4, 12), (9, 10, 11), (13, 17, 19), (3, 5, 2)
ONE, LONG = (1, 3, 2), (5, 6, 1030)


def make_mesh(sizes: tuple[int, ...], kind: AxisType = AxisType.Auto) -> Mesh:
    names = ("c", "x", "y")[-len(sizes) :] if len(sizes) > 1 else ("x",)
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(sizes))


def meshes() -> list[Mesh]:
    n = jax.device_count()
    grids = [(n,), (n, 1), (1, n)] + ([(2, n // 2)] if n > 2 else [])
    return [make_mesh(sizes) for sizes in grids]


def distributed(array: np.ndarray, mesh: Mesh, spec: P, shape: tuple[int, ...]) -> jax.Array:
    """`array`, padded with zeros to `shape`, over the mesh."""
    array = np.pad(array, [(0, have - want) for have, want in zip(shape, array.shape)])
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda index: array[index])


def assert_block(field: jax.Array, expected: np.ndarray) -> None:
    """The block of this rank is that of `expected`, and its padding is zero."""
    expected = np.pad(expected, [(0, have - want) for have, want in zip(field.shape, expected.shape)])
    (shard,) = field.addressable_shards
    atol = tolerance(field.dtype) * np.abs(expected).max()
    np.testing.assert_allclose(shard.data, expected[shard.index], rtol=0, atol=atol)


def assert_same(ours: jax.Array, theirs: jax.Array) -> None:
    """Bit for bit."""
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours.addressable_data(0), theirs.addressable_data(0))


def operators() -> None:
    """Every operator: transforms against NumPy, what only moves cells against XLA, bit for bit."""
    *slabs, grid = meshes()
    shapes = (EVEN, PRIMES, TINY) if jax.device_count() == 2 else ()
    for mesh, shape, contiguous in [
        *((mesh, UNEVEN, False) for mesh in slabs if jax.device_count() == 2),
        *((grid, shape, shape != TINY) for shape in shapes),
        (grid, UNEVEN, False),
    ]:
        check_fft(mesh, shape, contiguous)
        check_transposes(mesh, shape, contiguous)
        if not contiguous:
            check_halos(mesh, shape)
    for shape, contiguous in itertools.product((ONE, LONG), (False, True)):
        check_transposes(slabs[0] if shape == LONG else grid, shape, contiguous, ["zx", "xz", "yz"])
    for dtype in (np.bool_, np.int8, np.float16, jnp.bfloat16, np.int32, np.complex128):
        u = random_field(EVEN).astype(dtype)
        move = [dops.Transpose(meshes()[-1], "z", "x", backend=backend) for backend in (MPI, XLA)]
        assert_same(move[0](u), move[1](u))
    for dtype in (np.int16, np.float16, jnp.bfloat16, np.float32, np.complex64):
        h = [dops.HaloExchange(meshes()[-1], 1, shape=EVEN, backend=backend) for backend in (MPI, XLA)]
        plan = h[0].plan(EVEN)
        u = np.round(8 * random_field(plan.target.shape)).astype(dtype)  # sums are exact
        u = distributed(u, meshes()[-1], plan.target.spec, u.shape)
        assert_same(h[0].T(u), h[1].T(u))


def threads() -> None:
    """The same with several threads in each rank, if THREADS says so."""
    grid = meshes()[-1]
    check_fft(grid, UNEVEN, True)
    check_transposes(grid, UNEVEN, True, ["zx", "yz"])
    check_halos(grid, UNEVEN)


def check_fft(mesh: Mesh, shape: tuple, contiguous: bool) -> None:
    for real, dtype, norm in (
        (False, np.complex128, "ortho"),
        (True, np.float64, "backward"),
        (True, np.float32, "forward"),
    ):
        if dtype == np.float32 and contiguous:
            continue
        options = {"shape": shape, "real": real, "norm": norm, "axis_contiguous": contiguous, "backend": MPI}
        fft = dops.FFT3D(mesh, **options)
        u = random_field(shape, dtype)
        expected = (np.fft.rfftn if real else np.fft.fftn)(u, norm=norm)
        expected = expected.transpose(1, 2, 0) if contiguous else expected
        k = fft(fft.decomposition.shard(u))
        assert_block(k, expected)
        assert_block(fft.inverse(k), u)
        if dtype == np.float32:
            continue
        plan = fft.plan(shape)
        t = distributed(random_field(expected.shape, np.complex128, 1), mesh, plan.target.spec, plan.target.shape)
        same = dops.FFT3D(mesh, **{**options, "backend": XLA})
        for ours, theirs in ((fft.T, same.T), (fft.H, same.H), (fft.inverse.T, same.inverse.T)):
            x = t if ours.plan(shape).source == plan.target else fft.decomposition.shard(u)
            assert_close(ours(x).addressable_data(0), np.asarray(theirs(x).addressable_data(0)))


def check_transposes(mesh: Mesh, shape: tuple, contiguous: bool, pairs: Iterable = ALL_PAIRS) -> None:
    for pair in pairs:
        options = {"shape": shape, "axis_contiguous": contiguous}
        ours, theirs = (dops.Transpose(mesh, *pair, **options, backend=backend) for backend in (MPI, XLA))
        layout = ours.plan(shape).source
        u = distributed(random_field(layout.true_shape, np.float32), mesh, layout.spec, layout.shape)
        assert_same(ours(u), theirs(u))


def check_halos(mesh: Mesh, shape: tuple) -> None:
    for width, periodic in ((1, True), (((2, 1), (0, 3), (1, 1)), (True, False, False)), ((9, 0, 4), True)):
        ours, theirs = (dops.HaloExchange(mesh, width, periodic=periodic, shape=shape, backend=b) for b in (MPI, XLA))
        u = ours.decomposition.shard(random_field(shape))
        h = ours(u)
        assert_same(h, theirs(u))
        assert_same(ours.crop(h), theirs.crop(h))
        assert_same(ours.update(h), theirs.update(h))
        assert_same(ours.crop.T(u), theirs.crop.T(u))
        assert_close(ours.T(h).addressable_data(0), np.asarray(theirs.T(h).addressable_data(0)))
        y = distributed(random_field(h.shape, seed=1), mesh, h.sharding.spec, h.shape)
        assert_close(jnp.sum(y * h), jnp.sum(ours.T(y) * u))


def transformations() -> None:
    """Derivatives, batches, groups, and one block at a time."""
    n = jax.device_count()
    for kind in (AxisType.Auto, AxisType.Explicit):
        check_derivatives(make_mesh((n // 2, 2), kind))
    groups = make_mesh((2, n // 2))
    for axes in (("x",), ("y",)):
        u = random_field((2, 8, 4, 6), np.complex128)
        fft = dops.FFT3D(groups, axes=axes, backend=MPI)
        spec = P("x" if axes == ("y",) else "y", *fft.in_spec)
        field = distributed(u, groups, spec, u.shape)
        assert_block(jax.jit(jax.vmap(fft))(field), np.fft.fftn(u, axes=(1, 2, 3)))
    backwards = Mesh(np.array(jax.devices())[::-1], ("x",))  # ranks in another order than the mesh
    fft = dops.FFT3D(backwards, shape=PRIMES, backend=MPI)
    u = random_field(PRIMES, np.complex128)
    assert_block(fft(fft.decomposition.shard(u)), np.fft.fftn(u))


def check_derivatives(mesh: Mesh) -> None:
    shape = (10, 14, 9)
    x, y, z = np.meshgrid(*(2 * np.pi * np.arange(m) / m for m in shape), indexing="ij")
    u = np.sin(2 * x) * np.cos(3 * y) * np.sin(z)
    fft = dops.FFT3D(mesh, shape=shape, real=True, backend=MPI)
    with jax.set_mesh(mesh):

        def loss(v):  # sum (du/dx)^2 / 2, whose gradient is -d^2u/dx^2 = 4 u
            kx, _, _ = fft.wavenumbers()
            return jnp.sum(fft.inverse(1j * kx * fft(v)) ** 2) / 2

        field = fft.decomposition.shard(u)
        gradient = jax.jit(jax.grad(loss))
        assert_block(gradient(field), 4 * u)
        assert_block(jax.jit(lambda v: jax.jvp(gradient, (v,), (v,))[1])(field), 4 * u)
        batch = fft.decomposition.shard(np.stack([u, 2 * u]))
        expected = np.fft.rfftn(np.stack([u, 2 * u]), axes=(1, 2, 3))
        assert_block(jax.jit(jax.vmap(fft))(batch), expected)
        scanned, _ = jax.jit(lambda v: lax.scan(lambda c, _: (fft.inverse(fft(c)), None), v, length=3))(field)
        assert_block(scanned, u)
    check_local(mesh, fft, u)


def check_local(mesh: Mesh, fft: dops.FFT3D, u: np.ndarray) -> None:
    """`.local` inside the user's own `shard_map`: value, derivative, batch."""
    plan = fft.plan(u.shape)

    def mapped(function, batch=()):
        specs = (P(*batch, *plan.source.spec), P(*batch, *plan.target.spec))
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs[0], out_specs=specs[1]))

    field = fft.decomposition.shard(u)
    assert_block(mapped(fft.local)(field), np.fft.rfftn(u))
    two = fft.decomposition.shard(np.stack([u, 3 * u]))
    assert_block(mapped(jax.vmap(fft.local), (None,))(two), np.fft.rfftn(np.stack([u, 3 * u]), axes=(1, 2, 3)))
    _, derivative = jax.jvp(mapped(fft.local), (field,), (field,))
    assert_block(derivative, np.fft.rfftn(u))
    _, pull = jax.vjp(mapped(fft.local), field)
    k = fft(field)
    assert_close(pull(k)[0].addressable_data(0), np.asarray(fft.T(k).addressable_data(0)))


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


RESULTS = (operators, threads, transformations, order, leak, ends_late)
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
