"""Runs a schedule on one block: kernels of the backend for what it takes, XLA for everything else."""

import functools

from jax import Array

from .._plan.lower import Segment, schedule
from .._plan.plan import Plan
from .base import AbstractBackend, Call
from .xla import run_stage


def run_on_block(call: Call, block: Array) -> Array:
    """Apply the plan of `call` to one block, inside a `shard_map` over the mesh."""
    for segment in _schedule(call.plan, call.backend, call.platform):
        if segment.native:
            block = call.backend.run(segment.plan, block, call)
        else:
            for stage in segment.plan.stages:
                block = run_stage(stage, block, call.platform)
    return block


@functools.lru_cache(maxsize=1024)
def _schedule(plan: Plan, backend: AbstractBackend, platform: str) -> tuple[Segment, ...]:
    return schedule(plan, backend.takes, platform)
