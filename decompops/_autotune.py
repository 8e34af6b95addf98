"""`dops.autotune`: times real candidates and returns the fastest decomposition."""

import hashlib
import json
import math
import os
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from ._backend.base import AbstractBackend
from ._backend.cudecomp import CuDecomp
from ._backend.mpi import MPI
from ._backend.xla import XLA
from ._check import check_count
from ._decomposition import Decomposition
from ._operator.fft import FFT3D
from ._sharding import AUTO, AxisTypes


# A candidate that takes this many times as long as the best one is timed only once.
_HOPELESS = 4


@dataclass(frozen=True)
class Trial:
    """What `autotune` has found out about one candidate: the median time of a call, or why it did not work."""

    decomposition: Decomposition
    seconds: float
    failure: str | None = None


def autotune(
    shape: Sequence[int],
    *,
    devices: Sequence[Any] | None = None,
    dtype: Any = "float32",
    operator: Callable[[Decomposition], Callable] | None = None,
    backends: Sequence[AbstractBackend] | None = None,
    axes: tuple[str, str] = ("x", "y"),
    axis_types: AxisTypes = AUTO,
    repeats: int = 5,
    on_trial: Callable[[Trial], None] | None = None,
    cache: str | os.PathLike | None = None,
) -> Decomposition:
    """Time an operator on every mesh of the devices and with every backend, and return the fastest decomposition.

    In a run of several processes all of them call it, and get the same.

    !!! example

        ```python
        trials = []
        dec = dops.autotune((256, 256, 256), on_trial=trials.append, cache="autotune.json")
        fft = dops.FFT3D(dec, real=True)
        ```

    **Arguments:**

    - `shape`: the true lengths `(nx, ny, nz)` of the grid in cells.
    - `devices`: those to use; `None` for all.
    - `dtype`: of the field.
    - `operator`: makes what is timed of a decomposition: a function of a field of `shape` in z-pencils. `None` for a
        Fourier transform and its inverse, a real one for a real `dtype`.
    - `backends`: the candidates, such as `[dops.CuDecomp(t) for t in ("nccl", "nccl_pl")]`; `None` for those that work
        here.
    - `axes`, `axis_types`: the names of the mesh axes, and their types (`jax.sharding.AxisType`); Auto by default. The
        meshes are all `(rows, columns)` that have as many devices; `(n, 1)` and `(1, n)` are slabs.
    - `repeats`: how many timed calls of each candidate there are; their median counts.
    - `on_trial`: called with each `Trial`, a report: its decomposition, seconds and failure.
    - `cache`: a JSON file where choices are kept. A choice is taken from there if everything that it depends on is the
        same: devices, versions, candidates, and the programs that JAX makes of the operator with XLA's collectives on
        all meshes. An operator that depends on the backend must say so where it is printed.

    **Raises:** `ValueError` or `TypeError` for bad arguments, and for a `cache` with an operator that calls Python
    functions from its program; `RuntimeError` if no candidate works.
    """
    devices = jax.devices() if devices is None else list(devices)
    dtype, repeats = check_dtype(dtype), check_count("repeats", repeats)
    if not devices:
        raise ValueError("`devices` must have at least one device; got none.")
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(f"`dtype` must be real or complex floating point; got {dtype}.")
    if operator is None:
        operator = there_and_back(real=not jnp.issubdtype(dtype, jnp.complexfloating))
    meshes = [Mesh(np.array(devices).reshape(sizes), axes, axis_types=axis_types) for sizes in mesh_sizes(len(devices))]
    candidates = [
        Decomposition(mesh, shape=shape, backend=backend)
        for backend in (_working(meshes[0]) if backends is None else backends)
        for mesh in meshes
    ]
    if not candidates:
        raise ValueError(f"`backends` must have at least one backend; got {backends!r}.")

    if cache is None:
        return candidates[fastest(candidates, operator, dtype, repeats, on_trial)]
    key, choice = _known(cache, candidates, dtype, operator)
    if choice >= 0:
        return candidates[choice]
    choice = fastest(candidates, operator, dtype, repeats, on_trial)
    if jax.process_index() == 0:
        try:
            _write(cache, key, choice)
        except (OSError, ValueError) as error:  # an error on one process would leave the others alone with the choice
            warnings.warn(f"`cache` could not be written, and the choice is not kept: {error}", stacklevel=2)
    return candidates[choice]


