"""The backend for CPU clusters: compiled kernels over MPI and FFTW (`ffi/mpi`)."""

import itertools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from .._basis.fourier import DFT
from .._blocks import Blocks, MeshAxis, axis_names
from .._plan.pieces import Pieces, plain_stages
from .._plan.plan import Plan
from .._plan.stage import AbstractStage, Clear, Crop, Extend, LocalTransform, Move
from . import caller, launch, library
from .base import AbstractBackend, Call, Caller, Counters, check_overlap
from .encode import encoded, mesh_entries


Planning = Literal["estimate", "measure", "patient", "exhaustive"]


@dataclass(frozen=True)
class MPI(AbstractBackend):
    """Compiled kernels over MPI and FFTW, for CPU clusters: one process for each CPU device, started by `mpiexec`.

    A whole operator is one kernel: Fourier transforms, exchange and all. Cosine and sine transforms are computed by
    XLA, between kernels. See docs/kernels.md.

    - `communicator`: the key of a communicator made known by `MPI.initialize`.
    - `planning`: how long FFTW looks for a fast plan at the first call: "estimate", "measure", "patient" or
        "exhaustive". All but the first may round differently from one run to the next.
    - `threads`: of each rank, within a kernel (OpenMP). Give them cores: see docs/cluster.md.
    - `overlap`: into how many pieces each exchange, and the transforms beside it, are split. One piece is exchanged
        while another is transformed.

    Call `MPI.initialize()` first.
    """

    communicator: str = "world"
    planning: Planning = "measure"
    threads: int = 1
    overlap: int = field(default=1, kw_only=True)

    differentiable_block: ClassVar[bool] = False
    launcher: ClassVar[str] = "mpiexec -n 4"

    def __post_init__(self):
        if not isinstance(self.communicator, str):
            raise TypeError(f"`communicator` must be a key, a string; got {self.communicator!r}.")
        if self.planning not in get_args(Planning):
            raise ValueError(f"`planning` must be one of {get_args(Planning)}; got {self.planning!r}.")
        if not isinstance(self.threads, int) or isinstance(self.threads, bool) or self.threads < 1:
            raise ValueError(f"`threads` must be a positive integer; got {self.threads!r}.")
        check_overlap(self.overlap)

    @staticmethod
    def initialize(
        communicator: Any = None,
        *,
        key: str = "world",
        timeout: float = 60.0,
        limit: float | None = None,
        heartbeat: float = 100.0,
        reuse_memory: bool = True,
    ) -> None:
        """Start JAX over the ranks of an MPI communicator, one CPU device in each.

        To be called by every rank before any JAX computation; calling it again does nothing.

        **Arguments:**

        - `communicator`: an `mpi4py` communicator; `None` for `MPI.COMM_WORLD`.
        - `key`: a name for it, for `MPI(communicator=key)`.
        - `timeout`: seconds after which a rank that waits in an operator prints where it is and which ranks it waits
            for; it does so again whenever that time has doubled. If those ranks are in another operator, all raise an
            error.
        - `limit`: seconds of waiting in an operator after which all ranks raise an error; `None` for never.
        - `heartbeat`: seconds after which JAX ends all processes when one of them gives no sign of life.
        - `reuse_memory`: keep freed memory in the process (glibc only). Results of many megabytes otherwise come from
            the system each time, page by page, which costs more than moving the data.

        **Raises:** `ImportError` if kernels, MPI or mpi4py are missing or do not fit together; `ValueError` for a
        number of seconds that is not positive; `RuntimeError` if JAX is in use already, if not all ranks call this, or
        if they do not agree with JAX's processes.
        """
        launch.initialize(communicator, key, launch.Limits(timeout, limit, heartbeat), reuse_memory)

    @staticmethod
    def thread(name: str) -> AbstractContextManager[None]:
        """Let the calling Python thread run operators with this backend, inside a `with` block.

        The thread that called `MPI.initialize` needs no such block. `jax.jit` compiles a function anew for each thread.
        What is compiled ahead of time, by `.lower().compile()`, must be called in the thread that has compiled it.

        !!! example

            ```python
            def diagnose(u):
                with dops.MPI.thread("diagnostics"):
                    print(power(u))

            threading.Thread(target=diagnose, args=(u,)).start()
            ```

        **Arguments:**

        - `name`: the same on every rank; of one thread at a time.

        **Raises:** `ValueError` for a name that another thread uses.
        """
        return caller.thread(name)

    def start(self) -> None:
        self.initialize(key=self.communicator)

    def problem(self) -> str | None:
        return library.problem()

    def missing_features(self) -> str | None:
        return library.missing_features()

    def counters(self) -> Counters:
        return library.counters()

    def caller(self) -> Caller:
        return caller.current()

    def check(self, mesh) -> None:
        library.load()
        if self.threads > 1 and library.build()["openmp"] != "yes":
            raise ImportError(f"`threads` must be 1: the kernels were built without OpenMP; got {self.threads}.")
        self._ranks(mesh)

    def _ranks(self, mesh) -> list[int]:
        return launch.ranks_of(mesh, self.communicator, "cpu", self)

    def takes(self, stages: tuple[AbstractStage, ...]) -> int:
        return len(list(itertools.takewhile(_is_known, stages)))

    def run(self, plan: Plan, block: Array, call: Call) -> Array:
        lead = block.shape[: -plan.source.ndim]
        result = jax.ShapeDtypeStruct((*lead, *plan.target.block_shape), plan.result_dtype(np.dtype(block.dtype)))
        # A kernel scales while it transforms.
        scale = math.prod(stage.scale for stage in plain_stages(plan.stages) if isinstance(stage, LocalTransform))
        entries = mesh_entries(plan, tuple(call.mesh.shape))
        sizes, ranks = _merged(entries, call.mesh, self._ranks(call.mesh))
        return jax.ffi.ffi_call(library.TARGET, result)(
            block,
            numbers=encoded(plan, entries),
            mesh=sizes,
            ranks=ranks,
            scale=np.float64(scale),
            label=_label(plan, call, lead, block.dtype),
            details=", ".join(_details(plan, scale, call.caller)),
            thread=call.caller.thread,
            communicator=np.int64(launch.known[self.communicator].number),
            planning=np.int64(get_args(Planning).index(self.planning)),
            threads=np.int64(self.threads),
        )


