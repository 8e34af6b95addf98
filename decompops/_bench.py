"""The benchmark: our operators against their peers, and what their compiled programs communicate and hold.

A case is one operator on one shape, mesh, dtype and storage order. `measure` runs it; `on_paper` only compiles it.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, product
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding

from ._backend.base import AbstractBackend, Counters
from ._backend.xla import XLA
from ._decomposition import Decomposition
from ._hlo import Collective, collectives
from ._operator.fft import FFT3D
from ._operator.halo import HaloExchange
from ._operator.transpose import Transpose
from ._peers import Contestant, Task, compile_for, expected, gathered, multiplicity, of_transform, peers, weights
from ._pencil import NO_HALO, Layout, Triple
from ._stage import Extend, Fourier, Move, Plan, Stage, result_dtype


OPERATORS = (
    *("fft", "rfft", "fft+inverse", "rfft+inverse", "fft-gradient", "rfft-gradient"),
    *("transpose", "halo"),
)
HALO_WIDTH = 2
# Relative to the largest value, as in the tests.
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


@dataclass(frozen=True)
class Case:
    """What is benchmarked: one operator in one setting. `dtype` is the real one; complex fields have its complex."""

    operator: str
    shape: Triple
    mesh: tuple[int, ...]
    dtype: str
    axis_contiguous: bool


@dataclass(frozen=True)
class Program:
    """Our operator for a case: the function to compile, its input, and the plans that it carries out."""

    function: Callable
    argument: jax.ShapeDtypeStruct
    decomposition: Decomposition
    plans: tuple[Plan, ...]

    def collect(self, result: jax.Array) -> np.ndarray:
        """A result as a NumPy array in natural order, without padding."""
        layout = self.plans[-1].target
        array = gathered(result)
        if layout.halo == NO_HALO:
            array = array[tuple(slice(n) for n in layout.true_shape)]
        return array.transpose(np.argsort(layout.order))


def cases(
    operators: Sequence[str],
    shapes: Sequence[Triple],
    meshes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    orders: Sequence[bool],
) -> list[Case]:
    """All combinations; the halo exchange, which has no storage order to choose, comes once."""
    found = []
    for shape, mesh, operator, dtype, contiguous in product(shapes, meshes, operators, dtypes, orders):
        if operator == "halo":
            if any(n % parts for n, parts in zip(shape, mesh)):
                raise ValueError(f"the mesh must divide the shape for the operator halo; got {shape} on {mesh}")
            if contiguous != orders[0]:
                continue
        found.append(Case(operator, shape, mesh, dtype, contiguous and operator != "halo"))
    return found


def make_mesh(sizes: tuple[int, ...], devices: list) -> Mesh:
    grid = np.array(devices[: math.prod(sizes)]).reshape(sizes)
    return Mesh(grid, ("x", "y")[: len(sizes)], axis_types=(AxisType.Auto,) * len(sizes))


def measure(case: Case, devices: list, backend: AbstractBackend, repeats: int) -> dict[str, Any]:
    """Check every contestant's answer, then time them in turns. In a run of several processes, all of them call it."""
    task = _task(case, devices)
    program = _program(task, backend)
    u = _random(case.shape, program.argument.dtype)
    field = program.decomposition.shard(u)
    compiled = compile_for(program.function, field)

    makers = {"decompops": lambda: Contestant(lambda: compiled(field), program.collect)}
    if task.action:
        makers["our forward"] = lambda: _ours(task.forward, u, backend)
    if not isinstance(backend, XLA):
        makers["our XLA backend"] = lambda: _ours(task, u, XLA())
    makers |= peers(task, u)
    answers = {"our forward": task.forward}
    rows: list[dict[str, Any]] = []
    contestants = []
    for name, make in makers.items():
        answer = expected(answers.get(name, task), u)
        contestant, row = _checked(make, answer, TOLERANCE[case.dtype], may_fail=name != "decompops")
        rows.append({"name": name, **row})
        if contestant is not None:
            contestants.append((rows[-1], contestant))
    _time(contestants, repeats)
    about = {**asdict(case), "field_dtype": str(u.dtype), "repeats": repeats}
    before = backend.counters()
    jax.block_until_ready(compiled(field))
    return {**about, "contestants": rows, "program": _report(program, compiled, before, backend.counters())}