def fastest(
    candidates: Sequence[Decomposition],
    operator: Callable[[Decomposition], Callable],
    dtype: np.dtype,
    repeats: int,
    on_trial: Callable[[Trial], None] | None,
) -> int:
    """Time all candidates; the number of the fastest one, the same in every process."""
    trials: list[Trial] = []
    for candidate in candidates:
        best = min((trial.seconds for trial in trials), default=math.inf)
        trials.append(_try(candidate, operator, dtype, repeats, best))
        if on_trial is not None:
            on_trial(trials[-1])
    choice = _agreed(min(range(len(trials)), key=lambda i: trials[i].seconds))
    if trials[choice].failure is not None:
        raise RuntimeError(f"no candidate works: {candidates[choice]} fails with {trials[choice].failure}")
    return choice


def check_dtype(dtype: Any) -> np.dtype:
    """`dtype`, unless JAX would replace it by one of half the size."""
    dtype = jnp.dtype(dtype)
    if jnp.asarray(np.zeros((), dtype)).dtype != dtype:
        raise ValueError(
            f"`dtype` must be single precision without JAX's 64-bit mode; got {dtype}. Call "
            '`jax.config.update("jax_enable_x64", True)` first.'
        )
    return dtype


def there_and_back(real: bool) -> Callable[[Decomposition], Callable]:
    def build(decomposition: Decomposition) -> Callable:
        fft = FFT3D(decomposition, real=real)
        return fft.inverse @ fft

    return build


def mesh_sizes(n: int) -> Iterator[tuple[int, int]]:
    """All meshes `(rows, columns)` of `n` devices."""
    return ((rows, n // rows) for rows in range(1, n + 1) if n % rows == 0)


def _working(mesh: Mesh) -> list[AbstractBackend]:
    """The backends that can serve a mesh in this process as it is."""
    working = []
    for backend in (XLA(), MPI(), CuDecomp("nccl", "nccl"), CuDecomp("nccl_pl", "nccl")):
        try:
            backend.check(mesh)
        except (ImportError, RuntimeError, ValueError):
            continue
        working.append(backend)
    return working


def _try(candidate: Decomposition, operator: Callable, dtype: np.dtype, repeats: int, best: float) -> Trial:
    """Time one candidate. Every process takes the time of the slowest one; what fails on one has failed on all."""
    program: list[Any] = []
    failures: list[str] = []

    def prepare() -> float:
        field = jax.jit(lambda: jnp.zeros(candidate.padded_shape("z"), dtype), out_shardings=candidate.sharding("z"))()
        program.extend((jax.jit(operator(candidate)).lower(field).compile(), field))
        return 0.0

    def run() -> float:
        return _time(*program)

    def agreed(action: Callable[[], float]) -> float:
        try:
            seconds = action()
        except Exception as error:  # whatever does not work here is no candidate
            failures.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            seconds = math.inf
        return _slowest(seconds)

    times = [math.inf]
    if agreed(prepare) < math.inf and agreed(run) < math.inf:  # the first run sets things up
        hopeless = (second := agreed(run)) > _HOPELESS * best
        times = [agreed(run) for _ in range(1 if hopeless else repeats)] if second < math.inf else times
    if max(times) < math.inf:
        return Trial(candidate, statistics.median(times))
    return Trial(candidate, math.inf, failures[0] if failures else "it fails in another process")


def _time(compiled: Callable, field: jax.Array) -> float:
    jax.block_until_ready(field)
    start = time.perf_counter()
    jax.block_until_ready(compiled(field))
    return time.perf_counter() - start


def _slowest(seconds: float) -> float:
    if jax.process_count() == 1:
        return seconds
    return float(np.max(multihost_utils.process_allgather(np.float64(seconds))))


def _agreed(choice: int) -> int:
    """What process 0 says: the others may not see the same file."""
    return choice if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(choice)))


