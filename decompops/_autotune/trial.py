"""The task of `dops.autotune`, and trials: one candidate (a decomposition) after the other is timed."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._backend.base import AbstractBackend
from .._common.blocks import mesh_sizes
from .._common.sharding import AxisTypes
from .._core.decomposition import Decomposition
from .._operator.fft import FFT


Operator = Callable[[Decomposition], Callable]
# If a call takes more than this many times as long as with the best candidate so far, only one call is timed.
_HOPELESS = 4


@dataclass(frozen=True)
class Trial:
    """The result for one candidate of `autotune`: the median time of a call, or why the candidate did not work."""

    decomposition: Decomposition
    seconds: float
    failure: str | None = None


@dataclass(frozen=True)
class Task:
    """The arguments of `dops.autotune`. Every process that owns one of `devices` has the same task."""

    shape: tuple[int, ...]
    devices: tuple[Any, ...]
    dtype: np.dtype
    axes: tuple[str, ...]
    axis_types: AxisTypes
    repeats: int
    on_trial: Callable[[Trial], None] | None
    pad: bool = False

    @property
    def real(self) -> bool:
        """Whether the fields are real."""
        return not jnp.issubdtype(self.dtype, jnp.complexfloating)

    @property
    def everywhere(self) -> Mesh:
        """A mesh of all devices, on which the processes agree."""
        return Mesh(np.array(self.devices), "devices")

    @property
    def leads(self) -> bool:
        """Whether this process reads and writes files for all processes."""
        return self.devices[0].process_index == jax.process_index()

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The sizes of all meshes, such as `(rows, columns)`. Without `pad`, only meshes that divide the grid count."""
        meshes = mesh_sizes(len(self.devices), len(self.axes))
        return [sizes for sizes in meshes if self.pad or self.is_divided_by(sizes)]

    def is_divided_by(self, sizes: tuple[int, ...]) -> bool:
        """Return whether a mesh of `sizes` divides the grid in the pencils of the last axis."""
        return not any(cells % parts for cells, parts in zip(self.shape, sizes))

    def mesh(self, sizes: tuple[int, ...]) -> Mesh:
        """Return the mesh of `sizes` over all devices."""
        return Mesh(np.array(self.devices).reshape(sizes), self.axes, axis_types=self.axis_types)

    def decompose(self, sizes: tuple[int, ...], backend: AbstractBackend) -> Decomposition:
        """Return the candidate with one mesh and one backend."""
        return Decomposition(self.mesh(sizes), shape=self.shape, pad=self.pad, backend=backend)

    def gathered(self, value: float | int) -> np.ndarray:
        """Gather the value of each process, once per device. Every process that owns a device must call this method."""
        mesh = self.everywhere
        if not mesh.is_multi_process:
            return np.array([value])
        one_each, everywhere = (NamedSharding(mesh, PartitionSpec(*names)) for names in (mesh.axis_names, ()))
        mine = np.full(1, value, np.float32)
        values = jax.make_array_from_callback((mesh.size,), one_each, lambda _: mine)
        return np.asarray(jax.device_put(values, everywhere))

    def agreed(self, choice: int) -> int:
        """Return the choice of the leading process. Other processes measure other times, and may not see its files."""
        return int(self.gathered(choice)[0])


def there_and_back(real: bool) -> Operator:
    """Return the operator that is timed if the user gives none: a transform and its inverse."""

    def build(decomposition: Decomposition) -> Callable:
        fft = FFT(decomposition, real=real)
        return fft.inverse @ fft

    return build


def fastest(task: Task, candidates: Sequence[Decomposition], operator: Operator) -> int:
    """Time all candidates. Return the index of the fastest candidate. All processes return the same index."""
    trials: list[Trial] = []
    for candidate in candidates:
        best = min((trial.seconds for trial in trials), default=math.inf)
        trials.append(_try(task, candidate, operator, best))
        if task.on_trial is not None:
            task.on_trial(trials[-1])
    choice = task.agreed(min(range(len(trials)), key=lambda i: trials[i].seconds))
    if trials[choice].failure is not None:
        raise RuntimeError(f"no candidate works: {candidates[choice]} fails with {trials[choice].failure}")
    return choice


def _try(task: Task, candidate: Decomposition, operator: Operator, best: float) -> Trial:
    """Time one candidate. The time of the slowest process counts. If it fails in one process, it fails in all."""
    program: list[Any] = []
    failures: list[str] = []

    def prepare() -> float:
        shape, sharding = candidate.padded_shape(), candidate.sharding()
        field = jax.jit(lambda: jnp.zeros(shape, task.dtype), out_shardings=sharding)()
        program.extend((jax.jit(operator(candidate)).lower(field).compile(), field))
        return 0.0

    def run() -> float:
        return _time(*program)

    def slowest(action: Callable[[], float]) -> float:
        try:
            seconds = action()
        except Exception as error:  # a candidate that fails is reported, and not chosen
            failures.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            seconds = math.inf
        return float(np.max(task.gathered(seconds)))

    times = [math.inf]
    if slowest(prepare) < math.inf and slowest(run) < math.inf:  # the first run may be slow, and does not count
        hopeless = (second := slowest(run)) > _HOPELESS * best
        times = [slowest(run) for _ in range(1 if hopeless else task.repeats)] if second < math.inf else times
    if max(times) < math.inf:
        return Trial(candidate, statistics.median(times))
    return Trial(candidate, math.inf, failures[0] if failures else "it fails in another process")


def _time(compiled: Callable, field: jax.Array) -> float:
    jax.block_until_ready(field)
    start = time.perf_counter()
    jax.block_until_ready(compiled(field))
    return time.perf_counter() - start
