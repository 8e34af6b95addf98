"""One rank of a multi-process run. test_multiprocess.py starts several ranks and reads their output.

    python worker.py TASK --rank R --processes N --devices D --port P [--death HOW --victim V --timeout SECONDS]

All ranks run the same program. TASK is the name of a function in `TASKS`.
"""

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import mpmd
from decompops.testing import assert_adjoint
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from disagreement import CHECKS as DISAGREEMENT_CHECKS
from files import CHECKS as FILE_CHECKS
from groups import CHECKS as GROUP_CHECKS, check_round_trip, make_groups
from helpers import assert_blocks, assert_close, make_mesh, random_field, spec_of
from systems import check_eager_solver


EVEN, UNEVEN = (8, 4, 12), (5, 6, 7)
PENCILS = ("x", "y", "z")


# --- Checks of every operator: each rank compares its own blocks with NumPy's result for the whole field. ---


def check_shard_and_gather(mesh: Mesh) -> None:
    for shape, pencil in ((EVEN, "z"), (UNEVEN, "x"), (UNEVEN, "y"), (UNEVEN, "z")):
        dec = dops.Decomposition(mesh, shape=shape, pad=True)
        u = random_field((3, *shape))
        field = dec.shard(u, pencil)
        assert field.sharding.is_equivalent_to(NamedSharding(mesh, P(None, *dec.spec(pencil))), 4)
        assert_blocks(field, u)
        np.testing.assert_array_equal(dec.gather(field), u)
        cropped = dec.crop(field)
        assert cropped.shape == u.shape
        np.testing.assert_array_equal(dec.gather(cropped), u)
        assert_close(dec.vdot(field + 1, field), np.sum((u + 1) * u, axis=(1, 2, 3)))


def check_fft(mesh: Mesh) -> None:
    for real, shape in ((False, EVEN), (False, UNEVEN), (True, UNEVEN)):
        fft = dops.FFT3D(mesh, shape=shape, pad=True, real=real)
        u = random_field(shape, np.float64 if real else np.complex128)
        expected = (np.fft.rfftn if real else np.fft.fftn)(u)
        k = fft(fft.decomposition.shard(u))
        assert spec_of(k) == fft.out_spec
        assert_blocks(k, expected)
        assert_close(fft.out_layout.gather(k), expected)
        back = fft.inverse(k)
        assert spec_of(back) == fft.in_spec
        assert_blocks(back, u)
    # Operators also accept a NumPy array that is the same on all ranks.
    assert_blocks(fft(u), expected)
    assert_adjoint(fft)


def check_gradient(mesh: Mesh) -> None:
    """Check that the loss sum (du/dx)^2 / 2 has the gradient -d^2u/dx^2, which is 4 u for this field."""
    shape = (10, 14, 9)
    x, y, z = np.meshgrid(*(2 * np.pi * np.arange(n) / n for n in shape), indexing="ij")
    u = np.sin(2 * x) * np.cos(3 * y) * np.sin(z)
    fft = dops.FFT3D(mesh, shape=shape, pad=True, real=True)

    def loss(v: jax.Array) -> jax.Array:
        kx, _, _ = fft.wavenumbers()
        return jnp.sum(fft.inverse(1j * kx * fft(v)) ** 2) / 2

    value, gradient = jax.jit(jax.value_and_grad(loss))(fft.decomposition.shard(u))
    assert_close(value, np.sum((2 * np.cos(2 * x) * np.cos(3 * y) * np.sin(z)) ** 2) / 2)
    assert spec_of(gradient) == fft.in_spec
    assert_blocks(gradient, 4 * u)


def check_transpose(mesh: Mesh) -> None:
    pairs = itertools.permutations(PENCILS, 2)
    for source, target, shape in (("z", "x", EVEN), *((*pair, UNEVEN) for pair in pairs)):
        transpose = dops.Transpose(mesh, source, target, shape=shape, pad=True)
        u = random_field(shape)
        field = transpose.decomposition.shard(u, source)
        moved = transpose(field)
        assert spec_of(moved) == transpose.out_spec
        assert_blocks(moved, u)
        assert_blocks(transpose.inverse(moved), u)