def _key(candidates: list[Decomposition], dtype: np.dtype, operator: Callable) -> str:
    devices = candidates[0].mesh.devices
    kinds = {f"{device.platform} {device.device_kind}" for device in np.ravel(devices)}  # pyright: ignore
    descriptions = [(tuple(c.mesh.shape.items()), c.shape, c.backend) for c in candidates]
    parts = (
        jax.__version__,
        dtype.name,
        sorted(kinds),
        jax.process_count(),
        _programs(candidates, dtype, operator),
        descriptions,
    )
    return " | ".join(map(str, parts))


def _programs(candidates: list[Decomposition], dtype: np.dtype, operator: Callable) -> str:
    """A hash of the programs that JAX lowers the operator to, on all meshes.

    Programs of native kernels contain numbers that differ between runs, and making them takes memory. So each mesh has
    its program with XLA's collectives, and each candidate with native kernels what the operator prints as.
    """
    native = [candidate for candidate in candidates if not isinstance(candidate.backend, XLA)]
    texts = [_printed(operator, candidate) for candidate in native]
    failures = []
    meshes = list(dict.fromkeys(candidate.mesh for candidate in candidates))
    for mesh in meshes:
        dec = Decomposition(mesh, shape=candidates[0].shape, backend=XLA())
        try:
            field = jax.ShapeDtypeStruct(dec.padded_shape("z"), dtype, sharding=dec.sharding("z"))
            texts.append(jax.jit(operator(dec)).lower(field).as_text())
        except Exception as error:  # if it fails with every backend, its trial reports that
            failures.append(f"{type(error).__name__}: {error}")
            texts.append(type(error).__name__)
    if len(failures) == len(meshes):
        raise ValueError(f"`cache` must be None for an operator that fails with XLA's collectives; got {failures[0]}")
    if any(re.search(r"custom_call @\w*callback", text) for text in texts):
        raise ValueError(
            "`cache` must be None for an operator that calls Python (`jax.pure_callback`, `jax.debug.print`): "
            f"a program does not say which function it calls; got {operator!r}."
        )
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _printed(operator: Callable, candidate: Decomposition) -> str:
    """What the operator prints as, without the addresses of functions: they differ between runs."""
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(operator(candidate)))
    except Exception as error:  # its trial reports that
        return type(error).__name__


_UNKNOWN, _BAD = -1, -2


def _known(
    path: str | os.PathLike, candidates: list[Decomposition], dtype: np.dtype, operator: Callable
) -> tuple[str, int]:
    """The key, and the choice in the file, or `_UNKNOWN`. If process 0 cannot read it, all processes raise."""
    key, choice, problem = "", _UNKNOWN, "`cache` must be usable on process 0, which says more."
    try:
        key = _key(candidates, dtype, operator)  # on all processes: operators are built on all of them
        choice = _choice(path, key, len(candidates)) if jax.process_index() == 0 else _UNKNOWN
    except ValueError as error:
        choice, problem = _BAD, str(error)
    choice = _agreed(choice)
    if choice == _BAD:
        raise ValueError(problem)
    return key, choice


def _choice(path: str | os.PathLike, key: str, candidates: int) -> int:
    try:
        choice = _read(path).get(key)
        if choice is None:
            folder = Path(path).absolute().parent
            if not os.access(folder, os.W_OK):  # better noticed now than after all trials
                raise ValueError(f"{folder} is no folder that can be written to")
            return _UNKNOWN
        if type(choice) is not int or not 0 <= choice < candidates:
            raise ValueError(f"it says {choice!r}, of {candidates} candidates")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"`cache` must be a JSON file that `autotune` has written, or a new one; got {path!r}: {error}."
        ) from error
    return choice


def _read(path: str | os.PathLike) -> dict[str, Any]:
    try:
        choices = json.loads(Path(path).read_text())
    except FileNotFoundError:
        return {}
    if not isinstance(choices, dict):
        raise ValueError(f"its type is {type(choices).__name__}, not a table")
    return choices


def _write(path: str | os.PathLike, key: str, choice: int) -> None:
    new = Path(f"{os.fspath(path)}.{os.getpid()}")
    new.write_text(json.dumps(_read(path) | {key: choice}, indent=2))
    new.replace(path)  # at once: another job may be reading
