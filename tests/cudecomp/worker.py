"""One rank under `mpiexec`, with the installed kernels, or with the kernels in FOLDER, which call a mock of cuDecomp.

mpiexec -n N python worker.py TASK[,TASK...] [FOLDER]
"""

import sys
import time
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._backend.cudecomp import grids
from decompops._backend.native import library

import checks
import coefficients
import spectral_checks
from checks import assert_block, assert_same
from helpers import extended_axis, make_mesh, random_field


def matrix() -> None:
    checks.matrix(dops.CuDecomp(), everything=jax.default_backend() == "gpu")


def thin_matrix() -> None:
    checks.matrix(dops.CuDecomp(), everything=False, thin=True)


def grid() -> None:
    """Test transforms, halos and exchanges in pieces on a process grid that does not divide the shape evenly."""
    backend, (*_, mesh) = dops.CuDecomp(), checks.meshes()
    checks.check_fft(backend, mesh, checks.UNEVEN, True)
    checks.check_halos(backend, mesh, checks.UNEVEN)
    checks.check_overlap(backend, mesh)


def axes() -> None:
    """Compare operators on grids of two and four axes with NumPy.

    The kernels run a grid of two axes as a grid of three axes. XLA runs a grid of four axes, and a grid with an axis
    that two mesh axes shard. The test also counts the grid descriptors that the kernels make.
    """
    *_, mesh = checks.meshes()
    first, second = mesh.axis_names
    for shape, axes, kernels in (((9, 10), second, 2), ((9, 10), ((first, second),), 0), ((4, 3, 5, 7), None, 0)):
        before = len(grids._grids)  # Other tasks may have made descriptors.
        dec = dops.Decomposition(mesh, shape=shape, axes=axes, pad=True, backend=dops.CuDecomp())
        fft, exchange = dops.FFT(dec, real=True), dops.HaloExchange(dec, (2, *[0] * (len(shape) - 1)))

        @jax.jit
        def everything(u, fft=fft, exchange=exchange):
            back = fft.inverse(k := fft(u))
            return k, back, exchange(back)

        u = np.stack([random_field(shape), random_field(shape, seed=1)])
        k, back, halo = everything(dec.shard(u))
        assert_block(k, np.fft.rfftn(u, axes=tuple(range(1, u.ndim))))
        assert_block(back, u)
        assert_block(halo, extended_axis(u, 1, exchange.in_layout.blocks.parts[0], 2, 2, True))
        assert len(grids._grids) == before + kernels


def stress() -> None:
    checks.stress(dops.CuDecomp())


def transformations() -> None:
    checks.transformations(dops.CuDecomp())


def spectral() -> None:
    spectral_checks.spectral(dops.CuDecomp())


def systems() -> None:
    coefficients.check(dops.CuDecomp(), checks.meshes()[-1], together=False)


def few_systems() -> None:
    """Leave out two of the four solvers. With `MPI()`, the default tests have all of them."""
    names = (*coefficients.OPERATORS, "CG", "MINRES")
    coefficients.check(dops.CuDecomp(), checks.meshes()[-1], together=False, names=names)


def slabs() -> None:
    """Test halos that are wider than a block, so that layers come from several ranks. The mesh has three ranks."""
    checks.check_halos(dops.CuDecomp(), checks.meshes()[0], checks.TINY)


def chosen() -> None:
    """Compare a transform with NumPy, on the decomposition that `autotune` chooses."""
    dec = dops.autotune(checks.PRIMES, pad=True, backends=[dops.CuDecompTuner(halo=2, libraries=["nccl"])], repeats=2)
    u = random_field(checks.PRIMES, np.float32)
    fft = dops.FFT3D(dec, real=True)
    assert_block(fft(dec.shard(u)), np.fft.rfftn(u))


