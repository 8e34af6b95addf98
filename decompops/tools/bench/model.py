"""A model of operators on many ranks: what a rank computes, packs and sends, and how long this takes.

The model adds three times, because a kernel does not compute while it sends. Networks have no hot spots: a node is
limited only by its own link. What a program adds to an operator (calls, their order) is not in the model.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np


Mesh = tuple[int, int]
Shape = tuple[int, int, int]
REAL, COMPLEX = 4, 8  # Bytes of a number in single precision.


@dataclass(frozen=True)
class Machine:
    """A machine of equal nodes. Ranks of a node have consecutive numbers in the mesh.

    - `operations`: how many floating-point operations a rank does in a second, in transforms. A line of n complex
      points counts 5 n log₂ n.
    - `stencils`: to how many cells a rank applies a stencil in a second.
    - `updates`: how many cells a rank updates in a second in a step of conjugate gradients, which has three updates of
      vectors and three sums.
    - `memory`: how many bytes a rank reads or writes in a second when it packs messages, while the other ranks of its
      node do the same.
    - `overhead`: seconds that a rank is busy with one message, as its sender or as its receiver.
    - `latency`: seconds that a short message travels.
    - `link`: how many bytes a node sends in a second, while it receives as many.
    - `ranks`: the number of ranks of a node.
    - `inside`: how many bytes a rank sends to ranks of its node in a second. By default a quarter of `memory`, because
      the sender and the receiver copy a message, each by reading and writing it.
    """

    operations: float
    stencils: float
    updates: float
    memory: float
    overhead: float
    latency: float
    link: float
    ranks: int = 1
    inside: float | None = None


@dataclass(frozen=True)
class Exchange:
    """Messages of one kind: each rank sends one of `size` bytes to each rank `offsets` further along a mesh axis."""

    axis: int
    size: float
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """What one rank does: operations in transforms, cells in stencils and updates, bytes that it packs, exchanges."""

    operations: float = 0.0
    stencils: float = 0.0
    updates: float = 0.0
    packed: float = 0.0
    exchanges: tuple[Exchange, ...] = ()

    def __add__(self, other: "Work") -> "Work":
        exchanges = (*self.exchanges, *other.exchanges)
        return Work(
            self.operations + other.operations,
            self.stencils + other.stencils,
            self.updates + other.updates,
            self.packed + other.packed,
            exchanges,
        )


@dataclass(frozen=True)
class Seconds:
    """The three parts of the time of an operator."""

    computing: float
    packing: float
    network: float

    @property
    def total(self) -> float:
        return self.computing + self.packing + self.network


def transform(shape: Shape, mesh: Mesh, *, real: bool = False) -> Work:
    """Return the work of a transform along all axes. Each exchange packs and unpacks its block once."""
    cells = math.prod(shape) / math.prod(mesh)
    half = 0.5 if real else 1.0
    block = half * cells * COMPLEX
    exchanges = tuple(Exchange(axis, block / size, tuple(range(1, size))) for axis, size in enumerate(mesh) if size > 1)
    operations = 5 * half * cells * math.log2(math.prod(shape))
    return Work(operations, packed=4 * block * len(exchanges), exchanges=exchanges)


def stencil(shape: Shape, mesh: Mesh) -> Work:
    """Return the work of a stencil with one neighbour on each side, of a real field: two faces for each mesh axis."""
    cells = math.prod(shape) / math.prod(mesh)
    faces = tuple(
        Exchange(axis, REAL * cells * size / shape[axis], (1, size - 1)) for axis, size in enumerate(mesh) if size > 1
    )
    return Work(stencils=cells, exchanges=faces)


def solver_step(shape: Shape, mesh: Mesh) -> Work:
    """Return the work of a step of conjugate gradients: a stencil, two real transforms, and one reduction."""
    cells = math.prod(shape) / math.prod(mesh)
    sums = tuple(Exchange(axis, 3 * REAL, tuple(range(1, size))) for axis, size in enumerate(mesh) if size > 1)
    there = transform(shape, mesh, real=True)
    return stencil(shape, mesh) + there + there + Work(updates=cells, exchanges=sums)


OPERATORS: Mapping[str, Callable[[Shape, Mesh], Work]] = {
    "transform": transform,
    "stencil": stencil,
    "solver step": solver_step,
}


def seconds(work: Work, mesh: Mesh, machine: Machine) -> Seconds:
    """Return how long a rank takes for its work."""
    computing = work.operations / machine.operations + work.stencils / machine.stencils + work.updates / machine.updates
    network = sum(_network(exchange, mesh, machine) for exchange in work.exchanges)
    return Seconds(computing, work.packed / machine.memory, network)


def _network(exchange: Exchange, mesh: Mesh, machine: Machine) -> float:
    number = len(exchange.offsets)
    leaving = messages_out(exchange, mesh, machine.ranks)
    staying = min(machine.ranks, math.prod(mesh)) * number - leaving
    link = leaving * exchange.size / machine.link
    inside = staying / machine.ranks * exchange.size / (machine.inside or machine.memory / 4)
    return 2 * machine.overhead * number + machine.latency + link + inside


def messages_out(exchange: Exchange, mesh: Mesh, ranks: int) -> int:
    """Return how many messages of an exchange leave the first node of `ranks` ranks."""
    places = np.stack(np.unravel_index(np.arange(min(ranks, math.prod(mesh))), mesh))
    leaving = 0
    for offset in exchange.offsets:
        others = places.copy()
        others[exchange.axis] = (others[exchange.axis] + offset) % mesh[exchange.axis]
        leaving += int(np.sum(np.ravel_multi_index(tuple(others), mesh) >= ranks))
    return leaving


def near_square(size: int) -> Mesh:
    """Return the sizes of a mesh of `size` devices, as square as possible."""
    rows = next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)
    return rows, size // rows


def strong(operator: str, shape: Shape, sizes: list[int], machine: Machine) -> list[Seconds]:
    """Return the times of an operator on the same grid, for each number of ranks."""
    return [_on(operator, shape, near_square(size), machine) for size in sizes]


def weak(operator: str, block: Shape, sizes: list[int], machine: Machine) -> list[Seconds]:
    """Return the times of an operator with the same block on each rank, for each number of ranks."""
    meshes = map(near_square, sizes)
    return [_on(operator, (block[0] * m[0], block[1] * m[1], block[2]), m, machine) for m in meshes]


def _on(operator: str, shape: Shape, mesh: Mesh, machine: Machine) -> Seconds:
    return seconds(OPERATORS[operator](shape, mesh), mesh, machine)


def fitted(machine: Machine, block: Shape, alone: Mapping[str, float]) -> Machine:
    """Return the machine with its rates, from the seconds that a rank takes on a block that it has alone.

    `alone` has the times of all operators, and of a "copy" of a complex field.
    """
    cells, one = math.prod(block), (1, 1)
    updates = alone["solver step"] - alone["stencil"] - alone["transform"]  # Two real transforms count as one.
    return replace(
        machine,
        operations=transform(block, one).operations / alone["transform"],
        stencils=cells / alone["stencil"],
        updates=cells / updates if updates > 0 else math.inf,
        memory=2 * COMPLEX * cells / alone["copy"],
    )
