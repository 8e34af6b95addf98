"""The backend for CPUs in one process: compiled kernels that exchange data in shared memory (`ffi/native`)."""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import jax
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from ..._plan.lower import Wire
from ..._plan.pieces import plain_stages
from ..._plan.plan import Plan
from ..._plan.stage import AbstractStage
from ..base import AbstractBackend, Call, Counters, Group, check_counts
from ..wire import check_wire
from . import library
from .encode import mesh_entries
from .kernel import Planning, check_planning, cores, count_supported, in_order, run_kernel
from .library import NATIVE
from .rows import ordered, run_rows


@dataclass(frozen=True)
class Native(AbstractBackend):
    """Run operators with compiled kernels on the CPU devices of one process. For such devices, this is the default.

    One kernel runs a whole operator, with its transforms and exchanges. XLA computes some cosine and sine transforms
    between kernels: types 1 and 4, and some lengths. Devices exchange data through shared memory. See docs/kernels.md.

    **Arguments:**

    - `planning`: how long FFTW searches for a fast plan at the first call: "estimate", "measure", "patient" or
        "exhaustive". With every mode except "estimate", the rounding may differ from one run to the next.
    - `threads`: the largest number of threads that run a kernel, for all devices together. `None` is one thread for
        each core that the process may use. More threads than cores are never used.
    - `wire`: round exchanged numbers to a narrower dtype: "float32", "bfloat16" or "float16". This option shows the
        rounding error that `XLA` and `MPI` have with the same option. It saves no time within a process.

    **Raises:** `ValueError` if an option has an invalid value.
    """

    planning: Planning = "measure"
    threads: int | None = None
    wire: Wire | None = field(default=None, kw_only=True)

    differentiable_block: ClassVar[bool] = False
    moves_rows: ClassVar[bool] = True
    narrows: ClassVar[bool] = True

    def __post_init__(self):
        check_planning(self.planning)
        if self.threads is not None:
            check_counts(self, "threads")
        check_wire(self)

    def problem(self) -> str | None:
        return NATIVE.problem()

    def missing_features(self) -> str | None:
        return library.missing_features()

    def counters(self) -> Counters:
        return NATIVE.counters()

    def check(self, mesh) -> None:
        NATIVE.load()
        if isinstance(mesh, AbstractMesh):
            raise ValueError(
                f"`mesh` must have devices for `backend=Native()`; got {mesh}. Pass a `Mesh`, because under `jax.jit` "
                "and in derivatives the types of arrays do not name their devices, or choose `backend=XLA()`."
            )
        if not is_local(mesh):
            raise ValueError(
                f"`mesh` must consist of CPU devices of this process for `backend=Native()`; got {mesh}. Pass "
                "`backend=XLA()`, or `backend=MPI()` for several processes."
            )

    def point_threads(self, mesh: Mesh | AbstractMesh) -> int | None:
        return max(1, (self.threads or cores()) // mesh.size)

    def takes(self, stages: tuple[AbstractStage, ...]) -> int:
        return count_supported(stages)

    def run(self, plan: Plan, block: Array, call: Call) -> Array:
        entries = mesh_entries(plan, tuple(call.mesh.shape))
        # Only devices of the same group exchange data. So groups do not wait for each other.
        used = {
            name
            for blocks in (plan.source, *(stage.after for stage in plain_stages(plan.stages)))
            for name, parts in zip(blocks.names, blocks.parts)
            if parts > 1
        }
        inside = tuple(entry for entry in entries if entry in used)
        outside = tuple(entry for entry in entries if entry not in used)
        return run_kernel(
            NATIVE.register(),
            plan,
            block,
            call,
            inside,
            self.planning,
            self.threads or cores(),
            devices=in_order((*outside, *inside), call.mesh, _numbers(call.mesh)),
        )

    def move_rows(
        self, group: Group, leaving: Array, sent: Array, count: Array, arrays: Sequence[Array], *, back: bool
    ) -> tuple[Array, ...]:
        devices = ordered(group, _numbers(group.mesh))
        NATIVE.register()
        options = {"back": back, "threads": self.threads or cores(), "devices": devices}
        return run_rows(NATIVE.rows_target, group, (leaving, sent, count), arrays, **options)


def is_local(mesh: Mesh | AbstractMesh) -> bool:
    """Return whether all devices of `mesh` are CPU devices of this process; false for an `AbstractMesh`."""
    if not isinstance(mesh, Mesh) or mesh.empty:
        return False
    here = jax.process_index()
    return all(device.platform == "cpu" and device.process_index == here for device in mesh.devices.flat)


@functools.cache
def works() -> bool:
    """Return whether this backend works in this installation."""
    return NATIVE.problem() is None


def register() -> None:
    """Register the kernels with XLA if they work here. A program that another process has compiled may call them."""
    if works():
        with contextlib.suppress(ImportError):  # `Native.check` raises this error again.
            NATIVE.register()


def _numbers(mesh: Mesh | AbstractMesh) -> list[int]:
    """Return the number that XLA gives a kernel for each device, in mesh order."""
    assert isinstance(mesh, Mesh)  # `check` has refused abstract meshes.
    return [device.id for device in mesh.devices.flat]