def small() -> None:
    """Count the grid descriptors that operators make. Check results and errors of operators that share descriptors."""
    mesh = make_mesh((jax.device_count(),))
    backend = dops.CuDecomp()
    for dtype in (np.int8, np.float16, jnp.bfloat16, np.int64):  # cuDecomp lacks these dtypes, so XLA exchanges them.
        u = random_field((8, 4, 12)).astype(dtype)
        assert_same(*(dops.Transpose(mesh, "z", "x", backend=b)(u) for b in (backend, dops.XLA())))
        assert_same(*(dops.HaloExchange(mesh, 1, backend=b)(u) for b in (backend, dops.XLA())))
    assert grids._grids == {}

    # An operator, its inverse and its transpose share one descriptor for all dtypes and batches.
    fft = dops.FFT3D(mesh, shape=(8, 8, 8), backend=backend)
    u = fft.decomposition.shard(random_field((8, 8, 8), np.complex128))
    k = fft(u)
    for operator, x in ((fft, u), (fft.inverse, k), (fft.T, k), (fft.H, k)):
        operator(x.astype(np.complex64))
        operator(jnp.stack([x, x]))
    jax.grad(lambda v: jnp.sum(jnp.abs(fft(v)) ** 2))(u)
    assert len(grids._grids) == 1
    with dops.config.use(backend=dops.CuDecomp("nccl_pl")):
        other = dops.FFT3D(mesh)
    assert other.decomposition.backend == dops.CuDecomp("nccl_pl", "nccl")
    other(u)
    assert len(grids._grids) == 2

    # NVSHMEM needs memory that cuDecomp has allocated. The mock checks that NVSHMEM gets such memory.
    for transpose, halo in (("nvshmem", "nvshmem"), ("nvshmem_sm", "nvshmem_blocking")):
        for dtype in (np.complex64, np.complex128):  # The second dtype needs more memory.
            u = random_field((8, 12, 4), dtype)
            fft = dops.FFT3D(mesh, shape=u.shape, backend=dops.CuDecomp(transpose, halo))
            field = fft.decomposition.shard(u)
            assert_block(fft(field), np.fft.fftn(u))
            halos = [dops.HaloExchange(mesh, 1, backend=b) for b in (fft.decomposition.backend, dops.XLA())]
            assert_same(halos[0](field), halos[1](field))

    # Rank 1 has another shape than the other ranks, so cuDecomp refuses the descriptor on all ranks.
    n = 4 if jax.process_index() == 1 else 8
    fft = dops.FFT3D(mesh, shape=(8, 16, n), backend=backend)
    with pytest.raises(
        RuntimeError, match=r"cudecompGridDescCreate: invalid usage .*lengths=\(8, 16, .*All ranks must"
    ):
        jax.eval_shape(fft, jax.ShapeDtypeStruct((8, 16, n), np.complex64))


