"""The backend for CPU clusters: compiled kernels over MPI (`ffi/mpi`)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from ..._plan.lower import Wire
from ..._plan.plan import Plan
from ..._plan.stage import AbstractStage
from ..base import AbstractBackend, Call, Caller, Counters, Group, check_counts
from ..native import caller, library, rows
from ..native.encode import mesh_entries
from ..native.kernel import Planning, check_planning, count_supported, details, in_order, run_kernel
from ..native.library import OVER_MPI
from ..native.rows import ordered, run_rows
from ..wire import check_wire, narrower
from . import launch


@dataclass(frozen=True)
class MPI(AbstractBackend):
    """Run operators with compiled kernels over MPI, for CPU clusters. `mpiexec` starts one process for each CPU device.

    One kernel runs a whole operator, with its transforms and exchanges. XLA computes some cosine and sine transforms
    between kernels: types 1 and 4, and some lengths. See docs/kernels.md and docs/kernels_mpi.md. Call
    `MPI.initialize()` first.

    **Arguments:**

    - `communicator`: the key of a communicator that was passed to `MPI.initialize`.
    - `planning`: how long FFTW searches for a fast plan at the first call: "estimate", "measure", "patient" or
        "exhaustive". With every mode except "estimate", the rounding may differ from one run to the next.
    - `threads`: the number of threads that each rank uses in a kernel, at most one for each core that the rank may
        use. For 8 threads, for example, start the ranks with `mpiexec --map-by slot:PE=8` (Open MPI) or
        `srun --cpus-per-task=8` (Slurm).
    - `overlap`: the number of pieces that each exchange, and the transforms next to it, are split into. One piece is
        exchanged while another piece is transformed.
    - `wire`: the narrower dtype that exchanges between pencils send: "float32", "bfloat16" or "float16". `None` sends
        the field's dtype. docs/performance_exchanges.md lists the bytes sent and the rounding errors.

    **Raises:** `ValueError` if an option has an invalid value; `TypeError` if `communicator` is not a string.
    """

    communicator: str = "world"
    planning: Planning = "measure"
    threads: int = 1
    overlap: int = field(default=1, kw_only=True)
    wire: Wire | None = field(default=None, kw_only=True)

    differentiable_block: ClassVar[bool] = False
    moves_rows: ClassVar[bool] = True
    narrows: ClassVar[bool] = True
    launcher: ClassVar[str] = "mpiexec -n 4"

    def __post_init__(self):
        if not isinstance(self.communicator, str):
            raise TypeError(f"`communicator` must be a string, the key of a communicator; got {self.communicator!r}.")
        check_planning(self.planning)
        check_counts(self, "threads", "overlap")
        check_wire(self)

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
        coordinator: str | None = None,
    ) -> None:
        """Start JAX over the ranks of an MPI communicator, with one CPU device in each rank.

        Every rank must call this function before any JAX computation. A second call with the same key does nothing.

        **Arguments:**

        - `communicator`: an `mpi4py` communicator; `None` for `MPI.COMM_WORLD`.
        - `key`: the name of the communicator in `MPI(communicator=key)`.
        - `timeout`: a rank that has waited in an operator for this many seconds prints the operator and the ranks that
            it waits for. It prints them again each time the waiting time has doubled. If the ranks that it waits for
            are in a different operator, all ranks raise an error.
        - `limit`: ranks that have waited in an operator for this many seconds raise an error; `None` for no limit.
        - `heartbeat`: JAX ends all processes if one of them does not respond for this many seconds.
        - `reuse_memory`: keep freed memory in the process (glibc only). If False, the system provides the memory of
            large results page by page at each call. This takes more time than moving the data.
        - `share_memory`: let the ranks of a node exchange data through shared memory (Linux only). If False, these
            ranks send messages, as ranks on different nodes do. All ranks must pass the same value.
        - `traces`: print the traceback of every rank, and JAX's stack traces when JAX ends a process because another
            process is gone. By default, a rank that fails because of another rank prints one line. Without glibc,
            JAX's stack traces are always printed.
        - `coordinator`: an address of rank 0's host that all hosts can reach, and a port that is free there:
            "10.0.0.1:8476", or "10.0.0.1" for any port. JAX's processes meet there. The value of rank 0 counts. By
            default, the first address that all hosts reach is taken: the one in the environment variable
            `JAX_COORDINATOR_ADDRESS`, if it is set on rank 0; otherwise the name of its host or an address of one of
            its network interfaces.

        **Raises:** `ImportError` if the kernels, MPI or mpi4py are missing, or if they do not fit together.
        `ValueError` if a number of seconds is not positive, if `key` already names a different communicator, if
        `coordinator` is not an address, or if the ranks differ in `share_memory`. `RuntimeError` if JAX is already in
        use or `jax.distributed` has been started, if MPI was initialised without MPI_THREAD_MULTIPLE, if some ranks do
        not call this function, if the ranks of the communicator are not JAX's processes in the same order, or if hosts
        cannot reach each other. The error then says which host cannot reach which address.
        """
        launch.initialize(
            communicator,
            key,
            launch.Limits(timeout, limit, heartbeat),
            reuse_memory=reuse_memory,
            share_memory=share_memory,
            traces=traces,
            coordinator=coordinator,
        )

    @staticmethod
    def thread(name: str) -> AbstractContextManager[None]:
        """Let the calling Python thread run operators with this backend, inside a `with` block.

        The thread that called `MPI.initialize` needs no such block. `jax.jit` compiles a function again in each thread.
        A function compiled ahead of time, with `.lower().compile()`, must be called in the thread that compiled it.

        !!! example

            ```python
            def diagnose(u):
                with dops.MPI.thread("diagnostics"):
                    print(power(u))

            threading.Thread(target=diagnose, args=(u,)).start()
            ```

        **Arguments:**

        - `name`: a name for the thread. It must be the same on every rank. Threads that run at the same time need
            different names.

        **Raises:** `ValueError` if `name` is empty or "main", or if another thread uses it.
        """
        return caller.thread(name)

    def start(self) -> None:
        self.initialize(key=self.communicator)

    def problem(self) -> str | None:
        return OVER_MPI.problem()

    def missing_features(self) -> str | None:
        _, problem = self._sharing()
        memory = f"ranks of a host exchange messages ({problem})" if problem else "ranks of a host share memory"
        return f"{library.missing_features()}, {memory}"

    def counters(self) -> Counters:
        ranks, problem = self._sharing()
        return OVER_MPI.counters()._replace(sharing=ranks, not_sharing=problem)

    def _sharing(self) -> tuple[int, str]:
        registered = launch.known.get(self.communicator)
        return OVER_MPI.sharing(None if registered is None else registered.number)

    def caller(self) -> Caller:
        return caller.current()

    def check(self, mesh) -> None:
        OVER_MPI.load()
        self._ranks(mesh)

    def _ranks(self, mesh) -> list[int]:
        return launch.ranks_of(mesh, self.communicator, "cpu", self)

    def point_threads(self, mesh: Mesh | AbstractMesh) -> int | None:
        del mesh
        return self.threads

    def takes(self, stages: tuple[AbstractStage, ...]) -> int:
        return count_supported(stages)

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
            details=", ".join(details(plan, narrower(self.wire, block.dtype))),
            **self._site(call.caller),
        )

    def move_rows(
        self, group: Group, leaving: Array, sent: Array, count: Array, arrays: Sequence[Array], *, back: bool
    ) -> tuple[Array, ...]:
        return run_rows(
            OVER_MPI.rows_target,
            group,
            (leaving, sent, count),
            arrays,
            back=back,
            threads=self.threads,
            ranks=ordered(group, self._ranks(group.mesh)),
            details=rows.details(arrays, back=back),
            **self._site(group.caller),
        )

    def _site(self, who: Caller) -> dict[str, Any]:
        """Return the attributes of a call that tell where the user's program calls the kernel."""
        OVER_MPI.name_site(who)
        number = np.int64(launch.known[self.communicator].number)
        return {"thread": who.thread, "site": who.site, "communicator": number}
