"""The programs that the benchmark compiles, and the contestants that it times: our programs and other libraries."""

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

from ... import Layout
from ...extend import AbstractStage, Blocks, Counters, Extend, LocalTransform, Move, Plan
from ..hlo import Collective, collectives


@dataclass(frozen=True)
class Contestant:
    """One implementation of a task.

    `run()` computes the result, and `collect` converts it to a NumPy array in natural order. A contestant with `alone`
    uses a single process, so it is timed in the first process only.
    """

    run: Callable[[], Any]
    collect: Callable[[Any], Any] = np.asarray
    note: str = ""
    alone: bool = False


@dataclass(frozen=True)
class Operand:
    """An argument or a result of a program: fields of shape `(*lead, nx, ny, nz)`, sharded by `blocks`.

    If `blocks` is `None`, the operand is an array of shape `lead`, and every device has the whole array.
    """

    dtype: np.dtype
    blocks: Blocks | None
    lead: tuple[int, ...] = ()

    @property
    def block_bytes(self) -> int:
        """The bytes that one device holds."""
        return math.prod((*self.lead, *(self.blocks.block_shape if self.blocks else ()))) * self.dtype.itemsize

    @property
    def least_bytes(self) -> int:
        """The bytes that one device must hold: its share of the fields, including halos but not padding."""
        if self.blocks is None or self.blocks.has_halo:
            return self.block_bytes
        return round(math.prod(self.lead) * _share(self.blocks, self.dtype))

    def struct(self, mesh: Mesh) -> jax.ShapeDtypeStruct:
        shape, spec = (self.blocks.shape, self.blocks.spec) if self.blocks else ((), ())
        sharding = NamedSharding(mesh, PartitionSpec(*(None,) * len(self.lead), *spec))
        return jax.ShapeDtypeStruct((*self.lead, *shape), self.dtype, sharding=sharding)

    def distribute(self, mesh: Mesh, array: np.ndarray) -> Array:
        """Pad and shard an array whose axes are in natural order (x, y, z). Every process must pass the same array."""
        array = array.astype(self.dtype, copy=False)
        if self.blocks is not None:
            return Layout(mesh, self.blocks).distribute(array)
        struct = self.struct(mesh)
        return jax.make_array_from_callback(struct.shape, struct.sharding, lambda index: array[index])

    def collect(self, mesh: Mesh, result: Array) -> np.ndarray:
        """Gather an operand as a NumPy array in natural order, without padding but with halos."""
        if self.blocks is None or self.blocks.has_halo:
            return gathered(result)
        return Layout(mesh, self.blocks).gather(result)


@dataclass(frozen=True)
class Program:
    """A function to compile, with its arguments and its results.

    `calls` lists the plans that the function runs, each with the number of fields in its batch.
    `data()` makes inputs and the right results, without any operator of decompops.
    """

    function: Callable
    arguments: tuple[Operand, ...]
    results: tuple[Operand, ...]
    calls: tuple[tuple[Plan, int], ...]
    mesh: Mesh
    data: Callable[[], tuple[Sequence[np.ndarray], Any]] = field(repr=False)

    def compile(self) -> Any:
        """Compile the function. No field is allocated."""
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
    """The programs of a case: ours, parts of ours to compare with, and peers.

    `peers` takes the inputs of our program, and returns a function for each peer. This function makes a contestant, or
    raises if the peer lacks the operator. `tolerance` is the largest relative error of a contestant; `None` if only
    rounding errors are allowed.
    """

    ours: Program
    parts: dict[str, Program] = field(default_factory=dict)
    peers: Callable[..., dict[str, Callable[[], Contestant]]] = lambda *_: {}
    tolerance: float | None = None


def compile_for(function: Callable, *arguments: Any) -> Any:
    return jax.jit(function).lower(*arguments).compile()


def gathered(result: Array) -> np.ndarray:
    """Gather a whole array in every process."""
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
    """Return a contestant that only reads and writes the bytes that `program` must move if it transforms axis by axis.

    The time of these reads and writes is a lower limit for the program. There is one exception: if planes fit into a
    cache, a transform of two axes at once may read and write less.
    """
    passes = [nbytes for stage, fields, *dtypes in _walk(program) for nbytes in _passes_by_axis(stage, fields, *dtypes)]
    length = round(sum(passes) / len(passes) / 8)  # float32 numbers, read once and written once in each pass
    note = f"{len(passes)} reads and writes, one for each axis transformed"
    return memory_passes(program.mesh, length, len(passes), note)


def memory_passes(mesh: Mesh, length: int, passes: int, note: str = "") -> Contestant:
    """Return a contestant in which every device reads and writes `length` float32 numbers, `passes` times."""
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    x = jax.jit(lambda: jnp.zeros(mesh.size * length, np.float32), out_shardings=sharding)()

    # Without the loop, XLA would fuse the passes into one. The argument is donated, because the first use of new
    # memory may cost more than a pass.
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
    """Return the bytes that one device communicates and holds in a compiled program, and the lower limits of both.

    `parts` are other compiled programs, whose temporary memory the result also lists. `counted` holds the messages of
    kernels in one run, because the text of a compiled program does not show these messages. If nobody has counted the
    bytes that are communicated, they are `None`: cuDecomp does not say what it sends.
    """
    found = collectives(compiled.as_text())
    sent = sum(c.times * c.bytes for c in found) + counted.sent_bytes
    block = max(operand.block_bytes for operand in (program.arguments[0], program.results[0]))
    passes, least = _lower_limits(program)
    temporary = _temporary_bytes(compiled)
    return {
        "collectives": [
            {"kind": kind, "group_size": size, "count": count, "bytes": total}
            for (kind, size), (count, total) in _summed(found).items()
        ],
        "kernel_messages": counted.messages,
        "communicated_bytes": sent if sent or not least else None,
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
    """Return the least bytes that a device must read and write in each FFT pass, and the least bytes it must send.

    A pass reads its input once and writes its result once. In an exchange between p devices, each device keeps 1/p of
    its data and sends the rest. Padding does not count, so the real program exceeds these limits by its padding.
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
    """Yield the stages of all plans, each with its number of fields and the dtypes before and after the stage."""
    dtype = program.arguments[0].dtype
    for plan, fields in program.calls:
        for stage in plan.stages:
            before, dtype = dtype, stage.result_dtype(dtype)
            yield stage, fields, before, dtype


def _share(blocks: Blocks, dtype: np.dtype) -> float:
    """Return the bytes of a field per device, without padding."""
    return math.prod(blocks.lengths) * dtype.itemsize / math.prod(blocks.parts)
