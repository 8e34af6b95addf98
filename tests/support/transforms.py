"""A comparison of transforms with NumPy and SciPy on every rank, and with mpi4py-fft where it has the transform.

mpiexec -n N python tests/support/transforms.py [mpi] [xla]

`MPI()` takes about three minutes on 2 ranks. `XLA()` takes many minutes, because it compiles every case. CI runs a
few cases.
"""

import importlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import decompops as dops
import jax
import numpy as np

from checks import assert_block, in_pieces
from helpers import expansion, make_mesh, random_field


FULL, HALF, POINTS = dops.Fourier(), dops.Fourier(half=True), dops.Points()
WAVES = [basis(type) for basis in (dops.Cosine, dops.Sine) for type in (1, 2, 3, 4)]
NORMS = ("backward", "forward", "ortho")
LENGTHS = {1: (6, 7), 2: (6, 7), 3: (6, 7), 4: (4, 5)}  # Every rank must have a part of each array of mpi4py-fft.


@dataclass(frozen=True)
class Case:
    """A transform on a mesh of `sizes`, of fields `(*batch, *shape)`."""

    bases: tuple
    sizes: tuple[int, ...]
    axes: tuple
    shape: tuple[int, ...]
    batch: tuple[int, ...] = ()
    dtype: Any = np.float64
    norm: str = "backward"
    modes: tuple[int, ...] | None = None
    axis_contiguous: bool = False
    overlap: int = 1


