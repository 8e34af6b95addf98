"""The backend for CPU clusters: compiled kernels over MPI (`ffi/mpi`)."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jax import Array

from .._plan.lower import Wire
from .._plan.plan import Plan
from .._plan.stage import AbstractStage
from . import caller, launch, library
from .base import AbstractBackend, Call, Caller, Counters, check_overlap
from .encode import mesh_entries
from .kernel import Planning, check_planning, check_threads, count_known, details, in_order, run_kernel
from .library import OVER_MPI
from .wire import check_wire


@dataclass(frozen=True)
class MPI(AbstractBackend):
    """Compiled kernels over MPI, for CPU clusters: one process for each CPU device, started by `mpiexec`.

    A whole operator is one kernel: Fourier transforms, exchange and all. Cosine and sine transforms are computed by
    XLA, between kernels. See docs/kernels.md.

    - `communicator`: the key of a communicator made known by `MPI.initialize`.
    - `planning`: how long FFTW looks for a fast plan at the first call: "estimate", "measure", "patient" or
        "exhaustive". All but the first may round differently from one run to the next.
    - `threads`: of each rank, within a kernel. Give them cores: see docs/cluster.md.
    - `overlap`: into how many pieces each exchange, and the transforms beside it, are split. One piece is exchanged
        while another is transformed.
    - `wire`: the type in which exchanges between pencils send wider numbers: "float32", "bfloat16", "float16".
        `None` sends the field's own type. docs/performance.md has the bytes and errors.

    Call `MPI.initialize()` first.
    """

    communicator: str = "world"
    planning: Planning = "measure"
    threads: int = 1
    overlap: int = field(default=1, kw_only=True)
    wire: Wire | None = field(default=None, kw_only=True)

    differentiable_block: ClassVar[bool] = False
    launcher: ClassVar[str] = "mpiexec -n 4"

    def __post_init__(self):
        if not isinstance(self.communicator, str):
            raise TypeError(f"`communicator` must be a key, a string; got {self.communicator!r}.")
        check_planning(self.planning)
        check_threads(self.threads)
        check_overlap(self.overlap)
        check_wire(self.wire)

    @staticmethod
    def initialize(
        communicator: Any = None,
        *,
        key: str = "world",
        timeout: float = 60.0,
        limit: float | None = None,
        heartbeat: float = 100.0,
        reuse_memory: bool = True,
        share_memory: bool = True,
        traces: bool = False,
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
        - `share_memory`: let the ranks of a node write what they compute to where the others read it (Linux only).
            Otherwise they send messages, as ranks of different nodes do. The same on all ranks.
        - `traces`: print JAX's stack traces when it ends a process because another one is gone, and the traceback of
            every rank. By default, one line says what has happened to a rank that fails because of another one.
            Without glibc, JAX's stack traces are always printed.

        **Raises:** `ImportError` if kernels, MPI or mpi4py are missing or do not fit together; `ValueError` for a
        number of seconds that is not positive; `RuntimeError` if JAX is in use already, if not all ranks call this, or
        if they do not agree with JAX's processes.
        """
        launch.initialize(
            communicator,
            key,
            launch.Limits(timeout, limit, heartbeat),
            reuse_memory=reuse_memory,
            share_memory=share_memory,
            traces=traces,
        )

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
        return OVER_MPI.problem()

    def missing_features(self) -> str | None:
        return library.missing_features()

    def counters(self) -> Counters:
        return OVER_MPI.counters()

    def caller(self) -> Caller:
        return caller.current()

    def check(self, mesh) -> None:
        OVER_MPI.load()
        self._ranks(mesh)

    def _ranks(self, mesh) -> list[int]:
        return launch.ranks_of(mesh, self.communicator, "cpu", self)

    def takes(self, stages: tuple[AbstractStage, ...]) -> int:
        return count_known(stages)

    def run(self, plan: Plan, block: Array, call: Call) -> Array:
        entries = mesh_entries(plan, tuple(call.mesh.shape))
        return run_kernel(
            OVER_MPI.name,
            plan,
            block,
            call,
            entries,
            self.planning,
            self.threads,
            ranks=in_order(entries, call.mesh, self._ranks(call.mesh)),
            details=", ".join(details(plan, call.caller)),
            thread=call.caller.thread,
            communicator=np.int64(launch.known[self.communicator].number),
        )
