"""`dops.autotune`: times an operator with several decompositions, and returns the fastest decomposition."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .._backend.base import AbstractBackend
from .._common.agreement import differing, raised_by_all_of
from .._common.check import check_count, check_flag, check_shape
from .._common.sharding import checked_types, without_ambient_mesh
from .._core.decomposition import Decomposition
from .._core.registry import all_backends, make_backend
from . import cache as files
from .trial import Operator, Task, Trial, fastest, there_and_back
from .tuner import AbstractTuner


Entry = AbstractBackend | AbstractTuner | str


def autotune(
    shape: Sequence[int],
    *,
    devices: Sequence[Any] | np.ndarray | None = None,
    dtype: Any = "float32",
    operator: Operator | None = None,
    backends: Entry | Sequence[Entry] | None = None,
    axes: Sequence[str] | None = None,
    axis_types: Any = None,
    pad: bool = False,
    repeats: int = 5,
    on_trial: Callable[[Trial], None] | None = None,
    cache: str | os.PathLike | None = None,
) -> Decomposition:
    """Time an operator on every mesh of the devices with every backend, and return the fastest decomposition.

    In a run of several processes, every process that owns one of the devices must call this function. All of them get
    the same decomposition.

    !!! example

        ```python
        trials = []
        dec = dops.autotune((256, 256, 256), on_trial=trials.append, cache="autotune.json")
        fft = dops.FFT3D(dec, real=True)
        ```

    **Arguments:**

    - `shape`: the lengths of the grid in cells, without padding, such as `(nx, ny, nz)`. A grid has two or more axes.
    - `devices`: the devices to use, such as `mesh.devices`; `None` for all.
    - `dtype`: the dtype of the field.
    - `operator`: a function that takes a decomposition and returns the function to time. The function to time gets a
        field of `shape` in the pencils of the last grid axis. `None` times a Fourier transform and its inverse. This
        transform is real if `dtype` is real.
    - `backends`: what to try; `None` for every registered backend that works here. Each entry is a backend, the
        name of a backend, or a tuner. A backend is tried on every mesh. If `CuDecomp()` has no `transpose`, it is tried
        with "nccl" and with "nccl_pl". A tuner such as `dops.CuDecompTuner()` chooses the meshes and the options of its
        backend itself.
    - `axes`: the names of the mesh axes. All meshes of the devices that have these axes and divide the grid are tried.
        The default is ("x", "y"), or ("x",) on a grid of two axes. With ("x", "y"), meshes have the sizes
        `(rows, columns)`; `(n, 1)` and `(1, n)` are slabs. A grid of four axes takes up to three mesh axes.
    - `axis_types`: the type of all mesh axes, or of each (`jax.sharding.AxisType`). The default is Auto.
    - `pad`: whether to try also meshes that do not divide the grid. Fields on these meshes are padded with zeros.
    - `repeats`: the number of timed calls of each candidate. The median of the times counts.
    - `on_trial`: a function that is called with each `Trial`, which has a decomposition, seconds and a failure.
    - `cache`: a JSON file that keeps the fastest decompositions. The file is used if everything that the choice depends
        on is the same as before: the devices, the version of JAX, the candidates, and the programs that JAX makes from
        the operator with XLA's collectives on all meshes. For other backends, the printed form of the function to time
        is compared, not its programs. If this function depends on the backend, its printed form must show how.

    **Returns:** a `Decomposition` of `shape` with the fastest mesh and backend, and with the given `pad`.

    **Raises:** `ValueError` or `TypeError` on every process if an argument is not valid, if the processes pass other
    arguments, or if `pad` is False and no mesh divides `shape`. With `cache`, `ValueError` also in two cases: if the
    program of the operator calls Python functions, or if `backends` has a tuner, which must measure before it knows its
    candidates. `RuntimeError` if no candidate works.
    """
    found = _checked_devices(devices)
    everywhere = Mesh(np.array(found), "devices")
    with raised_by_all_of(everywhere):
        shape = check_shape("shape", shape)
        axes = _checked_axes(axes, len(shape))
        for name, function in (("operator", operator), ("on_trial", on_trial)):
            if not (function is None or callable(function)):
                raise TypeError(f"`{name}` must be a function or None; got {function!r}.")
        if not (cache is None or isinstance(cache, str | os.PathLike)):
            raise TypeError(f"`cache` must be a path or None; got {cache!r}.")
        types, repeats = checked_types(axis_types, axes), check_count("repeats", repeats)
        task = Task(shape, found, _checked_dtype(dtype), axes, types, repeats, on_trial, check_flag("pad", pad))
        if not task.sizes:
            raise ValueError(
                f"`shape` must be divided by a mesh {task.axes} of {len(task.devices)} devices, unless `pad=True`; got "
                f"{task.shape}, which none divides. Pass `pad=True` to pad fields with zeros, or choose another shape."
            )
        entries = _working(task.mesh(task.sizes[0])) if backends is None else _checked_backends(backends)
        if cache is not None and (tuners := [entry for entry in entries if isinstance(entry, AbstractTuner)]):
            raise ValueError(
                f"`cache` must be None with a tuner, which measures to find its candidates; got {tuners[0]}."
            )
    # The processes time the same candidates, one after the other.
    facts = shape, str(task.dtype), axes, types, repeats, task.pad, operator is None, cache is None
    names = [entry if isinstance(entry, str) else type(entry).__name__ for entry in entries]
    if others := differing(everywhere, (facts, names)):
        raise ValueError(
            f"`autotune` must get the same arguments on every process; got `shape` {shape}, `dtype` {task.dtype}, the "
            f"backends {names} and `cache` {cache} on process {jax.process_index()}, others on {others}."
        )
    operator = there_and_back(task.real) if operator is None else operator
    with without_ambient_mesh():  # The candidates have meshes of their own.
        candidates = [candidate for entry in entries for candidate in _candidates(task, entry)]
        if cache is None:
            return candidates[fastest(task, candidates, operator)]
        key, choice = files.known(cache, task, candidates, operator)
        if choice is None:
            choice = fastest(task, candidates, operator)
            files.keep(cache, task, key, choice)
    return candidates[choice]


def _checked_backends(backends: Any) -> list[Entry]:
    given = [backends] if isinstance(backends, Entry) else list(backends)
    if not given:
        raise ValueError(f"`backends` must have at least one backend; got {backends!r}.")
    for entry in given:
        if not isinstance(entry, Entry):
            raise TypeError(f"`backends` must have backends, their names or tuners; got {entry!r}.")
    return given


def _candidates(task: Task, entry: Entry) -> Sequence[Decomposition]:
    if isinstance(entry, AbstractTuner):
        return entry.candidates(task)
    backend = make_backend(entry) if isinstance(entry, str) else entry
    return [task.decompose(sizes, variant) for variant in backend.variants() for sizes in task.sizes]


def _working(mesh: Mesh) -> list[AbstractBackend]:
    """Return the backends that work with a mesh in this process."""
    working = []
    for _, found in all_backends():
        try:
            if isinstance(found, AbstractBackend):
                found.check(mesh)
                working.append(found)
        except Exception:  # a backend of another package may raise any error
            continue
    return working


def _checked_axes(axes: Sequence[str] | None, ndim: int) -> tuple[str, ...]:
    if ndim < 2:
        raise ValueError(
            "`shape` must have two or more axes, all but one of which a mesh may divide; got one. There is nothing to "
            "choose for `Decomposition(mesh, shape=shape, axes=())`."
        )
    found = ("x", "y")[: ndim - 1] if axes is None else tuple(axes)
    are_names = not isinstance(axes, str) and all(isinstance(name, str) for name in found)
    if not are_names or not 1 <= len(found) < ndim or len(set(found)) < len(found):
        raise ValueError(f"`axes` must be 1 to {ndim - 1} different names, for a grid of {ndim} axes; got {axes!r}.")
    return found


def _checked_devices(devices: Any) -> tuple[Any, ...]:
    found = tuple(jax.devices() if devices is None else np.ravel(devices))
    if not all(isinstance(device, jax.Device) for device in found):
        raise TypeError(f"`devices` must be devices, such as `mesh.devices`; got {devices!r}.")
    if not found or len(set(found)) < len(found):
        raise ValueError(f"`devices` must have at least one device, and each only once; got {devices!r}.")
    if jax.process_index() not in {device.process_index for device in found}:
        raise ValueError(
            f"`devices` must have a device of each process that calls `autotune`; got {found}, of which process "
            f"{jax.process_index()} owns none."
        )
    return found


def _checked_dtype(dtype: Any) -> np.dtype:
    """Return `dtype`. Raises an error if it is not floating-point, or if JAX allows it only in 64-bit mode."""
    try:
        found = None if dtype is None else jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.inexact):
        raise TypeError(f"`dtype` must be real or complex floating point; got {dtype!r}.")
    if jnp.asarray(np.zeros((), found)).dtype != found:
        raise ValueError(
            f"`dtype` must be single precision without JAX's 64-bit mode; got {found}. Call "
            '`jax.config.update("jax_enable_x64", True)` first.'
        )
    return found