def _is_known(stage: AbstractStage) -> bool:
    """Whether the kernels run `stage`: on grids of not too many axes, and Fourier transforms with FFTW only."""
    match stage:
        case Pieces(stages=stages):
            known = all(_is_known(part) and not isinstance(part, Extend | Crop | Pieces) for part in stages)
        case Move(before=before, after=after):
            # A mesh axis may not be added to others that divide an axis, nor be taken from among them.
            cuts = zip(before.names, before.parts, after.names, after.parts)
            known = all(name == other or 1 in (parts, now) for name, parts, other, now in cuts)
        case Extend() | Crop() | Clear():
            known = True
        case LocalTransform(transform=DFT(normalised=False)):
            known = library.build()["fftw"] == "yes"
        case _:
            known = False
    return known and stage.before.ndim <= int(library.build()["axes"])


def _merged(
    entries: tuple[MeshAxis, ...], mesh: Mesh | AbstractMesh, ranks: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The sizes and the ranks of a mesh that has `entries` for axes."""
    axes = [(entry,) if isinstance(entry, str) else entry for entry in entries]
    sizes = [math.prod(mesh.shape[name] for name in names) for names in axes]
    positions = [tuple(mesh.shape).index(name) for names in axes for name in names]
    ordered = np.array(ranks, np.int64).reshape(tuple(mesh.shape.values())).transpose(positions)
    return np.array(sizes, np.int64), ordered.ravel()


def _label(plan: Plan, call: Call, lead: tuple[int, ...], dtype: Any) -> str:
    """What an error calls the operator."""
    mesh = ", ".join(f"{axis}={size}" for axis, size in call.mesh.shape.items())
    shape = (*lead, *plan.source.lengths)
    ends = " -> ".join(map(_pencil, (plan.source, plan.target)))
    line, _, thread = call.caller
    in_thread = "" if thread == caller.MAIN else f" in thread {thread!r}"
    return f"{plan.name} {ends} of a {dtype} field {shape} on mesh ({mesh}) at {line}{in_thread}"


def _details(plan: Plan, scale: float, who: Caller) -> Iterator[str]:
    """What else tells the operator from others: an error says it where all the rest is the same."""
    names = axis_names(plan.source.ndim)
    for stage in plan.stages:
        if isinstance(stage, Pieces):
            yield f"{stage.count} pieces along {'the batch' if stage.axis is None else names[stage.axis]}"
    for stage in plain_stages(plan.stages):
        match stage:
            case LocalTransform(transform=DFT() as dft):
                axes = "".join(names[axis] for axis in stage.axes)
                yield f"{dft.kind} along {axes} with sign {dft.sign:+d}{', weighted' if dft.weighted else ''}"
            case Extend():
                halo = (stage.before if stage.transposed else stage.after).halo[stage.axis]
                kind = "periodic" if stage.periodic else "bounded"
                yield f"{kind} halo {halo} along {names[stage.axis]}{', transposed' if stage.transposed else ''}"
            case Crop(transposed=True):
                yield "transposed"
    yield "stored as " + " -> ".join("".join(names[i] for i in blocks.order) for blocks in (plan.source, plan.target))
    yield f"times {scale:g}"
    yield f"called at {who.place}"


def _pencil(blocks: Blocks) -> str:
    whole = "".join(axis for axis, name in zip(axis_names(blocks.ndim), blocks.names) if name is None)
    return f"{whole}-pencils"
