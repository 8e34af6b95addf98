"""The interface of a backend, and the parameters of one call of an operator."""

import abc
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from .._common.check import check_count
from .._common.sharding import BatchEntry
from .._plan.plan import Plan
from .._plan.stage import AbstractStage


if TYPE_CHECKING:
    import numpy as np

    from .._plan.lower import Wire


class Counters(NamedTuple):
    """What compiled kernels do in this process.

    - `messages`, `sent_bytes`: the messages that this process has sent so far, and their bytes.
    - `workspace_bytes`: the bytes of the kernels' work space.
    - `sharing`: with `MPI()`, the number of ranks on this host that exchange data through shared memory, this rank
        included.
    - `not_sharing`: why the ranks of this host exchange messages instead. Empty if they share memory.
    """

    messages: int = 0
    sent_bytes: int = 0
    workspace_bytes: int = 0
    sharing: int = 0
    not_sharing: str = ""


class Caller(NamedTuple):
    """The place in the user's program that calls an operator.

    - `line`: the file and line, such as `power.py:12`.
    - `place`: the file, line and column of the call and of the traced functions around it. The column distinguishes
        calls on the same line.
    - `thread`: the name of the Python thread.
    - `site`: what distinguishes this place from other places, without the numbers of lines. So a comment above the call
        does not change it.
    """

    line: str = ""
    place: str = ""
    thread: str = ""
    site: str = ""


NOBODY = Caller()


@dataclass(frozen=True)
class Call:
    """One use of a plan, a parameter of the library's primitives.

    - `mesh`: the mesh whose devices hold the blocks.
    - `batch`: the mesh axes that shard the leading batch axes, as far as they are known.
    - `caller`: the place that calls the operator, if the backend asks for it.
    - `own`: the mesh of the operator, if the axes of `mesh` have other types, those of the context.
    """

    plan: Plan
    mesh: Mesh | AbstractMesh
    backend: "AbstractBackend"
    batch: tuple[BatchEntry, ...] = ()
    caller: Caller = NOBODY
    own: Mesh | AbstractMesh | None = None

    @property
    def platform(self) -> str:
        """The platform of the devices: "cpu", "gpu" or "tpu"."""
        return self.mesh.devices.flat[0].platform if isinstance(self.mesh, Mesh) else jax.default_backend()

    def transpose(self) -> "Call":
        """Return the call of the transposed plan."""
        return replace(self, plan=_transposed(self.plan))


@dataclass(frozen=True)
class Group:
    """The devices along some axes of a mesh, between which rows of arrays move.

    - `name`: the operator's name in error messages.
    - `names`: the mesh axes. The first of them varies slowest in the numbers of the devices.
    - `caller`: as in `Call`.
    """

    name: str
    mesh: Mesh | AbstractMesh
    names: tuple[str, ...]
    backend: "AbstractBackend"
    caller: Caller = NOBODY

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.mesh.shape[name] for name in self.names)


# The cache returns one object for equal plans, so that comparing two calls takes no time.
@functools.lru_cache(maxsize=1024)
def _transposed(plan: Plan) -> Plan:
    return plan.transpose()


def check_counts(backend: "AbstractBackend", *names: str) -> None:
    """Make options of `backend` that count something plain integers. Raises `ValueError` unless they are positive."""
    for name in names:
        object.__setattr__(backend, name, check_count(name, getattr(backend, name)))


class AbstractBackend(abc.ABC):
    """A way to run distributed operators on their devices.

    Backends are frozen dataclasses: they are hashable, and equal if their options are equal.
    """

    # Whether JAX can differentiate and batch `run` by itself. If False, or inside a `shard_map` that leaves mesh axes,
    # `operator.local` binds a JAX primitive.
    differentiable_block: ClassVar[bool] = True
    # Whether compiled kernels move rows of arrays between devices, by `move_rows`. If False, XLA does this.
    moves_rows: ClassVar[bool] = False
    # Whether kernels of this backend send the dtype `wire` themselves. If False, XLA casts blocks before and after each
    # exchange, which is then alone in its kernel.
    narrows: ClassVar[bool] = False
    # The command that must start the processes of a program with this backend, such as "mpiexec -n 4". "" for none.
    launcher: ClassVar[str] = ""
    # A backend with one of the next two options declares it as a dataclass field.
    # Exchanges are split into this number of pieces, to overlap them with transforms.
    overlap: int = 1
    # Exchanges between pencils send numbers of this dtype, narrower than the field's.
    wire: "Wire | None" = None

    def start(self) -> None:  # noqa: B027 - most backends have nothing to do
        """Start JAX in a process that `launcher` has started. The command line calls this method before it uses JAX."""

    def resolved(self) -> "AbstractBackend":
        """Return a copy without unset options. An operator calls this method when it is built."""
        return self

    def variants(self) -> "tuple[AbstractBackend, ...]":
        """Return the variants of this backend that `dops.autotune` times: one for each promising set of options."""
        return (self,)

    @abc.abstractmethod
    def problem(self) -> str | None:
        """Return why this backend does not work in this installation, and what to do; `None` if it works."""

    def missing_features(self) -> str | None:
        """Return what `python -m decompops info` prints about optional parts of this backend, or `None`.

        The text names the parts that are installed, or the missing parts and how to get them.
        """
        return None

    @abc.abstractmethod
    def check(self, mesh: Mesh | AbstractMesh) -> None:
        """Raise an error if this backend cannot run operators on `mesh`."""

    def takes(self, stages: tuple[AbstractStage, ...]) -> int:
        """Return how many of the first `stages` one kernel of this backend runs; 0 if XLA must run the first."""
        del stages
        return 0

    def point_threads(self, mesh: Mesh | AbstractMesh) -> int | None:
        """Return with how many threads each device's kernel deposits and reads points; `None` if XLA does this."""
        del mesh
        return None

    def run(self, plan: Plan, block: Array, call: Call) -> Array:
        """Apply `plan` to one block of shape `(*batch, *plan.source.block_shape)`, inside a `shard_map` over the mesh.

        `plan` holds consecutive stages of `call.plan`, as many as `takes` accepts. If `differentiable_block` is true,
        JAX differentiates and batches this method. If it is false, all batch axes are leading axes of the block.
        """
        raise NotImplementedError(f"`{type(self).__name__}` takes stages, and must have a method `run`.")

    def move_rows(
        self, group: Group, leaving: Array, sent: Array, count: Array, arrays: Sequence[Array], *, back: bool
    ) -> tuple[Array, ...]:
        """Move rows between the devices of `group`, inside a `shard_map`: see `decompops/_core/rows.py`.

        With `back`, all rows go back to where they came from: the transpose.
        """
        raise NotImplementedError(f"`{type(self).__name__}` moves rows, and must have a method `move_rows`.")

    def prepare(self, call: Call, dtype: "np.dtype") -> None:  # noqa: B027 - most backends have nothing to do
        """Prepare to compile `call` for inputs of `dtype`. Every rank calls this method in the same order."""

    def caller(self) -> Caller:
        """Return the place that is calling an operator, if this backend distinguishes calls by their place."""
        return NOBODY

    def counters(self) -> Counters:
        """Return the counters of the compiled kernels, for the benchmark.

        A backend without compiled kernels returns zeros. The benchmark then reads the communication from XLA's program.
        """
        return Counters()
