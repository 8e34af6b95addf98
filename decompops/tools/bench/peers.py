"""The "peers", libraries with the operators of decompops: `jnp.fft`, jaxDecomp, mpi4py-fft, dtFFT, and host.py's.

Every peer gets the same NumPy array `u` in natural order, in every process. The function `collect` of a contestant
returns the whole result as such an array, in every process.
"""

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.fft
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ..._common.sharding import map_blocks
from . import host
from .program import Contestant, compile_for, gathered
from .task import Task, pair, wavenumbers, weights


def weights_of_half(*k: Array, last: int) -> Array:
    """Return the weights of the modes of a half spectrum, for `last` points along the last axis.

    A mode that stands for itself and for its complex conjugate has twice the weight.
    """
    counts = jnp.where((k[-1] == 0) | (2 * k[-1] == last), 1, 2).astype(k[-1].dtype)
    return weights(*k) * counts


def spectral_loss(transform: Callable, weight: Callable[[], Any], size: int) -> Callable:
    """Return a function that computes half the weighted mean square of a field's spectrum."""

    def loss(u):
        k = transform(u)
        return jnp.sum(weight() * (k.real**2 + k.imag**2)) * (0.5 / size)

    return loss


def expected(task: Task, u: np.ndarray) -> np.ndarray:
    """Return the right answer of a task for the field `u`. SciPy computes transforms, and NumPy the rest."""
    if task.is_transform:
        return host.scipy(task, u).run()
    if task.operator == "transpose":
        return u
    for axis, (width, parts) in enumerate(zip(task.halo, task.parts)):
        cells = task.shape[axis] // parts
        places = np.arange(parts)[:, None] * cells + np.arange(-width, cells + width)
        u = np.take(u, places.ravel() % task.shape[axis], axis=axis)
    return u


def peers(task: Task, u: np.ndarray) -> dict[str, Callable[[], Contestant]]:
    """Return a function for each peer. The function makes a contestant, or raises if the peer lacks the operator."""
    makers = {"jaxDecomp": lambda: _jaxdecomp(task, u)}
    if task.is_transform:
        makers |= {name: partial(make, task, u) for name, make in host.MAKERS.items()}
        makers["jnp.fft"] = lambda: _jnp(task, u)
        if jax.process_count() > 1:
            # MKL has functions with FFTW's names, and mpi4py-fft would call them if MKL were loaded.
            del makers["MKL"]
            makers["mpi4py-fft"] = lambda: _mpi4py_fft(task, u)
            makers["dtFFT"] = lambda: _dtfft(task, u)
    return makers


def _jnp(task: Task, u: np.ndarray) -> Contestant:
    library, note = (jax.scipy.fft, "jax.scipy.fft, one device") if task.kind == "dct" else (jnp.fft, "one device")
    transform, inverse = pair(task, library)

    def weight():
        k = map(jnp.asarray, wavenumbers(task, half=task.real))
        return weights_of_half(*k, last=task.shape[-1]) if task.real else weights(*k)

    field = jax.device_put(u, jax.local_devices()[0])
    compiled = compile_for(of_transform(task, transform, inverse, weight), field)
    return Contestant(lambda: compiled(field), note=note, alone=True)


def of_transform(task: Task, transform: Callable, inverse: Callable, weight: Callable[[], Any]) -> Callable:
    """Return the function to be timed, made from a transform, its inverse and the weights of the spectral loss."""
    match task.action:
        case "inverse":
            return lambda u: inverse(transform(u))
        case "gradient":
            return jax.grad(spectral_loss(transform, weight, math.prod(task.shape)))
    return transform


