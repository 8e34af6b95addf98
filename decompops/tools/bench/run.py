"""The benchmark: our operators compared with other libraries, and the bytes that compiled programs send and hold.

A case is one operator, or one part of a solver, on one shape, mesh, dtype and storage order. `measure` runs a case, and
`on_paper` only compiles the program of a case.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from ... import XLA, AbstractBackend, Decomposition
from ...extend import Counters, LocalTransform, axis_names
from . import nufft, solvers, training, walls
from .groups import HandOver
from .operators import OPERATORS, TRANSPOSE, operator_problem
from .particles import PARTICLES, ParticleTask
from .program import Contestant, Problem, over_memory, report
from .task import Task


# The operator that moves fields between groups of devices.
RESHARD = "reshard"
SOLVERS = {**solvers.SOLVERS, **training.SOLVERS, **walls.SOLVERS}
NUFFTS = nufft.NUFFTS
# These operators need more than one dimension.
NOT_ON_LINES = (TRANSPOSE, RESHARD, *solvers.FLOWS, *walls.SOLVERS)
# The largest error that a contestant may have, relative to the largest value of the right answer.
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


@dataclass(frozen=True)
class Case:
    """One operator in one setting.

    `dtype` is the real dtype; complex fields have the complex dtype of the same precision. `axis_contiguous` is `None`
    for operators without a choice of storage order.
    """

    operator: str
    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    dtype: str
    axis_contiguous: bool | None


def cases(
    operators: Sequence[str],
    grids: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    dtypes: Sequence[str],
    orders: Sequence[bool],
) -> list[Case]:
    """Return a case for each combination of the arguments. `grids` are pairs of a shape and a mesh.

    An operator without a choice of storage order has one case for all `orders`. Raises `ValueError` if an operator
    cannot run on a grid or a mesh.
    """
    found = []
    for (shape, mesh), operator, dtype in product(grids, operators, dtypes):
        if operator != RESHARD and len(mesh) > max(1, len(shape) - 1):
            raise ValueError(f"the mesh must have fewer axes than the grid; got {mesh} for {shape}")
        if len(shape) < 2 and operator in NOT_ON_LINES:
            raise ValueError(f"the operator {operator} needs a grid of two axes or more; got {shape}")
        if operator == "halo" and any(n % parts for n, parts in zip(shape, mesh)):
            raise ValueError(f"the mesh must divide the shape for the operator halo; got {shape} on {mesh}")
        if operator == RESHARD and (len(mesh) < 2 or mesh[0] < 2 or any(n % mesh[1] for n in shape[:2])):
            raise ValueError(
                "for the operator reshard, the mesh must have two axes or more: the first with two groups or more, the "
                f"second with a number of devices that divides the first two axes of the grid; got {shape} on {mesh}"
            )
        ordered = operator in OPERATORS and operator != "halo"
        found += [Case(operator, shape, mesh, dtype, order) for order in (orders if ordered else [None])]
    return found


def make_mesh(sizes: tuple[int, ...], devices: list) -> Mesh:
    grid = np.array(devices[: math.prod(sizes)]).reshape(sizes)
    return Mesh(grid, axis_names(len(sizes)))


def described(case: Case) -> str:
    """Return a few words that name a case, such as "fft 64x64x64 float32, mesh 2x4"."""
    shape, mesh = ("x".join(map(str, sizes)) for sizes in (case.shape, case.mesh))
    return f"{case.operator} {shape} {case.dtype}, mesh {mesh}"


def measure(
    case: Case,
    devices: list,
    backend: AbstractBackend,
    repeats: int,
    on_step: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Check the answer of every contestant, then time all contestants in turns.

    `on_step` is called with the name of each step, before the step. All processes of a run must call this function.
    """
    if case.operator == RESHARD:
        moved = HandOver(make_mesh(case.mesh, devices), case.shape, np.dtype(case.dtype))
        rows = compare(moved.entrants(), 0.0, repeats, on_step)
        about = {**asdict(case), "field_dtype": case.dtype, "repeats": repeats}
        return {**about, "contestants": rows, "program": moved.report()}

    if case.operator in PARTICLES:
        task = ParticleTask(case.operator, make_mesh(case.mesh, devices), case.shape, np.dtype(case.dtype), backend)
        rows = compare(task.entrants(), TOLERANCE[case.dtype], repeats, on_step)
        program = task.report(count_messages(backend, task.contestant(backend)))
        about = {**asdict(case), "field_dtype": case.dtype, "repeats": repeats}
        return {**about, "contestants": rows, "program": program}

    on_step("compiling")
    problem = problem_of(case, devices, backend)
    compiled = problem.ours.compile()
    parts = {name: part.compile() for name, part in problem.parts.items()}
    inputs, answer = problem.ours.data()
    ours = problem.ours.contestant(compiled, inputs)

    def entrants() -> Iterator[tuple[str, Callable[[], Contestant], Any]]:
        """Yield for each contestant its name, the function that makes it, and the right answer."""
        yield "decompops", lambda: ours, answer
        for name, part in problem.parts.items():
            own_inputs, own_answer = part.data()
            yield name, partial(part.contestant, parts[name], own_inputs), own_answer
        if not isinstance(backend, XLA):
            yield "our XLA backend", lambda: _on_xla(case, devices, inputs), answer
        for name, make in problem.peers(*inputs).items():
            yield name, make, answer
        if any(isinstance(stage, LocalTransform) for plan, _ in problem.ours.calls for stage in plan.stages):
            yield "memory alone", partial(over_memory, problem.ours), np.ones(())

    rows = compare(entrants(), problem.tolerance or TOLERANCE[case.dtype], repeats, on_step)
    program = report(problem.ours, compiled, parts, count_messages(backend, ours))
    return {**_about(case, problem), "repeats": repeats, "contestants": rows, "program": program}