def tuned() -> None:
    """Test the choices of `CuDecompTuner`, which asks the mock's autotuner or times one candidate after the other."""

    def autotune(shape=checks.UNEVEN, dtype="float32", repeats=5, axes=("x", "y"), **options):
        """Return the choice of a tuner with these options, and the sizes and backends of all trials but the last."""
        trials = []
        tuner = dops.CuDecompTuner(**options)
        report = {"on_trial": trials.append}
        dec = dops.autotune(shape, dtype=dtype, pad=True, repeats=repeats, axes=axes, backends=[tuner], **report)
        assert [trial.failure for trial in trials] == [None] * len(trials)
        assert trials[-1].decomposition == dec  # The last trial is of the tuner's only candidate.
        return dec, [(trial.decomposition.sizes, trial.decomposition.backend) for trial in trials[:-1]]

    for options, sizes, transpose, halo in (
        ({}, (4, 1), "nvshmem_sm", None),
        ({"libraries": ["mpi", "nccl"], "halo": 1, "dtype": "complex64"}, (4, 1), "nccl_pl", "nccl"),
        ({"libraries": ["mpi"], "halo": (2, 1, 9), "grid_mode": "halo"}, (4, 1), "mpi_a2a", "mpi_blocking"),
        ({"shape": (3, 10, 11), "halo": (0, 0, 1), "repeats": 7}, (2, 2), "nvshmem_sm", None),
    ):
        dec, tried = autotune(cuda_aware_mpi=True, **options)
        assert (dec.sizes, dec.backend, tried) == (sizes, dops.CuDecomp(transpose, halo or "nccl"), [])
    with pytest.raises(RuntimeError, match="cudecompGridDescCreate: not supported"):
        autotune((1, 1, 8), cuda_aware_mpi=True)

    _, tried = autotune(libraries=["nccl"], cuda_aware_mpi=True, halo=3, repeats=1)
    # cuDecomp chooses this grid, although its blocks are thinner than the halo.
    assert [sizes for sizes, _ in tried] == [(4, 1)]

    dec, tried = autotune(dtype="float64", repeats=1, axes=("a", "b"), libraries=["nccl"], halo=1, grid_mode="halo")
    assert tried[:3] == [(sizes, dops.CuDecomp("nccl", "nccl")) for sizes in ((1, 4), (2, 2), (4, 1))]
    assert tried[3:] == [(dec.sizes, dops.CuDecomp(name, "nccl")) for name in ("nccl", "nccl_pl")]
    u = random_field(checks.UNEVEN, np.complex128)
    assert_block(dops.FFT3D(dec)(dec.shard(u)), np.fft.fftn(u))

    for options, error, message in (
        ({"dtype": "float16"}, TypeError, "`dtype` must be one of .* got float16"),
        ({"libraries": ["mpi"]}, ValueError, "`libraries` must not have 'mpi' .*, pass `cuda_aware_mpi=True`"),
        ({"communicator": "mine"}, RuntimeError, r"`CuDecomp.initialize\(\)` must be called"),
    ):
        with pytest.raises(error, match=message):
            autotune(**options)


def part() -> None:
    """Test that some of the ranks can tune a mesh of their own, while the other ranks take no part."""
    from mpi4py import MPI

    first = MPI.COMM_WORLD.rank < 2
    half = MPI.COMM_WORLD.Split(first)
    dops.CuDecomp.initialize(half, key="half")
    devices = [device for device in jax.devices() if (device.process_index < 2) == first]
    with pytest.raises(ValueError, match="`devices` must be devices of the ranks of communicator 'half'"):
        dops.autotune(checks.EVEN, backends=[dops.CuDecompTuner(communicator="half")], pad=True)
    if first:
        for aware in (True, False):  # If `aware`, cuDecomp's autotuner chooses. If not, timed trials choose.
            tuner = dops.CuDecompTuner(communicator="half", libraries=["nccl"], cuda_aware_mpi=aware)
            dec = dops.autotune(checks.EVEN, devices=devices, backends=[tuner, dops.XLA()], repeats=1)
            assert set(dec.mesh.devices.flat) == set(devices)
    else:
        with pytest.raises(ValueError, match="`devices` must have a device of each process"):
            dops.autotune(checks.EVEN, devices=jax.devices()[:2])


def raises() -> None:
    """Raise an exception on one rank. The job must end, although another rank waits for this rank."""
    fft = dops.FFT3D(make_mesh((jax.device_count(),)), shape=(8, 8, 8), backend=dops.CuDecomp())
    u = fft.decomposition.shard(random_field((8, 8, 8), np.complex128))
    fft(u)
    if jax.process_index() == 1:
        raise ValueError("the victim's own error")
    fft(u)


TASKS = {
    task.__name__: task
    for task in (
        matrix,
        thin_matrix,
        grid,
        axes,
        transformations,
        spectral,
        systems,
        few_systems,
        slabs,
        stress,
        chosen,
        small,
        tuned,
        part,
        raises,
    )
}


def main() -> None:
    if len(sys.argv) > 2:
        library.folder = lambda: Path(sys.argv[2])  # test_cudecomp.py has built the kernels in this folder.
        library.build.cache_clear()  # The import has read the description of the installed kernels.
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # Programs then run one after the other, as on a GPU.
    dops.CuDecomp.initialize()
    dops.CuDecomp.initialize()  # The second call does nothing.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # LLVM's optimisations would take most of the time.
    for task in sys.argv[1].split(","):
        start = time.perf_counter()
        TASKS[task]()
        print(f"{task} passed in {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