def cases(ranks: int) -> Iterator[Case]:
    """Yield cases with all choices of bases on all kinds of process grids. Other options vary from case to case."""
    turn = itertools.count()
    for ndim in (1, 2, 3, 4):
        for bases, (sizes, axes) in itertools.product(choices_of_bases(ndim), grids(ndim, ranks)):
            number = next(turn)
            shape = tuple(LENGTHS[ndim][number >> axis & 1] for axis in range(ndim))
            batch = (5,) if ndim == 1 else [(), (2,), (1, 3)][number % 3]
            real = HALF in bases or (FULL not in bases and number % 4 != 0)
            dtypes = (np.float32, np.float64) if real else (np.complex64, np.complex128)
            dtype, norm = dtypes[number // 2 % 2], NORMS[number // 3 % 3]
            options = {"axis_contiguous": number % 5 == 0, "overlap": 1 + number // 5 % 3}
            yield Case(bases, sizes, axes, shape, batch, dtype, norm, **options)
    for ndim in (1, 2, 3):
        for half, (sizes, axes) in itertools.product((False, True), grids(ndim, ranks)):
            bases = (FULL,) * (ndim - 1) + (HALF if half else FULL,)
            # mpi4py-fft treats mode 3 of 7 real points as a Nyquist mode, and omits the Nyquist mode of 8 points.
            modes = tuple(6 if half and axis == ndim - 1 else (6, 7)[axis % 2] for axis in range(ndim))
            shape, dtype = tuple(n * 3 // 2 for n in modes), np.float64 if half else np.complex128
            yield Case(bases, sizes, axes, shape, (5,) if ndim == 1 else (), dtype, "forward", modes)


def choices_of_bases(ndim: int) -> Iterator[tuple]:
    """Yield tuples of bases, one basis for each axis.

    The tuples give complex transforms along any axes, real transforms with any halved axis, and mixtures with other
    bases.
    """
    every = range(ndim)
    for chosen in itertools.chain.from_iterable(itertools.combinations(every, n) for n in range(1, ndim + 1)):
        full = tuple(FULL if axis in chosen else POINTS for axis in every)
        yield full
        for half in chosen:
            yield (*full[:half], HALF, *full[half + 1 :])
    for wave in WAVES:
        yield (wave,) * ndim
    if ndim > 1:
        for start in range(0, len(WAVES), 2):
            yield tuple(WAVES[(start + 3 * axis) % len(WAVES)] for axis in every)
        for number, (axis, half) in enumerate(itertools.product(every, every)):
            wave = WAVES[number * 3 % len(WAVES)]
            yield tuple(wave if i == axis else HALF if i == half else FULL for i in every)


def grids(ndim: int, ranks: int) -> list[tuple[tuple[int, ...], tuple]]:
    """Return sizes of meshes, and the mesh axes that shard the grid.

    0 to 3 mesh axes shard the grid. In some cases, two mesh axes shard one grid axis, or the first grid axis is not
    sharded.
    """
    square = square_of(ranks)
    found = {
        1: [((ranks,), ())],
        2: [((ranks,), ("x",)), (square, (("y", "x"),)), (square, ("y",))],
        3: [((ranks,), ("x",)), ((ranks,), (None, "x")), ((ranks, 1), ("x", "y")), ((1, ranks), ("x", "y"))],
        4: [((ranks,), ("x",)), (square, (None, "y", "x")), (square, (None, ("x", "y")))],
    }[ndim]
    if ndim == 3:
        found += [(square, ("x", "y")), (square, (("x", "y"),)), (square, ("y",))]
    if ndim == 4:
        found += [((1, *square), ("c", "x", "y")), ((*square, 1), ("c", "x", "y")), ((*square, 1), (("y", "x"), "c"))]
    return list(dict.fromkeys(found))


def square_of(ranks: int) -> tuple[int, int]:
    return (2, ranks // 2) if ranks > 2 else (1, ranks)


def check(case: Case, backend, theirs: np.ndarray | None = None) -> None:
    """Compare this rank's blocks of the transform and of its inverse."""
    transform = made(case, backend)
    u = field(case)
    k, back = jax.jit(lambda x: (k := transform(x), transform.inverse(k)))(transform.in_layout.shard(u))
    expected = expansion(u, case.bases, case.norm, case.modes, nyquist=True)
    order = [len(case.batch) + axis for axis in transform.out_layout.blocks.order]
    for values in (expected,) if theirs is None else (expected, theirs):
        assert_block(k, values.transpose(*range(len(case.batch)), *order))
    if case.modes is None:
        assert_block(back, u)


def made(case: Case, backend) -> dops.Transform:
    options = {name: getattr(case, name) for name in ("bases", "shape", "axes", "norm", "modes", "axis_contiguous")}
    backend = in_pieces(backend, case.overlap)
    return dops.Transform(make_mesh(case.sizes), **options, nyquist=True, pad=True, backend=backend)


def field(case: Case) -> np.ndarray:
    return random_field((*case.batch, *case.shape), case.dtype)


def check_some(backend, every: int) -> None:
    """Check every `every`-th case, two cases with consecutive exchanges in pieces, and one case of polynomials."""
    square = square_of(jax.device_count())
    bases = (POINTS, POINTS, HALF, FULL)
    others = [
        Case((POINTS, POINTS, FULL), square, ("x", "y"), (7, 7, 7), dtype=np.complex64, overlap=2),
        Case(bases, (1, *square), ("c", "x", "y"), (4, 5, 4, 5), batch=(1, 3), overlap=3),
        Case((dops.Chebyshev(1), dops.Chebyshev(2), HALF), square, ("x", "y"), (6, 7, 7)),
    ]
    for case in itertools.chain(itertools.islice(cases(jax.device_count()), 0, None, every), others):
        check(case, backend)


def by_mpi4py_fft(library: Any, case: Case) -> np.ndarray | None:
    """Return the whole result of mpi4py-fft on every rank, or `None` if mpi4py-fft has no such transform."""
    from mpi4py import MPI

    waves = [axis for axis, basis in enumerate(case.bases) if basis in WAVES]
    fourier = [axis for axis, basis in enumerate(case.bases) if basis in (FULL, HALF)]
    is_complex = np.issubdtype(case.dtype, np.complexfloating)
    if case.norm == "ortho" or (waves and (is_complex or (fourier and HALF not in case.bases))):
        return None
    lead, ndim, transforms = len(case.batch), len(case.shape), {}
    for axis in waves:
        kind = "dct" if isinstance(case.bases[axis], dops.Cosine) else "dst"
        pair = (getattr(library.fftw, f"{prefix}{kind}n") for prefix in ("", "i"))
        transforms[lead + axis,] = tuple(partial(plan, type=case.bases[axis].type) for plan in pair)
    # mpi4py-fft transforms the last axis of this list first.
    order = [*sorted(fourier, key=lambda axis: case.bases[axis] == HALF), *waves]
    # 0 means that mpi4py-fft shards an axis over as many ranks as fit.
    divided = [int(ndim > 1)] * lead + [int(axis == order[-1]) for axis in range(ndim)]
    factors = [1.0] * lead + [1.5 if case.modes else 1.0] * ndim
    fft = library.PFFT(
        MPI.COMM_WORLD,
        (*case.batch, *(case.modes or case.shape)),
        axes=[(lead + axis,) for axis in order],
        dtype=case.dtype,
        grid=divided,
        padding=factors if case.modes else False,
        transforms=transforms,
        planner_effort="FFTW_ESTIMATE",
    )
    values, spectrum = library.newDistArray(fft, False), library.newDistArray(fft, True)
    values[:] = field(case)[values.local_slice()]
    fft.forward(values, spectrum, normalize=case.norm == "forward")
    whole = np.empty(spectrum.global_shape, spectrum.dtype)
    for place, block in MPI.COMM_WORLD.allgather((spectrum.local_slice(), np.asarray(spectrum))):
        whole[place] = block
    fft.destroy()
    return whole


def main() -> None:
    from mpi4py import MPI

    dops.MPI.initialize()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # Otherwise, LLVM would take most of the time.
    say = print if MPI.COMM_WORLD.rank == 0 else lambda *_, **__: None
    try:
        library: Any = importlib.import_module("mpi4py_fft")
    except ImportError:
        library = None
        say("mpi4py-fft is not installed (`pip install mpi4py-fft`): the reference is NumPy and SciPy alone.")
    ranks, failures = jax.device_count(), 0
    backends = {"mpi": dops.MPI(planning="estimate"), "xla": dops.XLA()}
    for name in sys.argv[1:] or backends:
        count, start = Counter(), time.perf_counter()
        for case in cases(ranks):
            theirs = by_mpi4py_fft(library, case) if library else None
            try:
                check(case, backends[name], theirs)
                failed = False
            except AssertionError as error:
                print(case, error, sep="\n", flush=True)
                failed = True
            count.update(cases=1, peer=theirs is not None, failed=MPI.COMM_WORLD.allreduce(failed, MPI.LOR))
        failures += count["failed"]
        say(
            f"{name} on {ranks} ranks: {count['cases']} cases against NumPy and SciPy, {count['peer']} of them also "
            f"against mpi4py-fft; {count['failed']} failed; {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