def on_paper(case: Case, devices: list, backend: AbstractBackend) -> dict[str, Any]:
    """Compile our operator, and the parts of it whose memory is compared. Nothing runs, and no field is allocated."""
    problem = problem_of(case, devices, backend)
    start = time.perf_counter()
    compiled = problem.ours.compile()
    seconds = time.perf_counter() - start
    parts = {name: part.compile() for name, part in problem.parts.items()}
    program = report(problem.ours, compiled, parts, Counters())
    return {**_about(case, problem), "compile_s": seconds, "program": program}


def count_messages(backend: AbstractBackend, contestant: Contestant) -> Counters:
    """Return the messages and bytes that compiled kernels send in one run, and their workspace.

    Each number is the mean over all processes.
    """
    before = backend.counters()
    jax.block_until_ready(contestant.run())
    after = backend.counters()
    counted = after.messages - before.messages, after.sent_bytes - before.sent_bytes, after.workspace_bytes
    everywhere = multihost_utils.process_allgather(np.array(counted)).reshape(-1, len(counted))
    messages, sent, workspace = (round(mean) for mean in everywhere.mean(axis=0))
    return after._replace(messages=messages, sent_bytes=sent, workspace_bytes=workspace)


def problem_of(case: Case, devices: list, backend: AbstractBackend) -> Problem:
    mesh, dtype = make_mesh(case.mesh, devices), np.dtype(case.dtype)
    dec = Decomposition(mesh, shape=case.shape, pad=True, backend=backend)
    if make := {**SOLVERS, **NUFFTS}.get(case.operator):
        return make(dec, dtype)
    return operator_problem(Task(case.operator, case.shape, mesh, dtype, bool(case.axis_contiguous)), dec)


def _on_xla(case: Case, devices: list, inputs: Sequence[np.ndarray]) -> Contestant:
    program = problem_of(case, devices, XLA()).ours
    return program.contestant(program.compile(), inputs)


def _about(case: Case, problem: Problem) -> dict[str, Any]:
    return {**asdict(case), "field_dtype": str(problem.ours.arguments[0].dtype)}


