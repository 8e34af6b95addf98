"""The backend for GPU clusters: NVIDIA's cuDecomp exchanges data (`ffi/cudecomp`), and XLA does everything else."""

import functools
import itertools
import os
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from ..._common.blocks import Blocks, MeshAxis, axis_names
from ..._common.check import check_choice
from ..._plan.lower import Chunks, Wire
from ..._plan.plan import Plan
from ..._plan.stage import AbstractStage, Extend, Move
from ..base import AbstractBackend, Call, check_counts
from ..execute import lowered
from ..mpi.launch import Limits, known, ranks_of
from ..wire import check_wire
from ..xla.backend import extend_or_add, move, pad_end
from ..xla.halo import Message, messages_of, permute
from . import grids, launch


# The communication libraries and algorithms, by cuDecomp's names and in the order of cuDecomp's numbers.
TransposeBackend = Literal["mpi_p2p", "mpi_p2p_pl", "mpi_a2a", "nccl", "nccl_pl", "nvshmem", "nvshmem_pl", "nvshmem_sm"]
HaloBackend = Literal["mpi", "mpi_blocking", "nccl", "nvshmem", "nvshmem_blocking"]
NAMES: dict[str, tuple[str, ...]] = {"transpose": get_args(TransposeBackend), "halo": get_args(HaloBackend)}
VARIABLES = {"transpose": "DECOMPOPS_TRANSPOSE_BACKEND", "halo": "DECOMPOPS_HALO_BACKEND"}
DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class CuDecomp(AbstractBackend):
    """Run exchanges with NVIDIA's cuDecomp, for GPU clusters. `mpiexec` starts one process for each GPU.

    cuDecomp exchanges float32, float64, complex64 and complex128. XLA exchanges all other dtypes, and computes all
    Fourier transforms (with cuFFT). Call `CuDecomp.initialize()` first.

    **Arguments:**

    - `transpose`: how transposes communicate: "mpi_p2p", "mpi_p2p_pl", "mpi_a2a" (these need CUDA-aware MPI), "nccl",
        "nccl_pl", "nvshmem", "nvshmem_pl" or "nvshmem_sm". `None` means the value of the environment variable
        `DECOMPOPS_TRANSPOSE_BACKEND` if it is set, else "nccl".
    - `halo`: how halo exchanges communicate: "mpi", "mpi_blocking", "nccl", "nvshmem" or "nvshmem_blocking". `None`
        means the value of the environment variable `DECOMPOPS_HALO_BACKEND` if it is set, else "nccl".
    - `communicator`: the key of a communicator that was passed to `CuDecomp.initialize`.
    - `overlap`: the number of pieces that each exchange, and the transforms next to it, are split into. With more
        pieces, less work space is needed. Exchanges and transforms do not run at the same time.
    - `wire`: the narrower dtype that exchanges between pencils send: "float32", "bfloat16" or "float16". XLA runs these
        exchanges, not cuDecomp. `None` sends the field's dtype. docs/performance_exchanges.md lists the bytes sent and
        the rounding errors.

    **Raises:** `ValueError` if an option has an unknown value; `TypeError` if `communicator` is not a string.
    """

    transpose: TransposeBackend | None = None
    halo: HaloBackend | None = None
    communicator: str = "world"
    overlap: int = field(default=1, kw_only=True)
    wire: Wire | None = field(default=None, kw_only=True)

    differentiable_block: ClassVar[bool] = False
    launcher: ClassVar[str] = "mpiexec -n 4"

    def __post_init__(self):
        for name, choices in NAMES.items():
            check_choice(name, getattr(self, name), (None, *choices))
        if not isinstance(self.communicator, str):
            raise TypeError(f"`communicator` must be a string, the key of a communicator; got {self.communicator!r}.")
        check_counts(self, "overlap")
        check_wire(self)

    @staticmethod
    def initialize(
        communicator: Any = None,
        *,
        key: str = "world",
        device: int | None = None,
        heartbeat: float = 100.0,
        coordinator: str | None = None,
    ) -> None:
        """Start JAX over the ranks of an MPI communicator, with one GPU in each rank.

        Every rank must call this function before any JAX computation. A second call with the same key does nothing.

        **Arguments:**

        - `communicator`: an `mpi4py` communicator; `None` for `MPI.COMM_WORLD`.
        - `key`: the name of the communicator in `CuDecomp(communicator=key)`.
        - `device`: the number of this rank's GPU on its host. `None` assigns the GPUs of a host to its ranks in order.
        - `heartbeat`: JAX ends all processes if one of them does not respond for this many seconds.
        - `coordinator`: the address at which JAX's processes meet; see `MPI.initialize`.

        **Raises:** `ImportError` if the kernels, MPI or mpi4py are missing, or if they do not fit together.
        `RuntimeError` if a rank has no GPU, if JAX is already in use, if MPI's thread level is too low, if hosts cannot
        reach each other, or if the ranks of the communicator are not JAX's processes in the same order. `ValueError` if
        `key` already names a different communicator, or if `coordinator` is not an address.
        """
        limits = Limits(timeout=60.0, limit=None, heartbeat=heartbeat)
        launch.initialize(communicator, key, limits, device, coordinator)

    def start(self) -> None:
        self.initialize(key=self.communicator)

    def resolved(self) -> "CuDecomp":
        """Return a copy whose unset options are those of the environment. Raises `ValueError` for an unknown value."""
        unset = {name: os.environ.get(VARIABLES[name]) or "nccl" for name in NAMES if getattr(self, name) is None}
        for name, value in unset.items():
            if value.lower() not in NAMES[name]:
                raise ValueError(f"`{VARIABLES[name]}` must be one of {NAMES[name]}; got {value!r}.")
        return replace(self, **{name: value.lower() for name, value in unset.items()})

    def variants(self) -> "tuple[CuDecomp, ...]":
        return (self,) if self.transpose else (replace(self, transpose="nccl"), replace(self, transpose="nccl_pl"))

    def problem(self) -> str | None:
        return grids.problem()

    def check(self, mesh) -> None:
        self._ranks_of(mesh)

    def _ranks_of(self, mesh) -> list[int]:
        platform = "cpu" if grids.platform() == "cpu" else "gpu"
        return ranks_of(mesh, self.communicator, platform, self)

    def prepare(self, call: Call, dtype: np.dtype) -> None:
        self._prepare_stages(call, call.plan.stages, dtype)
        if self.overlap > 1:
            # The number of fields in a block is not known yet. Several fields are exchanged whole, one after the other.
            # A single field is exchanged in pieces, for which these descriptors are made.
            for part in lowered(call.plan, self, call.platform, 1):
                after = dtype
                for segments in part.segments_of_pieces if isinstance(part, Chunks) else ((part,),):
                    stages = tuple(stage for segment in segments for stage in segment.plan.stages)
                    after = self._prepare_stages(call, stages, dtype)
                dtype = after

    def _prepare_stages(self, call: Call, stages: tuple[AbstractStage, ...], dtype: np.dtype) -> np.dtype:
        """Make cuDecomp's grid descriptors for `stages` and inputs of `dtype`. Return the dtype of the result."""
        ranks = self._ranks(call)
        for stage in stages:
            if ranks and np.dtype(dtype).name in DTYPES:
                for use in self._uses(call, stage):
                    number = grids.add(self.communicator, known[self.communicator].handle, ranks, use.grid)
                    if self._allocates(use):
                        grids.reserve(number, grids.elements(number, use.width) * np.dtype(dtype).itemsize)
            dtype = stage.result_dtype(dtype)
        return dtype

    def takes(self, stages: tuple[AbstractStage, ...]) -> int:
        stage = stages[0]
        compound = any(isinstance(name, tuple) for name in (*stage.before.names, *stage.after.names))
        if compound or stage.before.ndim > 3:
            return 0
        match stage:
            case Move():
                return int(self.wire is None and stage.mesh_axis is not None and not stage.is_partial)
            case _:
                return int(isinstance(stage, Extend))

    def run(self, plan: Plan, block: Array, call: Call) -> Array:
        missing = 3 - plan.source.ndim
        stage = _in_three(plan.stages[0])
        block = block.reshape(*block.shape, *[1] * missing)
        match stage:
            case Move():
                result = self._move(call, stage, block)
            case Extend():
                result = extend_or_add(stage, block, functools.partial(self._exchange, call))
            case _:
                raise AssertionError(f"cuDecomp does not take {stage}")
        return result.reshape(result.shape[: result.ndim - missing])

    def _allocates(self, use: "_Use") -> bool:
        """Whether cuDecomp must allocate the work space itself."""
        return str(self.halo if use.width else self.transpose).startswith("nvshmem")

    def _ranks(self, call: Call) -> tuple[int, ...]:
        """Return the ranks that share a grid with this rank, in mesh order; empty if this rank is not in the mesh."""
        assert isinstance(call.mesh, Mesh)
        ranks = np.reshape(self._ranks_of(call.mesh), call.mesh.devices.shape)
        here = np.argwhere(ranks == known[self.communicator].handle.rank)
        if len(here) == 0:
            return ()
        names = _mesh_axes(call)
        ranks = ranks[tuple(slice(None) if name in names else i for name, i in zip(call.mesh.axis_names, here[0]))]
        return tuple(int(rank) for rank in ranks.flat)

    def _uses(self, call: Call, stage: AbstractStage) -> list["_Use"]:
        """Return the calls of cuDecomp that `stage` needs."""
        if not self.takes((stage,)):
            return []
        stage = _in_three(stage)
        if isinstance(stage, Move) and stage.gathered is not None:
            return [self._transpose(call, stage)]
        if isinstance(stage, Extend):
            stage = stage.transpose() if stage.transposed else stage
            return [self._halo(call, stage, swap.width) for swap in _swaps(stage, messages_of(stage))]
        return []

    def _transpose(self, call: Call, stage: Move) -> "_Use":
        """Return the call of cuDecomp that runs `stage`. A move and the transposed move share one grid descriptor."""
        gathered, divided = _exchanged(stage)
        first, second = sorted((gathered, divided))
        (other,) = {0, 1, 2} - {first, second}
        before, after = (stage.before, stage.after) if divided == first else (stage.after, stage.before)
        lengths = {axis: pencil.parts[axis] * pencil.core(axis) for axis, pencil in ((first, after), (second, before))}
        lengths[other] = after.parts[other] * after.core(other)
        along = self._along(call, after.names[first])
        axes = (other, first, second) if along else (first, second, other)
        orders = [order_of(axes, layout) for layout in (before, after)]
        orders.insert(0 if along else 2, (0, 1, 2))
        parts = after.parts[first], after.parts[other]
        return _Use(self._grid(axes, lengths, parts[::-1] if along else parts, orders, along, halo=False))

    def _halo(self, call: Call, stage: Extend, width: int) -> "_Use":
        """Return the halo update that sends `width` layers to both neighbours.

        cuDecomp gets only these layers: along the axis of the halo, the block passed to cuDecomp has no other cells.
        """
        layout, axis = stage.before, stage.axis
        whole, other = sorted({0, 1, 2} - {axis}, key=lambda axis: layout.parts[axis])
        lengths = {axis: layout.parts[axis] * 2 * width, whole: layout.extent(whole)}
        lengths[other] = layout.parts[other] * layout.extent(other)
        along = self._along(call, layout.names[axis])
        axes = (whole, other, axis) if along else (whole, axis, other)
        orders = [order_of(axes, layout), (0, 1, 2), (0, 1, 2)]
        parts = layout.parts[axes[1]], layout.parts[axes[2]]
        return _Use(self._grid(axes, lengths, parts, orders, along, halo=True), width)

    def _grid(self, axes, lengths, parts, orders, along: int, *, halo: bool) -> grids.Grid:
        kind = "halo" if halo else "transpose"
        backend = NAMES[kind].index(getattr(self, kind) or "nccl") + 1
        return grids.Grid(tuple(lengths[axis] for axis in axes), parts, tuple(orders), along, halo, backend)

    def _along(self, call: Call, name: MeshAxis | None) -> int:
        """Return 0 if a mesh axis is the first axis of the process grid, or 1 if it is the second."""
        return int(name != _mesh_axes(call)[0])

    def _call(self, call: Call, use: "_Use", target: str, shape: tuple[int, ...], x: Array, label: str, **options):
        number = grids.find(self.communicator, self._ranks(call), use.grid)
        work = 1 if self._allocates(use) else grids.elements(number, use.width)
        results = jax.ShapeDtypeStruct(shape, x.dtype), jax.ShapeDtypeStruct((work,), x.dtype)
        aliases = {0: 0} if use.width else None  # cuDecomp updates halos in place.
        kernel = jax.ffi.ffi_call(target, results, input_output_aliases=aliases)
        mesh = ", ".join(f"{axis}={size}" for axis, size in call.mesh.shape.items())
        return kernel(x, grid=np.int64(number), label=f"{label} {x.dtype} {x.shape} on mesh ({mesh})", **options)[0]

    def _move(self, call: Call, stage: Move, block: Array) -> Array:
        if block.dtype.name not in DTYPES:
            return move(stage, block, chunked=False)
        before, after, lead = stage.before, stage.after, block.ndim - stage.before.ndim
        gathered, divided = _exchanged(stage)
        # Blocks are padded to equal sizes. For cuDecomp, the padding is a part of the grid, and is exchanged, too.
        parts = after.parts[divided]
        whole = {gathered: parts * before.core(gathered), divided: parts * after.core(divided)}
        shape = [after.core(axis) if axis != gathered else whole[axis] for axis in after.order]
        names = axis_names(before.ndim)
        result = self._call(
            call,
            self._transpose(call, stage),
            grids.TRANSPOSE,
            (*block.shape[:lead], *shape),
            pad_end(block, whole[divided], lead + before.order.index(divided)),
            f"Transpose {names[divided]} -> {names[gathered]} of blocks",
            forward=np.bool_(divided < gathered),
        )
        return lax.slice_in_dim(result, 0, after.lengths[gathered], axis=lead + after.order.index(gathered))

    def _exchange(self, call: Call, stage: Extend, messages: list[Message], sent: list[Array]) -> list[Array]:
        """Return what each device receives. To send a message `n` devices further takes `n` halo updates."""
        if sent[0].dtype.name not in DTYPES:
            return permute(stage, messages, sent)
        axis = sent[0].ndim + stage.before.position(stage.axis)
        received = list(sent)
        for swap in _swaps(stage, messages):

            def step(_, pair, swap=swap):
                return self._swap(call, stage, swap.width, axis, *pair)

            def step_back(_, pair, step=step):
                return step(None, pair[::-1])[::-1]

            # If only one of the two directions has a message, the other direction sends zeros. They are made by padding
            # an empty slice of the message, because all inputs of `linear_call` must depend linearly on the message.
            nothing = lax.slice_in_dim(next(sent[i] for i in (swap.down, swap.up) if i is not None), 0, 0, axis=axis)
            both = (nothing if i is None else sent[i] for i in (swap.down, swap.up))
            pair = tuple(pad_end(x, swap.width, axis) for x in both)
            for _ in range(swap.distance):
                pair = jax.custom_derivatives.linear_call(step, step_back, (), pair)
            for i, x in zip((swap.down, swap.up), pair):
                if i is not None:
                    received[i] = lax.slice_in_dim(x, 0, messages[i].width, axis=axis)
        return received

    def _swap(self, call: Call, stage: Extend, width: int, axis: int, down: Array, up: Array) -> tuple[Array, Array]:
        """Send `down` to the previous device and `up` to the next device.

        Return what arrives from the next device, and what arrives from the previous device. cuDecomp updates the halos
        of a field that consists of `down` and `up`.
        """
        field = jnp.concatenate([jnp.zeros_like(down), down, up, jnp.zeros_like(up)], axis=axis)
        field = self._call(
            call,
            self._halo(call, stage, width),
            grids.HALO,
            field.shape,
            field,
            f"HaloExchange along {axis_names(3)[stage.axis]} of layers",
            width=np.int64(width),
            periodic=np.bool_(stage.periodic),
        )
        first = lax.slice_in_dim(field, 0, width, axis=axis)
        return lax.slice_in_dim(field, 3 * width, 4 * width, axis=axis), first