def check_halo(mesh: Mesh) -> None:
    for width, periodic in ((1, True), (((2, 1), (0, 3), (1, 1)), (True, False, False))):
        halo = dops.HaloExchange(mesh, width, periodic=periodic, shape=EVEN, pad=True)
        u = random_field(EVEN)
        field = halo.decomposition.shard(u)
        h = halo(field)

        surrounded = u
        for axis in range(3):
            widths = [halo.halo[axis] if i == axis else (0, 0) for i in range(3)]
            surrounded = np.pad(surrounded, widths, mode="wrap" if halo.periodic[axis] else "constant")
        for shard in h.addressable_shards:
            # Along an axis, block i with its halo begins at i * (cells + halo) in `h`, and at i * cells in
            # `surrounded`.
            cells = halo.decomposition.local_shape("z")
            starts = [(s.start or 0) // n * c for s, n, c in zip(shard.index, shard.data.shape, cells)]
            window = tuple(slice(s, s + n) for s, n in zip(starts, shard.data.shape))
            assert_close(shard.data, surrounded[window])

        assert_blocks(halo.crop(h), u)
        y = random_field(h.shape, seed=1)
        y = jax.make_array_from_callback(y.shape, h.sharding, lambda index, y=y: y[index])
        assert_close(jnp.sum(y * h), jnp.sum(halo.T(y) * field))
        assert_blocks(halo.crop(halo.update(y)), halo.decomposition.gather(halo.crop(y)))


def second_differences(h: jax.Array) -> jax.Array:
    inner = h[..., 1:-1, 1:-1, 1:-1]
    x = h[..., 2:, 1:-1, 1:-1] - 2 * inner + h[..., :-2, 1:-1, 1:-1]
    y = h[..., 1:-1, 2:, 1:-1] - 2 * inner + h[..., 1:-1, :-2, 1:-1]
    z = h[..., 1:-1, 1:-1, 2:] - 2 * inner + h[..., 1:-1, 1:-1, :-2]
    return x + 2 * y + 3 * z


def check_stencil(mesh: Mesh) -> None:
    stencil = dops.Stencil(mesh, second_differences, shape=UNEVEN, pad=True)
    u = random_field(UNEVEN)
    field = stencil.decomposition.shard(u)
    differences = (np.roll(u, 1, axis) - 2 * u + np.roll(u, -1, axis) for axis in range(3))
    expected = sum(weight * difference for weight, difference in zip((1, 2, 3), differences))
    assert_blocks(jax.jit(stencil)(field), expected)
    assert_blocks(jax.jit(stencil.T)(field), expected)  # The stencil is symmetric.


def check_plot(mesh: Mesh) -> None:
    """Check that every rank can plot the whole plane."""
    dec = dops.Decomposition(mesh, shape=UNEVEN, pad=True)
    u = random_field(UNEVEN)
    field = dec.shard(u)
    for axis in range(3):
        (image,) = dops.plot.slice(dec, field, axis, index=2).images
        assert_close(image.get_array(), u.take(2, axis).T)
        (image,) = dops.plot.projection(dec, field, axis).images
        assert_close(image.get_array(), u.max(axis).T)
    fft = dops.FFT3D(dec, real=True)
    _, energy = dops.plot.spectrum(fft, jnp.stack([field, field])).lines[0].get_data()
    expected = dops.spectral.power_spectrum(fft, field)
    # The shells are one wide, and the energy of two equal components is the sum of the power of one.
    assert_close(energy, np.asarray(expected.power * expected.modes) / (2 * np.pi) ** 3)


def check_groups(mesh: Mesh) -> None:
    """Check `vmap` over a batch axis that is sharded over a mesh axis which does not shard the grid.

    Each group of devices computes its own transforms, and groups do not communicate with each other.
    """
    fft = dops.FFT3D(mesh, shape=EVEN)
    u = random_field((4, *EVEN), np.complex128)
    field = fft.decomposition.shard(u)
    assert spec_of(field) == P("c", "x", "y", None)
    transform = jax.jit(jax.vmap(fft))
    k = transform(field)
    assert k.sharding.is_equivalent_to(NamedSharding(mesh, P("c", None, "x", "y")), 4)
    assert_blocks(k, np.fft.fftn(u, axes=(-3, -2, -1)))
    program = transform.lower(field).compile().as_text()
    assert "all-to-all" in program
    assert "all-gather" not in program


def check_sub_mesh(mesh: Mesh) -> None:
    """Check that a process without devices of the mesh takes no part, and that other processes do not wait for it."""
    if jax.process_index() in {device.process_index for device in mesh.devices.flat}:
        fft = dops.FFT3D(mesh, shape=UNEVEN, pad=True)
        u = random_field(UNEVEN, np.complex128)
        k = fft(fft.decomposition.shard(u))
        assert_blocks(k, np.fft.fftn(u))
        assert_close(fft.out_layout.gather(k), np.fft.fftn(u))


def check_autotune() -> None:
    """Check `autotune` on several processes.

    Process 0 reads and writes the cache for all processes. If a candidate fails on one process, all processes count it
    as failed.
    """

    def operator(dec: dops.Decomposition):
        if dec.sizes[0] == 1 and jax.process_index() == 1:
            raise MemoryError("too much")
        return dops.Transpose(dec, "z", "y")

    with tempfile.TemporaryDirectory() as folder:  # Each process has its own folder.
        path = Path(folder) / "choices.json"
        if jax.process_index() == 0:
            path.write_text("[]")
        with pytest.raises(ValueError, match=r"^(process 0 failed: )?`cache` must be a JSON file"):
            dops.autotune(EVEN, operator=operator, cache=path, on_trial=pytest.fail)
        path.unlink(missing_ok=True)
        trials = []
        found = dops.autotune(EVEN, operator=operator, cache=path, repeats=1, on_trial=trials.append)
        assert ["MemoryError" in str(t.failure) or "another process" in str(t.failure) for t in trials] == [1, 0, 0]
        assert dops.autotune(EVEN, operator=operator, cache=path, on_trial=pytest.fail) == found
        assert path.exists() == (jax.process_index() == 0)


CHECKS = (
    check_shard_and_gather,
    *DISAGREEMENT_CHECKS,
    check_fft,
    check_gradient,
    check_transpose,
    check_halo,
    check_stencil,
    check_eager_solver,
    check_plot,
)
ON_ONE_MESH = {check_eager_solver: 1, check_plot: 0}  # The number of the mesh. These checks take the longest.


def checks(arguments: argparse.Namespace) -> None:
    sys.excepthook = abort
    for check, (number, mesh) in itertools.product(CHECKS, enumerate((make_mesh((4,)), make_mesh((2, 2), "explicit")))):
        if arguments.everything or ON_ONE_MESH.get(check, number) == number:
            timed(check, mesh)
    if arguments.everything:
        timed(check_fft, make_mesh((2, 2)))
    timed(check_sub_mesh, Mesh(np.array(jax.devices()[::2]), ("x",)))
    timed(check_groups, make_mesh((2, 2, 1)))
    check_autotune()
    for check in FILE_CHECKS:
        check(arguments.folder / check.__name__)
    print("all checks passed", flush=True)


def timed(check, mesh: Mesh) -> None:
    start = time.perf_counter()
    with jax.set_mesh(mesh):
        check(mesh)
    print(f"{check.__name__} {dict(mesh.shape)} {time.perf_counter() - start:.2f} s", flush=True)


def abort(*error: object) -> None:
    """End the process at once after an uncaught exception.

    At a normal exit, Python would wait for the other ranks, which wait for this rank.
    """
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(1)


# --- A rank dies in the middle of an endless loop of transforms. ---


def loop(arguments: argparse.Namespace) -> None:
    if arguments.death == "stuck":
        sys.excepthook = abort  # At a normal exit, the surviving rank would wait for the stuck rank.
    mesh = make_mesh((len(jax.devices()),))
    fft = dops.FFT3D(mesh, shape=(16, 16, 16))
    step = jax.jit(lambda u: fft.inverse(fft(u)))
    u = fft.decomposition.shard(random_field((16, 16, 16), np.complex64))
    for i in itertools.count():
        u = step(u).block_until_ready()
        if i == 20 and jax.process_index() == arguments.victim:
            print(f"victim at {time.time()}", flush=True)
            DEATHS[arguments.death]()


DEATHS = {
    "exit": lambda: os._exit(3),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),  # The sockets stay open.
    "stuck": lambda: time.sleep(1000),  # The rank is alive and sends heartbeats.
}


