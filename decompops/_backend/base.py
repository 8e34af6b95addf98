"""What a backend is, and one use of a plan by it."""

import abc
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from .._plan.plan import Plan
from .._plan.stage import AbstractStage
from .._sharding import BatchEntry


if TYPE_CHECKING:
    import numpy as np

    from .._config import Config
    from .._plan.lower import Wire


class Counters(NamedTuple):
    """What compiled kernels have sent from this process so far, and the work space that they hold now."""

    messages: int = 0
    sent_bytes: int = 0
    workspace_bytes: int = 0


class Caller(NamedTuple):
    """Who calls an operator.

    `line` is the line of the user's program, such as `power.py:12`. `place` tells calls apart that share a line: it has
    columns, and the functions around the call that JAX traces with it. `thread` is the name of the Python thread.
    """

    line: str = ""
    place: str = ""
    thread: str = ""


NOBODY = Caller()


@dataclass(frozen=True)
class Call:
    """One use of a plan: the parameter of the one primitive.

    - `mesh`: the mesh whose devices hold the blocks.
    - `batch`: the mesh axes that divide leading batch axes, as far as that is known.
    - `caller`: who calls the operator, if the backend asks for it.
    """

    plan: Plan
    mesh: Mesh | AbstractMesh
    backend: "AbstractBackend"
    batch: tuple[BatchEntry, ...] = ()
    caller: Caller = NOBODY

    @property
    def platform(self) -> str:
        """What the devices are: "cpu", "gpu" or "tpu"."""
        return self.mesh.devices.flat[0].platform if isinstance(self.mesh, Mesh) else jax.default_backend()

    def transpose(self) -> "Call":
        """The call of the transposed plan."""
        return replace(self, plan=_transposed(self.plan))


# Equal plans are one object, so that comparing two calls takes no time.
@functools.lru_cache(maxsize=1024)
def _transposed(plan: Plan) -> Plan:
    return plan.transpose()


def check_overlap(overlap: object) -> None:
    """Raise `ValueError` unless `overlap`, an option of a backend, is a positive integer."""
    if not isinstance(overlap, int) or isinstance(overlap, bool) or overlap < 1:
        raise ValueError(f"`overlap` must be a positive integer; got {overlap!r}.")


class AbstractBackend(abc.ABC):
    """Moves the data of distributed operators. Backends are frozen dataclasses: hashable, compared by their options."""

    # Whether JAX can differentiate and batch `run` by itself. Else `operator.local` goes through a primitive, too.
    differentiable_block: ClassVar[bool] = True
    # The command that must start every process of a program with this backend, such as "mpiexec -n 4"; "" for none.
    launcher: ClassVar[str] = ""
    # Into how many pieces exchanges are split, to overlap them with transforms. A backend may have a field for it.
    overlap: int = 1
    # The narrower type in which exchanges between pencils send. A backend may have a field for it.
    wire: "Wire | None" = None

    def start(self) -> None:  # noqa: B027 - most have nothing to do
        """Start JAX in this process of a program run by `launcher`. The command line calls it before it uses JAX."""

    def resolved(self, config: "Config") -> "AbstractBackend":
        """This backend with its open options taken from the defaults. Called when an operator is built."""
        del config
        return self

    def variants(self) -> "tuple[AbstractBackend, ...]":
        """What `dops.autotune` tries: this backend with its open options filled in, each way that is worth a trial."""
        return (self,)

    @abc.abstractmethod
    def problem(self) -> str | None:
        """What keeps this backend from working in this installation, and what to do; `None` if nothing does."""

    def missing_features(self) -> str | None:
        """The optional features that this installation does not have, and how to get them; `None` for none."""
        return None

    @abc.abstractmethod
    def check(self, mesh: Mesh | AbstractMesh) -> None:
        """Raise if this backend cannot serve operators on `mesh`."""

    def takes(self, stages: tuple[AbstractStage, ...]) -> int:
        """How many of the first `stages` one kernel of this backend runs; 0 where XLA must run the first one."""
        del stages
        return 0

    def run(self, plan: Plan, block: Array, call: Call) -> Array:
        """Apply `plan`, stages that this backend takes, to one block `(*batch, ...)` in a `shard_map` over the mesh.

        `call` is what the stages are a part of. It is never differentiated or batched from outside, unless
        `differentiable_block` says so: leading batch axes are part of the block.
        """
        raise NotImplementedError(f"`{type(self).__name__}` takes stages, and must have a method `run`.")

    def prepare(self, call: Call, dtype: "np.dtype") -> None:  # noqa: B027 - most have nothing to do
        """Called on every rank, in the same order, before a program with `call` for inputs of `dtype` is made."""

    def caller(self) -> Caller:
        """Who calls an operator just now, if this backend tells calls apart by it. Calls differ as programs do then."""
        return NOBODY

    def counters(self) -> Counters:
        """For the benchmark. Without compiled kernels nothing is counted: XLA's programs say what they communicate."""
        return Counters()