def on_paper(case: Case, devices: list, backend: AbstractBackend) -> dict[str, Any]:
    """Compile our operator without running it: no field is allocated."""
    program = _program(_task(case, devices), backend)
    start = time.perf_counter()
    compiled = compile_for(program.function, program.argument)
    seconds = time.perf_counter() - start
    about = {**asdict(case), "field_dtype": str(program.argument.dtype), "compile_s": seconds}
    return {**about, "program": _report(program, compiled, Counters(), Counters())}


def _task(case: Case, devices: list) -> Task:
    mesh = make_mesh(case.mesh, devices)
    rows, columns = (*case.mesh, 1)[:2]
    halo = (HALO_WIDTH if rows > 1 else 0, HALO_WIDTH if columns > 1 else 0, 0)
    return Task(case.operator, case.shape, mesh, np.dtype(case.dtype), case.axis_contiguous, halo)


def _random(shape: Triple, dtype: np.dtype) -> np.ndarray:
    rng, real = np.random.default_rng(0), np.finfo(dtype).dtype
    field = rng.standard_normal(shape, real)
    if dtype.kind == "c":
        return (field + 1j * rng.standard_normal(shape, real)).astype(dtype)
    return field


def _ours(task: Task, u: np.ndarray, backend: AbstractBackend) -> Contestant:
    program = _program(task, backend)
    field = program.decomposition.shard(u)
    compiled = compile_for(program.function, field)
    return Contestant(lambda: compiled(field), program.collect)


def _program(task: Task, backend: AbstractBackend) -> Program:
    dec = Decomposition(task.mesh, shape=task.shape, backend=backend)
    if task.is_transform:
        function, plans = _transform(task, dec)
    else:
        if task.operator == "transpose":
            function = Transpose(dec, "z", "x", axis_contiguous=task.axis_contiguous)
        else:
            function = HaloExchange(dec, task.halo)
        plans = (function.plan(task.shape),)
    source = plans[0].source
    dtype = task.dtype if task.real else np.result_type(task.dtype, np.complex64)
    sharding = NamedSharding(task.mesh, source.spec)
    return Program(function, jax.ShapeDtypeStruct(source.shape, dtype, sharding=sharding), dec, plans)


def _transform(task: Task, dec: Decomposition) -> tuple[Callable, tuple[Plan, ...]]:
    fft = FFT3D(dec, real=task.real, axis_contiguous=task.axis_contiguous)

    def weight():
        kx, ky, kz = fft.wavenumbers(dtype=task.dtype)
        return weights(kx, ky, kz) * multiplicity(kz, task.shape[2]) if task.real else weights(kx, ky, kz)

    plan = fft.plan(task.shape)
    back = {"": (), "inverse": (plan.inverse(),), "gradient": (plan.transpose(),)}[task.action]
    return of_transform(task, fft, fft.inverse, weight), (plan, *back)


def _checked(
    make: Callable[[], Contestant], answer: np.ndarray, tolerance: float, *, may_fail: bool
) -> tuple[Contestant | None, dict[str, Any]]:
    """A contestant and its row, which says how wrong it is; no contestant where it cannot run or is too wrong."""
    row: dict[str, Any] = dict.fromkeys(("note", "relative_error", "median_s", "min_s", "ratio", "failure"))
    try:
        contestant = make()
        row["note"] = contestant.note
        row["relative_error"] = _relative_error(contestant.collect(contestant.run()), answer)
    except Exception as error:
        if not may_fail:
            raise
        # A missing part of a package is a failure: the versions do not fit together.
        missing = isinstance(error, ModuleNotFoundError) and "." not in str(error.name)
        row["failure"] = "not installed" if missing else f"{type(error).__name__}: {error}".partition("\n")[0]
        return None, row
    if not row["relative_error"] <= tolerance:
        row["failure"] = f"wrong: relative error {row['relative_error']:.1e}, allowed {tolerance:.0e}"
        return None, row
    return contestant, row


def _relative_error(got: np.ndarray, answer: np.ndarray) -> float:
    if got.shape != answer.shape:
        raise ValueError(f"result of shape {got.shape}, expected {answer.shape}")
    return float(np.max(np.abs(got - answer)) / np.max(np.abs(answer)))


