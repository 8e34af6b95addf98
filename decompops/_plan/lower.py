"""From a plan to a schedule: which steps a backend's kernels run, where the scale goes, what is fused.

Each pass is a function from steps to steps that keeps what they compute.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .._blocks import Blocks
from .plan import Plan
from .stage import AbstractStage, LocalTransform, Move, Resize, Scale


@dataclass(frozen=True)
class Step:
    """A stage, and the number of the kernel that runs it; `None` if XLA does."""

    stage: AbstractStage
    kernel: int | None = None


@dataclass(frozen=True)
class Segment:
    """Consecutive stages that one kernel of a backend runs, or XLA one by one."""

    plan: Plan
    native: bool


Steps = tuple[Step, ...]


def schedule(plan: Plan, takes: Callable[[tuple[AbstractStage, ...]], int], platform: str) -> tuple[Segment, ...]:
    """What is run, in order.

    - `takes`: how many of the first of some stages one kernel of a backend runs; 0 where XLA must run the first one.
    - `platform`: "cpu", "gpu" or "tpu".
    """
    steps, factor = computed(split(plan, takes), platform)
    steps = scaled(fused(steps, platform), plan.scale * factor, plan.target)
    groups = itertools.groupby(steps, lambda step: step.kernel)
    stages = [(tuple(step.stage for step in group), kernel is not None) for kernel, group in groups]
    return tuple(Segment(Plan(plan.name, part[0].before, part), native) for part, native in stages)


def split(plan: Plan, takes: Callable[[tuple[AbstractStage, ...]], int]) -> Steps:
    """Divide the stages between kernels of a backend and XLA."""
    steps: list[Step] = []
    for kernel in itertools.count():
        left = plan.stages[len(steps) :]
        if not left:
            break
        count = takes(left)
        if not 0 <= count <= len(left):
            raise ValueError(f"`takes` must return how many of {len(left)} stages a kernel runs; got {count!r}.")
        steps += [Step(stage, kernel) for stage in left[:count]] if count else [Step(left[0])]
    return tuple(steps)


def computed(steps: Steps, platform: str) -> tuple[Steps, float]:
    """Replace the transforms that XLA runs by those that it computes best; the factor is what these lack."""
    replaced, factors = [], []
    for step in steps:
        if step.kernel is None and isinstance(step.stage, LocalTransform):
            transform, factor = step.stage.transform.computed(step.stage.points, platform)
            step = Step(replace(step.stage, transform=transform))
            factors.append(factor)
        replaced.append(step)
    return tuple(replaced), math.prod(factors, start=1.0)


def fused(steps: Steps, platform: str) -> Steps:
    """On GPUs, copy coefficients in the form that XLA fuses with what comes before and after."""
    if platform != "gpu":
        return steps

    def with_neighbour(previous: Step | None, step: Step) -> Step:
        stage = step.stage
        if step.kernel is not None or not isinstance(stage, Resize) or not stage.only_copies:
            return step
        moved = previous.stage.gathered if previous and isinstance(previous.stage, Move) else None
        return Step(replace(stage, fused=True, arrived=moved))

    return tuple(map(with_neighbour, (None, *steps), steps))


def scaled(steps: Steps, scale: float, target: Blocks) -> Steps:
    """Put the whole scale where multiplying costs least: into one transform, where it fuses with what is done anyway.

    A transform that multiplies by weights is the first choice. The first of others is followed, or preceded, by a copy.
    """
    # Products of sizes and their reciprocals may miss 1 by a rounding error of float64.
    if abs(scale - 1) < 1e-14:
        return steps
    transforms = {i: step.stage for i, step in enumerate(steps) if isinstance(step.stage, LocalTransform)}
    if not transforms:
        return (*steps, Step(Scale(target, scale)))
    weighted = (i for i, stage in transforms.items() if stage.transform.multiplies)
    chosen = next(weighted, next(iter(transforms)))
    step = Step(replace(transforms[chosen], scale=scale * transforms[chosen].scale), steps[chosen].kernel)
    return (*steps[:chosen], step, *steps[chosen + 1 :])