def _jaxdecomp(task: Task, u: np.ndarray) -> Contestant:
    import jaxdecomp  # pyright: ignore[reportMissingImports]  (in no extra of decompops)
    import jaxdecomp.fft  # pyright: ignore[reportMissingImports]

    if len(task.shape) != 3:
        raise ValueError(f"jaxDecomp has grids of three axes only; got {task.shape}")
    if task.kind == "dct":
        raise ValueError("jaxDecomp has no cosine transforms")
    if jaxdecomp.config.transpose_axis_contiguous != task.axis_contiguous:
        jaxdecomp.config.update("transpose_axis_contiguous", task.axis_contiguous)
        jax.clear_caches()  # jaxDecomp's jitted functions do not see the change
    devices = task.mesh.devices
    mesh = Mesh(devices.reshape(devices.shape[0], -1), ("x", "y"))
    spec = P("x", "y", None)
    order: tuple[int, ...] = (1, 2, 0) if task.axis_contiguous else (0, 1, 2)
    note = ""
    if task.is_transform:
        note = "complex transform, because it has no real one" if task.real else ""

        def weight():
            return weights(*map(jnp.asarray, wavenumbers(task, half=False, order=order)))

        def inverse(k):
            result = jaxdecomp.fft.pifft3d(k)
            return result.real if task.real else result

        function = of_transform(task, jaxdecomp.fft.pfft3d, inverse, weight)
    elif task.operator == "transpose":

        def function(u):
            return jaxdecomp.transposeYtoZ(jaxdecomp.transposeXtoY(u))

    else:
        note = "the time includes the padding of each block"

        def function(u):
            widths = [(width, width) for width in task.halo]
            pad = map_blocks(lambda block: jnp.pad(block, widths), mesh, mesh.axis_names, spec, spec)
            return jaxdecomp.halo_exchange(pad(u), (task.halo[0], task.halo[1]), (True, True))

    def collect(result):
        array = gathered(result)
        if task.action == "" and task.operator != "halo":  # jaxDecomp leaves the result with its axes in `order`.
            array = array.transpose(np.argsort(order))
        return array[..., : task.shape[2] // 2 + 1] if task.operator == "rfft" else array

    field = jax.make_array_from_callback(u.shape, NamedSharding(mesh, spec), lambda index: u[index])
    compiled = compile_for(function, field)
    return Contestant(lambda: compiled(field), collect, note)


def _mpi4py_fft(task: Task, u: np.ndarray) -> Contestant:
    from mpi4py import MPI

    library: Any = importlib.import_module("mpi4py_fft")  # in no extra, because it is built for the user's MPI and FFTW
    newDistArray = library.newDistArray
    grid = list(task.mesh.devices.shape)
    if len(task.shape) < 2:
        raise ValueError(f"mpi4py-fft needs a grid of two axes or more; got {task.shape}")
    # With the option `collapse`, one call transforms all axes that are not sharded. If the mesh shards two axes or the
    # grid has only two axes, this option fails.
    together = len(task.shape) > 2 and not any(size > 1 for size in grid[1:])
    options: dict[str, Any] = {"collapse": together}
    if task.kind == "dct":
        pair = tuple(partial(plan, type=2) for plan in (library.fftw.dctn, library.fftw.idctn))
        options = {"transforms": {(axis,): pair for axis in range(len(task.shape))}}
    fft = library.PFFT(MPI.COMM_WORLD, task.shape, dtype=u.dtype, grid=grid, **options)
    field, spectrum, back = newDistArray(fft, False), newDistArray(fft, True), newDistArray(fft, False)
    field[:] = u[field.local_slice()]
    weight: Any = None
    if task.action == "gradient":
        modes = zip(wavenumbers(task, half=task.real), spectrum.local_slice())
        weight = weights(*(k[(0,) * axis + (part,)] for axis, (k, part) in enumerate(modes)))

    def gradient() -> Any:
        np.multiply(fft.forward(field, spectrum), weight, out=spectrum)
        fft.backward(spectrum, back)
        return back if task.real else np.conj(back, out=back)

    run = {
        "": lambda: fft.forward(field, spectrum, normalize=False),
        "inverse": lambda: fft.backward(fft.forward(field, spectrum), back),
        "gradient": gradient,
    }[task.action]

    def collect(result: Any) -> np.ndarray:
        whole = np.empty(result.global_shape, result.dtype)
        for place, block in MPI.COMM_WORLD.allgather((result.local_slice(), np.asarray(result))):
            whole[place] = block
        return whole

    return Contestant(run, collect)


def _dtfft(task: Task, u: np.ndarray) -> Contestant:
    from mpi4py import MPI

    library: Any = importlib.import_module("dtfft")  # in no extra, for the same reason as mpi4py-fft
    if len(task.shape) != 3 or task.kind == "dct" or task.action == "gradient":
        raise ValueError("this benchmark runs only Fourier transforms of three axes with dtFFT, and their inverses")
    comm = MPI.COMM_WORLD
    grid = task.mesh.devices.shape
    place = np.unravel_index(comm.rank, grid)
    cuts = [(n * i // parts, n * (i + 1) // parts) for n, i, parts in zip(task.shape, (*place, 0), (*grid, 1))]
    # dtFFT lists the axes in reverse order: the axis that is contiguous in memory comes first.
    starts, counts = ([int(value) for value in values][::-1] for values in zip(*((a, b - a) for a, b in cuts)))
    plan = (library.PlanR2C if task.real else library.PlanC2C)(
        library.Pencil(starts, counts),
        comm=comm,
        precision=library.Precision.SINGLE if np.finfo(u.dtype).bits == 32 else library.Precision.DOUBLE,
        effort=library.Effort.PATIENT,
        executor=library.Executor.FFTW3,
    )
    spectral = plan.get_pencil(library.Layout.Z_PENCILS)
    space = tuple(slice(*cut) for cut in cuts)
    modes = tuple(slice(start, start + count) for start, count in zip(spectral.starts[::-1], spectral.counts[::-1]))
    field, back = (plan.get_ndarray(plan.alloc_size, u[space].shape, dtype=u.dtype) for _ in range(2))
    spectrum = plan.get_ndarray(
        plan.alloc_size, tuple(spectral.counts[::-1]), dtype=np.result_type(u.dtype, np.complex64)
    )
    scratch = plan.get_ndarray(plan.aux_size)
    field[...] = u[space]

    def run() -> np.ndarray:
        plan.execute(field, spectrum, library.Execute.FORWARD, scratch)
        if task.action == "":
            return spectrum
        plan.execute(spectrum, back, library.Execute.BACKWARD, scratch)
        return np.multiply(back, u.dtype.type(1 / math.prod(task.shape)), out=back)

    def collect(result: np.ndarray) -> np.ndarray:
        shape = [*task.shape[:2], task.shape[2] // 2 + 1] if task.operator == "rfft" else list(task.shape)
        whole = np.empty(shape, result.dtype)
        # dtFFT stores the first axis of a spectrum last.
        target, mine = (whole.transpose(1, 2, 0), modes) if task.action == "" else (whole, space)
        for part, block in comm.allgather((mine, result)):
            target[part] = block
        return whole

    return Contestant(run, collect, "" if task.action else "spectrum contiguous along x")