# --- Groups that run different programs. ---


def groups(arguments: argparse.Namespace) -> None:
    """Check reshards and operators with one group for each process."""
    sys.excepthook = abort
    sizes = (arguments.processes, arguments.devices)
    for kind in ("auto", "explicit"):
        mpmd_mesh = make_groups(sizes, kind)
        assert mpmd_mesh.my_mpmd_idx == arguments.rank
        check_round_trip(mpmd_mesh, threshold=1)
        with jax.set_mesh(mpmd_mesh.groups[arguments.rank]):
            check_round_trip(mpmd_mesh, threshold=None)
    for check in GROUP_CHECKS:
        check(mpmd_mesh)
    check_groups_that_disagree(mpmd_mesh)
    check_elsewhere(mpmd_mesh)
    if arguments.devices > 1:
        transposed = Mesh(mpmd_mesh.mesh.devices.T, ("g", "x"))
        with pytest.raises(ValueError, match=r"keep all devices of a process in one group; got .*{0: \[0, 1\]"):
            mpmd.MpmdMesh(transposed, "g")
    print("all checks passed", flush=True)


def check_groups_that_disagree(mpmd_mesh: mpmd.MpmdMesh) -> None:
    """Check that all processes raise an error at once if they disagree. The error must not delete any array."""
    rank = jax.process_index()
    u = jax.make_array_from_callback((8, 8), NamedSharding(mpmd_mesh.mesh, P()), lambda index: np.ones((8, 8))[index])
    with pytest.raises(ValueError, match="All processes must move arrays of the same shapes"):
        mpmd.spmd_to_mpmd_reshard(mpmd_mesh, u, mpmd.MpmdSharding(mpmd_mesh, [min(rank, 1)], P()))
    with pytest.raises(ValueError, match=r"All processes must .* `threshold`"):
        mpmd.spmd_to_mpmd_reshard(mpmd_mesh, u, mpmd.MpmdSharding(mpmd_mesh, [0], P()), threshold=100 + rank)
    assert not u.is_deleted()
    place = mpmd.MpmdSharding(mpmd_mesh, [0], P())
    for wrong, message in (({"a": np.full(4, rank)}, "NumPy arrays: the same"), (jax.random.key(0), "hold numbers")):
        with pytest.raises((ValueError, TypeError), match=message):
            mpmd.spmd_to_mpmd_reshard(mpmd_mesh, wrong, place)
    # An array with NaN must count as equal in all processes, although NaN is not equal to itself.
    part = mpmd.spmd_to_mpmd_reshard(mpmd_mesh, np.array([1, np.nan]), place)
    assert part.is_partially_addressable == (rank == 0)
    # A process without data of this array must also mark the array as deleted. Otherwise, the next call on this process
    # would wait for the other processes.
    mpmd.reshard(part, NamedSharding(mpmd_mesh.mesh, P()), donate=True)
    assert part.is_deleted()
    with pytest.raises(RuntimeError, match="has been deleted"):
        mpmd.reshard(part, place)