def compare(
    entrants: Iterator[tuple[str, Callable[[], Contestant], Any]],
    tolerance: float,
    repeats: int,
    on_step: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Check every contestant against its right answer, and time all contestants in turns. Return a row for each one."""
    rows: list[dict[str, Any]] = []
    contestants = []
    for name, make, right in entrants:
        on_step(f"checking {name}")
        contestant, row = _tried(make, right, tolerance, may_fail=name != "decompops")
        rows.append({"name": name, **row})
        if contestant is not None:
            contestants.append((rows[-1], contestant))
    on_step(f"timing {len(contestants)} contestants")
    _time(contestants, repeats)
    return rows


def _tried(
    make: Callable[[], Contestant], answer: Any, tolerance: float, *, may_fail: bool
) -> tuple[Contestant | None, dict[str, Any]]:
    """Return a contestant and its row, which holds its error. The contestant is `None` if it fails the check.

    A contestant fails if it raises an exception, or if its error exceeds `tolerance`.
    """
    row: dict[str, Any] = dict.fromkeys(("note", "relative_error", "median_s", "min_s", "ratio", "failure"))
    try:
        contestant = make()
        row["note"] = contestant.note
        row["relative_error"] = relative_error(contestant.collect(contestant.run()), answer)
    except Exception as error:
        if not may_fail:
            raise
        # If a module of an installed package is missing, versions of packages do not fit together. This is a failure.
        missing = isinstance(error, ModuleNotFoundError) and "." not in str(error.name)
        row["failure"] = "not installed" if missing else f"{type(error).__name__}: {error}".partition("\n")[0]
        return None, row
    if not row["relative_error"] <= tolerance:
        row["failure"] = f"wrong: relative error {row['relative_error']:.1e}, allowed {tolerance:.0e}"
        return None, row
    return contestant, row


def relative_error(got: Any, answer: Any) -> float:
    """Return the largest error in an array, relative to the largest value. For several arrays, return the worst."""
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(answer), strict=True))
    for one, right in pairs:
        if one.shape != right.shape:
            raise ValueError(f"result of shape {one.shape}, expected {right.shape}")
    return max(float(np.max(np.abs(one - right)) / np.max(np.abs(right))) for one, right in pairs)


def _time(contestants: list[tuple[dict[str, Any], Contestant]], repeats: int) -> None:
    """Time contestants in turns.

    Each repeat begins with a different contestant, so a regular disturbance of the machine does not always slow the
    same contestant. All processes start a turn together. The time of a turn is the time of the slowest process. A fast
    contestant runs several times in its turn. A contestant that is slow, and three times as slow as the first one, has
    a single turn.
    """
    once = _seconds_of_calls([contestant for _, contestant in contestants])
    calls = [min(1000, math.ceil(_LEAST_SECONDS / one)) for one in once]
    turns = [1 if one > max(_SLOW_SECONDS, 3 * once[0]) else repeats for one in once]
    times = np.full((len(contestants), repeats), np.nan)
    for repeat in range(repeats):
        for i in range(len(contestants)):
            turn = (repeat + i) % len(contestants)
            if repeat < turns[turn]:
                times[turn, repeat] = _seconds(contestants[turn][1], calls[turn])
    several = jax.process_count() > 1
    if several:
        times = np.max(multihost_utils.process_allgather(times), axis=0)
    for (row, _), number, seconds in zip(contestants, turns, times.tolist()):
        row["median_s"], row["min_s"] = statistics.median(seconds[:number]), min(seconds[:number])
        if number < repeats:
            row["note"] = "; ".join(filter(None, (row["note"], "timed once")))
    ours = contestants[0][0] if contestants else {}
    if ours.get("name") == "decompops":
        for row, _ in contestants:
            row["ratio"] = ours["median_s"] / row["median_s"]


def _seconds_of_calls(contestants: list[Contestant]) -> list[float]:
    """Return about how long one call of each contestant takes in the slowest process.

    Processes start a turn up to 0.1 ms apart, so a turn must last much longer than 0.1 ms. This takes the number of
    calls that these times tell. Only fast contestants are called more than once here.
    """

    def slowest(seconds: list[float]) -> list[float]:
        return np.max(multihost_utils.process_allgather(np.array(seconds)).reshape(-1, len(seconds)), axis=0).tolist()

    once = slowest([_seconds(contestant, 1) for contestant in contestants])
    fast = [one < _SLOW_SECONDS for one in once]
    several = lambda contestant: min(_seconds(contestant, 3) for _ in range(3))
    return slowest([several(x) if is_fast else one for x, one, is_fast in zip(contestants, once, fast)])


# A turn lasts at least the first of these times. Contestants whose calls take longer than the second one are slow.
_LEAST_SECONDS, _SLOW_SECONDS = 2e-2, 1.0


def _seconds(contestant: Contestant, calls: int) -> float:
    """Make `calls` calls, and return the mean time per call, in seconds."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("decompops bench")
    if contestant.alone and jax.process_index() > 0:
        return 0.0
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(contestant.run())
    return (time.perf_counter() - start) / calls
