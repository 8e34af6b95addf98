"""What the benchmark compiles and runs: programs of ours, and contestants, which may be anybody's."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._backend.base import Counters
from .._blocks import Blocks
from .._hlo import Collective, collectives
from .._layout import Layout
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Extend, LocalTransform, Move


@dataclass(frozen=True)
class Contestant:
    """One implementation of a task: `run()` returns its result, which `collect` brings to NumPy and natural order.

    `alone`: it uses one process, and is timed in the first only.
    """

    run: Callable[[], Any]
    collect: Callable[[Any], Any] = np.asarray
    note: str = ""
    alone: bool = False


@dataclass(frozen=True)
class Operand:
    """An argument or a result of a program: fields `(*lead, nx, ny, nz)`, sharded as `blocks` says.

    Without `blocks` it is an array of shape `lead`, and every device has all of it.
    """

    dtype: np.dtype
    blocks: Blocks | None
    lead: tuple[int, ...] = ()

    @property
    def block_bytes(self) -> int:
        """What one device holds."""
        return math.prod((*self.lead, *(self.blocks.block_shape if self.blocks else ()))) * self.dtype.itemsize

    @property
    def least_bytes(self) -> int:
        """What one device must hold: its share without padding, but with halos."""
        if self.blocks is None or self.blocks.has_halo:
            return self.block_bytes
        return round(math.prod(self.lead) * _share(self.blocks, self.dtype))

    def struct(self, mesh: Mesh) -> jax.ShapeDtypeStruct:
        shape, spec = (self.blocks.shape, self.blocks.spec) if self.blocks else ((), ())
        sharding = NamedSharding(mesh, PartitionSpec(*(None,) * len(self.lead), *spec))
        return jax.ShapeDtypeStruct((*self.lead, *shape), self.dtype, sharding=sharding)

    def distribute(self, mesh: Mesh, array: np.ndarray) -> Array:
        """An array in natural order, the same in every process, stored in the blocks and padded."""
        array = array.astype(self.dtype, copy=False)
        if self.blocks is not None:
            return Layout(mesh, self.blocks).distribute(array)
        struct = self.struct(mesh)
        return jax.make_array_from_callback(struct.shape, struct.sharding, lambda index: array[index])

    def collect(self, mesh: Mesh, result: Array) -> np.ndarray:
        """All of it as a NumPy array in natural order, without padding; with halos as it is."""
        if self.blocks is None or self.blocks.has_halo:
            return gathered(result)
        return Layout(mesh, self.blocks).gather(result)


@dataclass(frozen=True)
class Program:
    """A function to compile, and what it is given, returns and carries out: plans, each on so many fields at once.

    `data()` makes its inputs and the right results, which have nothing to do with our code.
    """

    function: Callable
    arguments: tuple[Operand, ...]
    results: tuple[Operand, ...]
    calls: tuple[tuple[Plan, int], ...]
    mesh: Mesh
    data: Callable[[], tuple[Sequence[np.ndarray], Any]] = field(repr=False)

    def compile(self) -> Any:
        """Compiled without any field."""
        return compile_for(self.function, *(operand.struct(self.mesh) for operand in self.arguments))

    def contestant(self, compiled: Any, inputs: Sequence[np.ndarray]) -> Contestant:
        arguments = [operand.distribute(self.mesh, array) for operand, array in zip(self.arguments, inputs)]

        def collect(results: Any) -> list[np.ndarray]:
            return [
                operand.collect(self.mesh, result) for operand, result in zip(self.results, jax.tree.leaves(results))
            ]

        return Contestant(lambda: compiled(*arguments), collect)


@dataclass(frozen=True)
class Problem:
    """What a case is about: our program, parts of it to compare with, and peers.

    `peers`, given the inputs of our program, names contestants that are still to be made: one that does not apply then
    raises.
    """

    ours: Program
    parts: dict[str, Program] = field(default_factory=dict)
    peers: Callable[..., dict[str, Callable[[], Contestant]]] = lambda *_: {}


def compile_for(function: Callable, *arguments: Any) -> Any:
    return jax.jit(function).lower(*arguments).compile()


def gathered(result: Array) -> np.ndarray:
    """All of an array, in every process."""
    if result.is_fully_addressable:
        return np.asarray(result)
    return multihost_utils.process_allgather(result, tiled=True)


def random_field(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    rng, real = np.random.default_rng(0), np.finfo(dtype).dtype
    values = rng.standard_normal(shape, real)
    if dtype.kind == "c":
        return (values + 1j * rng.standard_normal(shape, real)).astype(dtype)
    return values


def over_memory(program: Program) -> Contestant:
    """As many bytes read and written as transforming one axis after the other must, and nothing done to them.

    That is what memory alone allows. A transform of two axes may need less, where planes fit into a cache.
    """
    passes = [nbytes for stage, fields, *dtypes in _walk(program) for nbytes in _passes_by_axis(stage, fields, *dtypes)]
    length = round(sum(passes) / len(passes) / 8)  # of float32, read once and written once in each pass
    note = f"{len(passes)} reads and writes, one for each axis transformed"
    return memory_passes(program.mesh, length, len(passes), note)


def memory_passes(mesh: Mesh, length: int, passes: int, note: str = "") -> Contestant:
    """Every device reads and writes `length` numbers of type float32 of its own, `passes` times."""
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    x = jax.jit(lambda: jnp.zeros(mesh.size * length, np.float32), out_shardings=sharding)()

    # A loop, because XLA would fuse one pass with the next; in place, because new memory may cost more than a pass.
    step = jax.jit(lambda x: lax.fori_loop(0, passes, lambda _, y: y + 1, x), donate_argnums=0)

    def run():
        nonlocal x
        x = step(x)
        return x

    return Contestant(run, lambda result: np.asarray(jnp.max(result)) / passes, note)


def _passes_by_axis(stage: AbstractStage, fields: int, before: np.dtype, after: np.dtype) -> list[float]:
    if not isinstance(stage, LocalTransform):
        return []
    shares = _share(stage.before, before), _share(stage.after, after)
    return [fields * sum(shares), *[fields * 2 * max(shares)] * (len(stage.axes) - 1)]


def report(program: Program, compiled: Any, parts: dict[str, Any], counted: Counters) -> dict[str, Any]:
    """What the compiled program communicates and holds on one device, and the least that it must.

    `parts` are compiled, too: what the program holds can be compared to what they hold. What kernels do is not in the
    compiled program: it is `counted` in a run.
    """
    found = collectives(compiled.as_text())
    block = max(operand.block_bytes for operand in (program.arguments[0], program.results[0]))
    passes, least = _lower_limits(program)
    temporary = _temporary_bytes(compiled)
    return {
        "collectives": [
            {"kind": kind, "group_size": size, "count": count, "bytes": total}
            for (kind, size), (count, total) in _summed(found).items()
        ],
        "kernel_messages": counted.messages,
        "communicated_bytes": sum(c.times * c.bytes for c in found) + counted.sent_bytes,
        "least_communicated_bytes": least,
        "block_bytes": block,
        "temporary_bytes": temporary,
        "temporary_blocks": None if temporary is None else temporary / block,
        "temporary_bytes_of_parts": {name: _temporary_bytes(part) for name, part in parts.items()},
        "kernel_workspace_bytes": counted.workspace_bytes,
        "least_bytes_per_fft_pass": passes,
    }


def _temporary_bytes(compiled: Any) -> int | None:
    memory = compiled.memory_analysis()
    return None if memory is None else memory.temp_size_in_bytes


def _summed(found: list[Collective]) -> dict[tuple[str, int], tuple[int, int]]:
    counts, totals = Counter(), Counter()
    for collective in found:
        key = (collective.kind, collective.group_size)
        counts[key] += collective.times
        totals[key] += collective.times * collective.bytes
    return {key: (counts[key], totals[key]) for key in counts}


def _lower_limits(program: Program) -> tuple[list[int], int]:
    """The least that a device must read and write in each FFT pass, and the least that it must communicate, in bytes.

    A pass reads its input once and writes its result once; of what is redistributed over p devices, a p-th stays.
    Padding does not count, so that it shows as a difference to what the program does.
    """
    passes, communicated = [], 0.0
    for stage, fields, before, after in _walk(program):
        match stage:
            case LocalTransform():
                passes.append(round(fields * (_share(stage.before, before) + _share(stage.after, after))))
            case Move() if stage.gathered is not None:
                sent = _share(stage.before, before) * (1 - 1 / stage.before.parts[stage.gathered])
                communicated += fields * sent
            case Extend() if stage.before.parts[stage.axis] > 1:
                cells, length = stage.before.core(stage.axis), stage.before.lengths[stage.axis]
                layers = min(stage.after.extent(stage.axis), length) - cells
                layer = math.prod(stage.before.block_shape) // cells * before.itemsize
                communicated += fields * layers * layer
    return passes, round(communicated)


def _walk(program: Program) -> Iterator[tuple[AbstractStage, int, np.dtype, np.dtype]]:
    """The stages, with the number of fields and the dtypes before and after each."""
    dtype = program.arguments[0].dtype
    for plan, fields in program.calls:
        for stage in plan.stages:
            before, dtype = dtype, stage.result_dtype(dtype)
            yield stage, fields, before, dtype


def _share(blocks: Blocks, dtype: np.dtype) -> float:
    """The bytes of a field per device, without padding."""
    return math.prod(blocks.lengths) * dtype.itemsize / math.prod(blocks.parts)