def check_elsewhere(mpmd_mesh: mpmd.MpmdMesh) -> None:
    """Check that an array in the group of another process has a shape, a dtype and a sharding here, but no data."""
    rank = jax.process_index()
    place = mpmd.MpmdSharding(mpmd_mesh, [1], P())
    mine = [jax.device_put(np.arange(3.0), place.group_sharding(1))] if rank == 1 else []
    array = mpmd.MpmdArray(mine, place, (3,), float)
    assert array.shape == (3,)
    assert array.dtype == float
    assert array.sharding.mesh == mpmd_mesh.submesh([1])
    if rank == 1:
        assert float(jax.jit(jnp.sum)(array)) == 3.0
        assert "here" in repr(array)
        return
    assert array.to_mpmd_local_array is None
    assert array.first_mpmd_replica is None
    assert array.block_until_ready() is array
    assert "elsewhere" in repr(array)
    assert jax.eval_shape(jnp.sum, array).shape == ()
    assert jax.tree.leaves([array])[0].sharding == place.group_sharding(1)
    with pytest.raises(TypeError, match="MpmdArrayElsewhere'> is not a valid JAX type"):
        jax.jit(jnp.sum)(array)
    for use in (int, np.asarray):
        with pytest.raises(
            RuntimeError, match=rf"exists only in the groups \[1\]; process {rank} belongs to \[{rank}\]"
        ):
            use(array)


TASKS = {"checks": checks, "groups": groups, "loop": loop}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=TASKS)
    for name in ("rank", "processes", "devices", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--folder", type=Path, help="for files of all ranks")
    parser.add_argument("--everything", action="store_true", help="run all checks on all meshes")
    parser.add_argument("--timeout", type=int, default=100, help="of heartbeats and at the end, in seconds")
    parser.add_argument("--death", choices=DEATHS)
    parser.add_argument("--victim", type=int)
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # LLVM's optimisations would take most of the time.
    address = f"127.0.0.1:{arguments.port}"
    jax.distributed.initialize(
        address,
        arguments.processes,
        arguments.rank,
        coordinator_bind_address=address,
        cluster_detection_method="deactivate",
        initialization_timeout=60,
        heartbeat_timeout_seconds=arguments.timeout,
        shutdown_timeout_seconds=arguments.timeout,
    )
    TASKS[arguments.task](arguments)


if __name__ == "__main__":
    main()