def _time(contestants: list[tuple[dict[str, Any], Contestant]], repeats: int) -> None:
    """Time in turns, each repeat starting with another contestant, so that a busy moment hits no one in particular.

    Processes start together; a time is that of the slowest.
    """
    several = jax.process_count() > 1
    times = np.zeros((len(contestants), repeats))
    for repeat in range(repeats):
        for i in range(len(contestants)):
            turn = (repeat + i) % len(contestants)
            contestant = contestants[turn][1]
            if several:
                multihost_utils.sync_global_devices("decompops bench")
            if contestant.alone and jax.process_index() > 0:
                continue
            start = time.perf_counter()
            jax.block_until_ready(contestant.run())
            times[turn, repeat] = time.perf_counter() - start
    if several:
        times = np.max(multihost_utils.process_allgather(times), axis=0)
    for (row, _), seconds in zip(contestants, times.tolist()):
        row["median_s"], row["min_s"] = statistics.median(seconds), min(seconds)
    ours = contestants[0][0] if contestants else {}
    if ours.get("name") == "decompops":
        for row, _ in contestants:
            row["ratio"] = ours["median_s"] / row["median_s"]


def _report(program: Program, compiled: Any, before: Counters, after: Counters) -> dict[str, Any]:
    """What the compiled program communicates and holds on one device, and the least that it must.

    What kernels do is not in the compiled program: it is counted in a run, from `before` to `after`.
    """
    found = collectives(compiled.as_text())
    memory = compiled.memory_analysis()
    dtype = program.argument.dtype
    *_, (_, _, result_dtype) = _walk(program.plans, dtype)
    ends = (program.plans[0].source, dtype), (program.plans[-1].target, result_dtype)
    block = max(math.prod(layout.block_shape) * dtype.itemsize for layout, dtype in ends)
    passes, least = _lower_limits(program.plans, dtype)
    temporary = None if memory is None else memory.temp_size_in_bytes
    return {
        "collectives": [
            {"kind": kind, "group_size": size, "count": count, "bytes": total}
            for (kind, size), (count, total) in _summed(found).items()
        ],
        "kernel_messages": after.messages - before.messages,
        "communicated_bytes": sum(c.bytes for c in found) + after.sent_bytes - before.sent_bytes,
        "least_communicated_bytes": least,
        "block_bytes": block,
        "temporary_bytes": temporary,
        "temporary_blocks": None if temporary is None else temporary / block,
        "kernel_workspace_bytes": after.workspace_bytes,
        "least_bytes_per_fft_pass": passes,
    }


def _summed(found: list[Collective]) -> dict[tuple[str, int], tuple[int, int]]:
    counts, totals = Counter(), Counter()
    for collective in found:
        key = (collective.kind, collective.group_size)
        counts[key] += 1
        totals[key] += collective.bytes
    return {key: (counts[key], totals[key]) for key in counts}


def _lower_limits(plans: tuple[Plan, ...], dtype: np.dtype) -> tuple[list[int], int]:
    """The least that a device must read and write in each FFT pass, and the least that it must communicate, in bytes.

    A pass reads its input once and writes its result once; of what is redistributed over p devices, a p-th stays.
    Padding does not count, so that it shows as a difference to what the program does.
    """
    passes, communicated = [], 0.0
    for stage, before, after in _walk(plans, dtype):
        match stage:
            case Fourier():
                passes.append(round(_share(stage.before, before) + _share(stage.after, after)))
            case Move() if stage.gathered is not None:
                communicated += _share(stage.before, before) * (1 - 1 / stage.before.parts[stage.gathered])
            case Extend() if stage.before.parts[stage.axis] > 1:
                cells, length = stage.before.core(stage.axis), stage.before.lengths[stage.axis]
                layers = min(stage.after.extent(stage.axis), length) - cells
                layer = math.prod(stage.before.block_shape) // cells * before.itemsize
                communicated += layers * layer
    return passes, round(communicated)


def _walk(plans: tuple[Plan, ...], dtype: np.dtype) -> Iterator[tuple[Stage | None, np.dtype, np.dtype]]:
    """The stages of `plans`, with the dtypes before and after each."""
    yield None, dtype, dtype  # so that a plan without stages has a dtype too
    for stage in chain.from_iterable(plan.stages for plan in plans):
        before, dtype = dtype, result_dtype(stage, dtype)
        yield stage, before, dtype


def _share(layout: Layout, dtype: np.dtype) -> float:
    """The bytes of a field per device, without padding."""
    return math.prod(layout.lengths) * dtype.itemsize / math.prod(layout.parts)
