"""Runs a schedule on one block: kernels of the backend for what it takes, XLA for everything else."""

import functools

import numpy as np
from jax import Array

from .._plan.lower import Segment, schedule
from .._plan.plan import Plan
from .._plan.stage import AbstractStage
from .base import AbstractBackend, Call
from .xla import run_stage


def run_on_block(call: Call, block: Array) -> Array:
    """Apply the plan of `call` to one block, inside a `shard_map` over the mesh."""
    for segment in _schedule(call.plan, call.backend, call.platform):
        if segment.native:
            result = call.backend.run(segment.plan, block, call)
            block = _checked(result, block, segment.plan, f"`{type(call.backend).__name__}.run`")
        else:
            for stage in segment.plan.stages:
                result = run_stage(stage, block, call.platform)
                block = _checked(result, block, stage, f"the stage `{type(stage).__name__}` of `{call.plan.name}`")
    return block


def _checked(result: Array, block: Array, step: AbstractStage | Plan, what: str) -> Array:
    """`result`, if it is what `step` says of itself: an error in a later step would not say whose fault it is."""
    before, after = (step.source, step.target) if isinstance(step, Plan) else (step.before, step.after)
    shape, dtype = (*block.shape[: -before.ndim], *after.block_shape), step.result_dtype(np.dtype(block.dtype))
    if (result.shape, result.dtype) != (shape, dtype):
        raise ValueError(f"{what} must return a block {dtype}{shape}; got {result.dtype}{result.shape}.")
    return result


@functools.lru_cache(maxsize=1024)
def _schedule(plan: Plan, backend: AbstractBackend, platform: str) -> tuple[Segment, ...]:
    return schedule(plan, backend.takes, platform)
