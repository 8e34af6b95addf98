"""The backend for CPUs in one process: compiled kernels that work in shared memory (`ffi/native`)."""

import functools
import os
from dataclasses import dataclass, field
from typing import ClassVar

import jax
from jax import Array
from jax.sharding import AbstractMesh, Mesh

from .._plan.lower import Wire
from .._plan.pieces import plain_stages
from .._plan.plan import Plan
from .._plan.stage import AbstractStage
from . import library
from .base import AbstractBackend, Call, Counters
from .encode import mesh_entries
from .kernel import Planning, check_planning, check_threads, count_known, in_order, run_kernel
from .library import NATIVE
from .wire import check_wire


@dataclass(frozen=True)
class Native(AbstractBackend):
    """Compiled kernels for the CPU devices of one process: the default there, where they were built.

    A whole operator is one kernel: Fourier transforms, exchange and all. Cosine and sine transforms are computed by
    XLA, between kernels. Devices write what they exchange to where the other one reads it. See docs/kernels.md.

    - `planning`: how long FFTW looks for a fast plan at the first call: "estimate", "measure", "patient" or
        "exhaustive". All but the first may round differently from one run to the next.
    - `threads`: how many threads run a kernel, for all devices together; `None` for one on each core that the process
        may use.
    - `wire`: as of other backends, to see what it does to a result: nothing is sent within a process.
    """

    planning: Planning = "measure"
    threads: int | None = None
    wire: Wire | None = field(default=None, kw_only=True)

    differentiable_block: ClassVar[bool] = False

    def __post_init__(self):
        check_planning(self.planning)
        if self.threads is not None:
            check_threads(self.threads)
        check_wire(self.wire)

    def problem(self) -> str | None:
        return NATIVE.problem()

    def missing_features(self) -> str | None:
        return library.missing_features()

    def counters(self) -> Counters:
        return NATIVE.counters()

    def check(self, mesh) -> None:
        NATIVE.load()
        if not is_local(mesh):
            raise ValueError(
                "`mesh` must consist of CPU devices of this process for `backend=Native()`; pass `backend=XLA()`, or "
                f"`MPI()` for several processes; got {mesh}."
            )

    def takes(self, stages: tuple[AbstractStage, ...]) -> int:
        return count_known(stages)

    def run(self, plan: Plan, block: Array, call: Call) -> Array:
        entries = mesh_entries(plan, tuple(call.mesh.shape))
        # Devices that exchange nothing need not wait for each other, so they form separate groups.
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
            self.threads or _cores(),
            devices=in_order((*outside, *inside), call.mesh, _numbers(call.mesh)),
        )


def is_local(mesh: Mesh | AbstractMesh) -> bool:
    """Whether all devices of `mesh` are known to be CPU devices of this process."""
    if not isinstance(mesh, Mesh) or mesh.empty:
        return False
    here = jax.process_index()
    return all(device.platform == "cpu" and device.process_index == here for device in mesh.devices.flat)


@functools.cache
def works() -> bool:
    """Whether this backend works in this installation."""
    return NATIVE.problem() is None


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _numbers(mesh: Mesh | AbstractMesh) -> list[int]:
    """The number that each device of the mesh has in this process."""
    assert isinstance(mesh, Mesh)  # `check` has seen to it
    return [device.local_hardware_id for device in mesh.devices.flat]
