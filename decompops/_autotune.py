"""`dops.autotune`: times real candidates and returns the fastest decomposition."""

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

from ._backend.base import AbstractBackend
from ._backend.cudecomp import CuDecomp
from ._backend.mpi import MPI
from ._backend.xla import XLA
from ._decomposition import Decomposition
from ._operator.fft import FFT3D


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
    axis_types: tuple[AxisType, AxisType] = (AxisType.Auto, AxisType.Auto),
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
    - `axes`, `axis_types`: of the meshes, which are all `(rows, columns)` that have as many devices; `(n, 1)` and
        `(1, n)` are slabs.
    - `repeats`: how many timed calls of each candidate there are; their median counts.
    - `on_trial`: called with each `Trial`, a report: its decomposition, seconds and failure.
    - `cache`: a JSON file where choices are kept. A choice is taken from there if everything that it depends on is the
        same: devices, versions, candidates and what the operator prints as.

    **Raises:** `ValueError` or `TypeError` for bad arguments; `RuntimeError` if no candidate works.
    """
    devices = jax.devices() if devices is None else list(devices)
    dtype = jnp.dtype(dtype)
    if not devices:
        raise ValueError("`devices` must have at least one device; got none.")
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(f"`dtype` must be real or complex floating point; got {dtype}.")
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"`repeats` must be a positive integer; got {repeats!r}.")
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

    key = _key(candidates, dtype, operator) if cache is not None else ""
    known = _read(cache).get(key, -1) if cache is not None else -1
    if (choice := _agreed(known)) >= 0:
        return candidates[choice]

    choice = fastest(candidates, operator, dtype, repeats, on_trial)
    if cache is not None and jax.process_index() == 0:
        _write(cache, key, choice)
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
    """Time one candidate. Every process takes the time of the slowest one."""
    seconds, failure = math.inf, None
    try:
        field = jax.jit(lambda: jnp.zeros(candidate.padded_shape("z"), dtype), out_shardings=candidate.sharding("z"))()
        compiled = jax.jit(operator(candidate)).lower(field).compile()
        _slowest(_time(compiled, field))  # with what the first run has to set up
        hopeless = _slowest(_time(compiled, field)) > _HOPELESS * best
        times = [_slowest(_time(compiled, field)) for _ in range(1 if hopeless else repeats)]
        seconds = statistics.median(times)
    except Exception as error:  # whatever does not work here is no candidate
        failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return Trial(candidate, seconds, failure)


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
        _printed(operator, candidates),
        descriptions,
    )
    return " | ".join(map(str, parts))


def _printed(operator: Callable, candidates: list[Decomposition]) -> str:
    """What the operator prints as, on the first candidate that it takes."""
    for candidate in candidates:
        try:
            return str(operator(candidate))
        except Exception:  # reported when it is tried
            continue
    return ""


def _read(path: str | os.PathLike) -> dict[str, int]:
    try:
        return json.loads(Path(path).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"`cache` must be a JSON file that `autotune` has written; got {path!r}: {error}.") from error


def _write(path: str | os.PathLike, key: str, choice: int) -> None:
    new = Path(f"{os.fspath(path)}.{os.getpid()}")
    new.write_text(json.dumps(_read(path) | {key: choice}, indent=2))
    new.replace(path)  # at once: another job may be reading
