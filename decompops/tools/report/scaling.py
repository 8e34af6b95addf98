"""The section on strong and weak scaling: the same transform on more and more devices."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental import multihost_utils

from ... import XLA, AbstractBackend, Decomposition
from ..bench.model import near_square
from ..bench.operators import operator_problem
from ..bench.peers import peers
from ..bench.program import Contestant, Program, report
from ..bench.run import TOLERANCE, compare, count_messages, make_mesh
from ..bench.task import Task
from .setting import Setting, Shape, described


# The wavenumber of the plane wave that all measurements transform.
_MODE = 3
# The other libraries that also run on several devices.
_PEERS = ("jaxDecomp", "mpi4py-fft")
_OPERATORS = ("fft", "rfft")


@dataclass(frozen=True)
class Point:
    """One measurement: a transform of a grid on a mesh."""

    kind: Literal["strong", "weak"]
    operator: str
    shape: Shape
    mesh: tuple[int, int]


def scaling(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """Measure points of strong and weak scaling.

    If a run has several processes, it measures only all devices together. A single process with GPUs measures 1, 2, 4,
    ... GPUs. A single process on CPUs starts a child process for each number of cores, unless `--devices` is given. A
    child process is needed, because the threads of XLA use all cores that are open to a process.
    """
    if setting.child_counts:
        return _of_children(setting)
    counts = [len(setting.devices)]
    if jax.process_count() == 1 and setting.devices[0].platform != "cpu":
        counts = powers_of_two(len(setting.devices))
    all_points = points(counts, setting)
    found = setting.each(filter(fits, all_points), lambda point: _measured(point, setting))
    return {**found, "too_many_devices": [described(point) for point in all_points if not fits(point)]}


def powers_of_two(most: int) -> list[int]:
    """Return the powers of two below `most`, and `most` itself."""
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def points(counts: list[int], setting: Setting) -> list[Point]:
    """Return the points for these numbers of devices. Slabs come last, because pencils scale to more devices."""
    meshes = dict.fromkeys([*map(near_square, counts), *((count, 1) for count in counts)])
    found = []
    for mesh, operator in product(meshes, _OPERATORS):
        found.append(Point("strong", operator, (setting.strong, setting.strong, setting.strong), mesh))
        found.append(Point("weak", operator, (setting.weak * mesh[0], setting.weak * mesh[1], setting.weak), mesh))
    return found


def fits(point: Point) -> bool:
    """Return whether no axis has more devices than cells in any pencil. Otherwise, some devices have only padding."""
    (nx, ny, nz), (rows, columns) = point.shape, point.mesh
    return rows <= min(nx, ny) and columns <= min(ny, nz)


def _measured(point: Point, setting: Setting) -> dict[str, Any]:
    mesh = make_mesh(point.mesh, setting.devices)
    task = Task(point.operator, point.shape, mesh, np.dtype(np.float32), False)
    u = plane_wave(point.shape, real=task.real)
    one = np.ones(())

    def compared(contestant: Contestant) -> Contestant:
        """Compare the result block by block, because no process could hold the spectrum of a large grid."""
        return replace(contestant, collect=lambda result: one + error_of_blocks(result, u))

    def on(backend: AbstractBackend) -> tuple[Program, Any, Contestant]:
        dec = Decomposition(mesh, shape=point.shape, pad=True, backend=backend)
        program = operator_problem(task, dec).ours
        compiled = program.compile()
        return program, compiled, compared(program.contestant(compiled, (u,)))

    program, compiled, ours = on(setting.backend)
    entrants: list[tuple[str, Callable[[], Contestant], Any]] = [("decompops", lambda: ours, one)]
    if not isinstance(setting.backend, XLA):
        entrants.append(("our XLA backend", lambda: on(XLA())[2], one))
    makers = peers(task, u)
    entrants += [(name, lambda make=makers[name]: compared(make()), one) for name in _PEERS if name in makers]
    rows = compare(iter(entrants), TOLERANCE["float32"], setting.repeats)
    counted = count_messages(setting.backend, ours)
    return {
        **asdict(point),
        "devices": mesh.size,
        "processes": jax.process_count(),
        "contestants": rows,
        "program": report(program, compiled, {}, counted),
    }


def plane_wave(shape: Shape, *, real: bool) -> np.ndarray:
    """Return a wave along the first axis. The result is a view of one line, so it needs little memory on any grid."""
    angle = 2 * np.pi * _MODE * np.arange(shape[0]) / shape[0]
    wave = np.cos(angle).astype(np.float32) if real else np.exp(1j * angle).astype(np.complex64)
    return np.broadcast_to(wave[:, None, None], shape)


def error_of_blocks(result: Any, u: np.ndarray) -> float:
    """Return the largest error in the blocks of all processes, relative to the largest mode.

    `result` is an array of JAX or of mpi4py-fft that holds the spectrum of the plane wave `u`. Padding does not count.
    If `u` is real, only its half spectrum counts.
    """
    line = np.fft.fft(u[:, 0, 0].astype(complex)) * u.shape[1] * u.shape[2]
    lengths = (*u.shape[:2], u.shape[2] if np.iscomplexobj(u) else u.shape[2] // 2 + 1)
    largest = 0.0
    for index, block in _blocks(result):
        starts = [part.start or 0 for part in index]
        block = block[tuple(slice(max(n - start, 0)) for n, start in zip(lengths, starts))]
        right = np.zeros_like(block)
        if starts[1:] == [0, 0]:
            right[:, 0, 0] = line[starts[0] : starts[0] + len(block)]
        largest = max(largest, float(np.max(np.abs(block - right), initial=0.0)))
    everywhere = multihost_utils.process_allgather(np.array(largest))
    return float(np.max(everywhere) / np.max(np.abs(line)))


def _blocks(result: Any) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """Yield a pair for each block of this process: its position in the whole array, and its cells."""
    if isinstance(result, jax.Array):
        for shard in result.addressable_shards:
            yield shard.index, np.asarray(shard.data)
    else:
        yield result.local_slice(), np.asarray(result)


def _of_children(setting: Setting) -> dict[str, Any]:
    """Start child processes with 1, 2, 4, ... cores, one after the other, and collect their points."""

    def child(cores: int) -> dict[str, Any]:
        left = setting.clock.left()
        options = {"--devices": cores, "--strong": setting.strong, "--weak": setting.weak}
        options |= {"--repeats": setting.repeats, "--minutes": left / 60}
        command = [sys.executable, "-m", "decompops", "report", "--json", "--quiet", "--sections", "scaling"]
        command += [str(part) for option in options.items() for part in option]
        done = subprocess.run(command, capture_output=True, text=True, timeout=left + 30, check=False)
        if not done.stdout:
            raise RuntimeError(f"no answer from the process with {cores} cores: {done.stderr.strip()[-200:]}")
        section = json.loads(done.stdout)["sections"]["scaling"]
        if section["error"]:
            raise RuntimeError(f"the process with {cores} cores: {section['error']}")
        return section["data"]

    found = setting.each(setting.child_counts, child)
    for name in ("failed", "left_out", "too_many_devices"):
        found[name] = [*found.get(name, []), *(entry for part in found["rows"] for entry in part[name])]
    found["left_out"] = [f"all on {entry} cores" if entry.isdecimal() else entry for entry in found["left_out"]]
    return {**found, "rows": [point for part in found["rows"] for point in part["rows"]]}
