"""The backend for GPU clusters: NVIDIA's cuDecomp moves the data (`ffi/cudecomp`), XLA does everything else."""

import functools
import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from .._blocks import Blocks, MeshAxis, axis_names
from .._plan.lower import Chunks, Wire
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Extend, Move
from . import grids, launch
from .base import AbstractBackend, Call, check_overlap
from .execute import lowered
from .wire import check_wire
from .xla import extend_or_add, move, pad_end
from .xla_halo import Message, messages_of, permute


if TYPE_CHECKING:
    from .._config import Config

# By cuDecomp's own names and numbers; these are what they communicate with.
TransposeBackend = Literal["mpi_p2p", "mpi_p2p_pl", "mpi_a2a", "nccl", "nccl_pl", "nvshmem", "nvshmem_pl", "nvshmem_sm"]
HaloBackend = Literal["mpi", "mpi_blocking", "nccl", "nvshmem", "nvshmem_blocking"]
NAMES: dict[str, tuple[str, ...]] = {"transpose": get_args(TransposeBackend), "halo": get_args(HaloBackend)}
DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class CuDecomp(AbstractBackend):
    """NVIDIA's cuDecomp, for GPU clusters: one process for each GPU, started by `mpiexec`.

    Fourier transforms stay with XLA (cuFFT), as does moving data of types that cuDecomp does not have: it has float32,
    float64, complex64 and complex128.

    - `transpose`: how transposes communicate: "mpi_p2p", "mpi_p2p_pl", "mpi_a2a" (these need CUDA-aware MPI), "nccl",
        "nccl_pl", "nvshmem", "nvshmem_pl" or "nvshmem_sm"; `None` for `dops.config.transpose_backend`, else "nccl".
    - `halo`: how halo exchanges do: "mpi", "mpi_blocking", "nccl", "nvshmem" or "nvshmem_blocking"; `None` for
        `dops.config.halo_backend`, else "nccl".
    - `communicator`: the key of a communicator made known by `CuDecomp.initialize`.
    - `overlap`: into how many pieces each exchange, and the transforms beside it, are split. cuDecomp then needs less
        work space; but XLA runs its transposes and the transforms one after the other.
    - `wire`: the type in which exchanges between pencils send wider numbers: "float32", "bfloat16", "float16".
        XLA then exchanges them. `None` sends the field's own type. docs/performance.md has the bytes and errors.

    Call `CuDecomp.initialize()` first.
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
            if getattr(self, name) not in (None, *choices):
                raise ValueError(f"`{name}` must be one of {choices}; got {getattr(self, name)!r}.")
        if not isinstance(self.communicator, str):
            raise TypeError(f"`communicator` must be a key, a string; got {self.communicator!r}.")
        check_overlap(self.overlap)
        check_wire(self.wire)

    @staticmethod
    def initialize(
        communicator: Any = None, *, key: str = "world", device: int | None = None, heartbeat: float = 100.0
    ) -> None:
        """Start JAX over the ranks of an MPI communicator, one GPU in each.

        To be called by every rank before any JAX computation; calling it again does nothing.

        **Arguments:**

        - `communicator`: an `mpi4py` communicator; `None` for `MPI.COMM_WORLD`.
        - `key`: a name for it, for `CuDecomp(communicator=key)`.
        - `device`: the number of this rank's GPU among those of its host; `None` deals them out in turn.
        - `heartbeat`: seconds after which JAX ends all processes when one of them gives no sign of life.

        **Raises:** `ImportError` if kernels, MPI or mpi4py are missing or do not fit together; `RuntimeError` if there
        is no GPU, JAX is in use already or the ranks do not agree with JAX's processes.
        """
        limits = launch.Limits(timeout=60.0, limit=None, heartbeat=heartbeat)
        launch.initialize_gpus(communicator, key, limits, device)

    def start(self) -> None:
        self.initialize(key=self.communicator)

    def resolved(self, config: "Config") -> "CuDecomp":
        transpose = self.transpose or config.transpose_backend or "nccl"
        return replace(self, transpose=transpose, halo=self.halo or config.halo_backend or "nccl")

    def variants(self) -> "tuple[CuDecomp, ...]":
        return (self,) if self.transpose else (replace(self, transpose="nccl"), replace(self, transpose="nccl_pl"))

    def problem(self) -> str | None:
        return grids.problem()

    def check(self, mesh) -> None:
        self._ranks_of(mesh)

    def _ranks_of(self, mesh) -> list[int]:
        platform = "cpu" if grids.platform() == "cpu" else "gpu"
        return launch.ranks_of(mesh, self.communicator, platform, self)

    def prepare(self, call: Call, dtype: np.dtype) -> None:
        self._prepare_stages(call, call.plan.stages, dtype)
        if self.overlap > 1:
            # How many fields a device will hold is not known yet. Of several fields the exchanges stay as they are, of
            # one they are those of its pieces.
            for part in lowered(call.plan, self, call.platform, 1):
                after = dtype
                for segments in part.segments_of_pieces if isinstance(part, Chunks) else ((part,),):
                    stages = tuple(stage for segment in segments for stage in segment.plan.stages)
                    after = self._prepare_stages(call, stages, dtype)
                dtype = after

    def _prepare_stages(self, call: Call, stages: tuple[AbstractStage, ...], dtype: np.dtype) -> np.dtype:
        """Make what `stages` need of cuDecomp, for inputs of `dtype`. Returns the dtype of their result."""
        ranks = self._ranks(call)
        for stage in stages:
            if ranks and np.dtype(dtype).name in DTYPES:
                for use in self._uses(call, stage):
                    number = grids.add(self.communicator, launch.known[self.communicator].handle, ranks, use.grid)
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
        """The ranks that share a grid with this one, in the mesh's order; none if the mesh is one of other ranks."""
        assert isinstance(call.mesh, Mesh)
        ranks = np.reshape(self._ranks_of(call.mesh), call.mesh.devices.shape)
        here = np.argwhere(ranks == launch.known[self.communicator].handle.rank)
        if len(here) == 0:
            return ()
        names = _mesh_axes(call)
        ranks = ranks[tuple(slice(None) if name in names else i for name, i in zip(call.mesh.axis_names, here[0]))]
        return tuple(int(rank) for rank in ranks.flat)

    def _uses(self, call: Call, stage: AbstractStage) -> list["_Use"]:
        """What `stage` needs of cuDecomp."""
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
        """cuDecomp's axes are named so that one descriptor serves a move and its transpose."""
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
        """For cuDecomp a block is, along the axis of the halo, just what is to be sent."""
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
        """Whether a mesh axis is the first or the second one of the process grid."""
        return int(name != _mesh_axes(call)[0])

    def _call(self, call: Call, use: "_Use", target: str, shape: tuple[int, ...], x: Array, label: str, **options):
        number = grids.find(self.communicator, self._ranks(call), use.grid)
        work = 1 if self._allocates(use) else grids.elements(number, use.width)
        results = jax.ShapeDtypeStruct(shape, x.dtype), jax.ShapeDtypeStruct((work,), x.dtype)
        aliases = {0: 0} if use.width else None  # halos are updated in place
        kernel = jax.ffi.ffi_call(target, results, input_output_aliases=aliases)
        mesh = ", ".join(f"{axis}={size}" for axis, size in call.mesh.shape.items())
        return kernel(x, grid=np.int64(number), label=f"{label} {x.dtype} {x.shape} on mesh ({mesh})", **options)[0]

    def _move(self, call: Call, stage: Move, block: Array) -> Array:
        if block.dtype.name not in DTYPES:
            return move(stage, block, chunked=False)
        before, after, lead = stage.before, stage.after, block.ndim - stage.before.ndim
        gathered, divided = _exchanged(stage)
        # cuDecomp divides evenly what we pad: it moves the padding, too.
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
        """What each device gets of `messages`: by one update of halos from device to device on the way of each."""
        if sent[0].dtype.name not in DTYPES:
            return permute(stage, messages, sent)
        axis = sent[0].ndim + stage.before.position(stage.axis)
        received = list(sent)
        for swap in _swaps(stage, messages):

            def step(_, pair, swap=swap):
                return self._swap(call, stage, swap.width, axis, *pair)

            def step_back(_, pair, step=step):
                return step(None, pair[::-1])[::-1]

            # Where there is one message only, nothing of it goes the other way: zeros, but linear in it.
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
        """Send `down` to the device before and `up` to the next, and return what comes in turn.

        They are the layers at the two ends of a field whose halos cuDecomp updates.
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
    """One use of cuDecomp: a transpose, or an update of halos of `width` layers."""

    grid: grids.Grid
    width: int = 0


class _Swap(NamedTuple):
    """Two messages, by their numbers (`None`: none), that travel `distance` devices up and down the line together."""

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
            if stage.periodic:  # the shorter way round
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
    """Those of the grid, in the mesh's order: the axes of cuDecomp's process grid, for every operator the same."""
    return [name for name in call.mesh.axis_names if name in call.plan.mesh_axes]


def order_of(axes: tuple[int, int, int], layout: Blocks) -> tuple[int, ...]:
    """How `layout` stores cuDecomp's X, Y and Z, which are `axes` here, the fastest first."""
    return tuple(axes.index(axis) for axis in reversed(layout.order))


def _in_three(stage: AbstractStage) -> AbstractStage:
    """A stage on a grid of fewer axes as one on a grid of three, which cuDecomp knows: the others have one cell."""

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
    """The axes that become whole and divided, of a stage that communicates."""
    assert stage.gathered is not None
    assert stage.divided is not None
    return stage.gathered, stage.divided