class _Use(NamedTuple):
    """One call of cuDecomp: a transpose if `width` is 0, else a halo update of `width` layers."""

    grid: grids.Grid
    width: int = 0


class _Swap(NamedTuple):
    """Two messages that the same halo updates carry: one `distance` devices up the line, one `distance` devices down.

    `up` and `down` are the numbers of these messages, or `None` for no message.
    """

    up: int | None
    down: int | None
    distance: int
    width: int


def _swaps(stage: Extend, messages: list[Message]) -> list[_Swap]:
    parts = stage.before.parts[stage.axis]
    ways: dict[int, tuple[list[int], list[int]]] = {}
    for i, message in enumerate(messages):
        if message.pairs:
            hop = message.hop
            if stage.periodic:  # Take the shorter way around the ring.
                hop = (hop + parts // 2) % parts - parts // 2
                hop = abs(hop) if 2 * abs(hop) == parts else hop
            ups_and_downs = ways.setdefault(abs(hop), ([], []))
            ups_and_downs[hop < 0].append(i)
    swaps = []
    for distance, (ups, downs) in ways.items():
        for pair in itertools.zip_longest(ups, downs):
            width = max(messages[i].width for i in pair if i is not None)
            swaps.append(_Swap(*pair, distance, width))
    return swaps


def _mesh_axes(call: Call) -> list[Any]:
    """Return the mesh axes that shard the grid, in mesh order: the axes of cuDecomp's process grid."""
    return [name for name in call.mesh.axis_names if name in call.plan.mesh_axes]


def order_of(axes: tuple[int, int, int], layout: Blocks) -> tuple[int, ...]:
    """Return the order in which `layout` stores cuDecomp's axes X, Y and Z, fastest first.

    `axes` are the grid axes that cuDecomp calls X, Y and Z.
    """
    return tuple(axes.index(axis) for axis in reversed(layout.order))


def _in_three(stage: AbstractStage) -> AbstractStage:
    """Return the same stage on a grid of three axes, which cuDecomp requires. Each added axis has one cell."""

    def embedded(layout: Blocks) -> Blocks:
        missing = range(layout.ndim, 3)
        one = tuple(1 for _ in missing)
        return Blocks(
            (*layout.lengths, *one),
            (*layout.parts, *one),
            (*layout.names, *(None for _ in missing)),
            (*layout.order, *missing),
            (*layout.halo, *((0, 0) for _ in missing)),
        )

    if stage.before.ndim == 3 or not isinstance(stage, Move | Extend):
        return stage
    return replace(stage, before=embedded(stage.before), after=embedded(stage.after))


def _exchanged(stage: Move) -> tuple[int, int]:
    """Return the axis that `stage` makes whole and the axis that `stage` shards. `stage` must communicate."""
    assert stage.gathered is not None
    assert stage.divided is not None
    return stage.gathered, stage.divided
