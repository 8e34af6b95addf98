"""Lowers a plan to a schedule: the steps in which one backend runs the stages of the plan.

The schedule fixes which stages overlap, which exchanges send a narrower dtype, which stages a backend's kernels run,
which stage multiplies by the scale, and which stages XLA fuses. Each of these decisions is a function of this module
that takes steps and returns steps with the same result. (`computed` also returns a factor.)
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from .._basis.mixed import mixed
from .._common.blocks import Blocks
from .pieces import Pieces, even_lengths, in_pieces, plain_stages, shortened
from .plan import Plan
from .stage import AbstractStage, LocalTransform, Move, Resize, Scale


# The dtypes to which exchanges may round the data that they send. They are narrower than the dtype of the field.
Wire = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Step:
    """One stage of a schedule.

    - `kernel`: the number of the kernel that runs the stage; `None` if XLA runs it.
    - `pieces`: the `Pieces` that contain the stage; `None` if the stage runs on whole blocks.
    - `wire`: the narrower dtype that the stage sends; `None` if it sends the field's dtype, or nothing.
    """

    stage: AbstractStage
    kernel: int | None = None
    pieces: Pieces | None = None
    wire: Wire | None = None


@dataclass(frozen=True)
class Segment:
    """Consecutive stages. If `native` is True, one kernel of a backend runs all of them; else XLA runs them one by one.

    A segment with `wire` is a single exchange. Values are cast to the dtype `wire` before the exchange, and back to the
    field's dtype after it.
    """

    plan: Plan
    native: bool
    wire: Wire | None = None


@dataclass(frozen=True)
class Chunks:
    """Segments that run for each piece of a block. The pieces are independent of each other.

    - `source`, `target`: how the field is cut into blocks before and after the segments.
    - `axis`: the grid axis along which blocks are cut into pieces; `None` for the leading batch axes.
    - `pieces`: for each piece, its length along `axis` and its segments.
    """

    source: Blocks
    target: Blocks
    axis: int | None
    pieces: tuple[tuple[int, tuple[Segment, ...]], ...]

    @property
    def segments_of_pieces(self) -> tuple[tuple[Segment, ...], ...]:
        """The segments for each length of pieces. The pieces of a block have at most two different lengths."""
        return tuple(dict(self.pieces).values())


Steps = tuple[Step, ...]
Takes = Callable[[tuple[AbstractStage, ...]], int]


def schedule(
    plan: Plan,
    takes: Takes,
    platform: str,
    overlap: int = 1,
    fields: int = 1,
    wire: Wire | None = None,
    *,
    narrows: bool = False,
) -> tuple[Segment | Chunks, ...]:
    """Return the schedule of a plan: its `Segment`s and `Chunks`, in the order in which they run.

    - `takes`: a function of a sequence of stages. It returns how many of these stages, from the first one on, a single
        kernel of the backend runs. It returns 0 if XLA must run the first stage.
    - `platform`: "cpu", "gpu" or "tpu".
    - `overlap`: the number of pieces that exchanges are split into.
    - `fields`: the number of fields in the leading batch axes of a block.
    - `wire`: the narrower dtype that exchanges between pencils send; `None` for the field's dtype.
    - `narrows`: whether the kernels of the backend send `wire` themselves.
    """
    stages = plan.stages if overlap == 1 else tuple(in_pieces(plan.stages, overlap, fields))
    steps, factor = computed(split(stages, takes, wire, narrows=narrows), platform)
    steps = scaled(fused(joined(steps), platform), plan.scale * factor, plan.target)
    parts: list[Segment | Chunks] = []
    for pieces, group in itertools.groupby(steps, lambda step: step.pieces):
        part = tuple(group)
        parts += _segments(plan.name, part) if pieces is None else [_chunks(plan.name, part, pieces, fields)]
    return tuple(parts)


def _segments(name: str, steps: Steps) -> tuple[Segment, ...]:
    segments = []
    for (kernel, wire), group in itertools.groupby(steps, lambda step: (step.kernel, step.wire)):
        stages = tuple(step.stage for step in group)
        # An exchange with `wire` is alone in its segment.
        for part in [(stage,) for stage in stages] if wire else [stages]:
            segments.append(Segment(Plan(name, part[0].before, part), kernel is not None, wire))
    return tuple(segments)


def _chunks(name: str, steps: Steps, pieces: Pieces, fields: int) -> Chunks:
    source, target, axis = pieces.before, pieces.after, pieces.axis
    if axis is None:
        segments = _segments(name, steps)
        lengths = even_lengths(fields, min(pieces.count, fields))
        return Chunks(source, target, axis, tuple((length, segments) for length in lengths))
    lengths = even_lengths(source.core(axis), pieces.count)
    short = {
        length: _segments(name, tuple(replace(step, stage=shortened(step.stage, axis, length)) for step in steps))
        for length in set(lengths)
    }
    return Chunks(source, target, axis, tuple((length, short[length]) for length in lengths))


def split(stages: tuple[AbstractStage, ...], takes: Takes, wire: Wire | None = None, *, narrows: bool = False) -> Steps:
    """Assign each stage to a kernel of the backend, or to XLA.

    If no kernel runs a whole stage of type `Pieces`, the stages that it contains are assigned one by one.

    With `wire`, no kernel runs an exchange together with other stages, unless kernels send this dtype themselves
    (`narrows`).
    """
    numbers = itertools.count()

    def assigned(stages: tuple[AbstractStage, ...], pieces: Pieces | None) -> Iterator[Step]:
        while stages:
            narrow = [i for i, stage in enumerate(stages) if wire and _exchanges(stage)]
            alone = bool(narrow) and narrow[0] == 0 and not narrows
            end = max(narrow[0], 1) if narrow and not narrows else len(stages)
            count, number = takes(stages[:end]), next(numbers)
            if not isinstance(count, int) or not 0 <= count <= len(stages):
                raise ValueError(f"`takes` must return how many of {len(stages)} stages a kernel runs; got {count!r}.")
            if isinstance(stages[0], Pieces) and (alone or not count):
                yield from assigned(stages[0].stages, stages[0])
                count = 1
            elif count and not alone:
                yield from (Step(stage, number, pieces) for stage in stages[:count])
            else:
                yield Step(stages[0], number if count else None, pieces, wire if 0 in narrow else None)
            stages = stages[max(count, 1) :]

    return tuple(assigned(stages, None))


def _exchanges(stage: AbstractStage) -> bool:
    """Return whether `stage` is an exchange between pencils, or `Pieces` that contain one."""
    return any(isinstance(part, Move) and part.mesh_axis is not None for part in plain_stages((stage,)))


def computed(steps: Steps, platform: str) -> tuple[Steps, float]:
    """Replace each transform that XLA runs by a transform, equal up to a factor, that XLA computes fastest.

    Return the new steps and a factor. The result of the new steps times the factor is the result of `steps`.
    """
    replaced, factors = [], []
    for step in steps:
        if step.kernel is None and isinstance(step.stage, LocalTransform):
            transform, factor = step.stage.transform.computed(step.stage.points, platform)
            step = replace(step, stage=replace(step.stage, transform=transform))
            factors.append(factor)
        replaced.append(step)
    return tuple(replaced), math.prod(factors, start=1.0)


def joined(steps: Steps) -> Steps:
    """Replace two consecutive transforms of different kinds by one FFT of XLA, where this is possible."""
    done: list[Step] = []
    for step in steps:
        stage = _joined(done[-1], step) if done else None
        if stage is None:
            done.append(step)
        else:
            done[-1] = replace(step, stage=stage)
    return tuple(done)


def _joined(first: Step, second: Step) -> LocalTransform | None:
    a, b = first.stage, second.stage
    by_xla = first.kernel is None and second.kernel is None and first.pieces is second.pieces
    if not (by_xla and isinstance(a, LocalTransform) and isinstance(b, LocalTransform)):
        return None
    found = mixed((a.transform, a.axes, a.points), (b.transform, b.axes, b.points))
    return found and LocalTransform(a.before, b.after, found[1], found[0], a.scale * b.scale)


def fused(steps: Steps, platform: str) -> Steps:
    """On GPUs, copy coefficients in a form that XLA fuses with the operations before and after the copy."""
    if platform != "gpu":
        return steps

    def with_neighbour(previous: Step | None, step: Step) -> Step:
        stage = step.stage
        if step.kernel is not None or not isinstance(stage, Resize) or not stage.only_copies:
            return step
        moved = previous.stage.gathered if previous and isinstance(previous.stage, Move) else None
        return replace(step, stage=replace(stage, fused=True, arrived=moved))

    return tuple(map(with_neighbour, (None, *steps), steps))


def scaled(steps: Steps, scale: float, target: Blocks) -> Steps:
    """Give the whole scale to one transform, where the multiplication fuses with other work.

    The best transform is one that multiplies by weights anyway. If there is no such transform, the first transform gets
    the scale: the multiplication fuses with a copy before or after it.
    """
    # A product of sizes and of their reciprocals may differ from 1 by a rounding error of float64.
    if abs(scale - 1) < 1e-14:
        return steps
    transforms = {
        (i, j): stage
        for i, step in enumerate(steps)
        for j, stage in enumerate(plain_stages((step.stage,)))
        if isinstance(stage, LocalTransform)
    }
    if not transforms:
        return (*steps, Step(Scale(target, scale)))
    weighted = (place for place, stage in transforms.items() if stage.transform.multiplies)
    i, j = chosen = next(weighted, next(iter(transforms)))
    stage = replace(transforms[chosen], scale=scale * transforms[chosen].scale)
    if isinstance(whole := steps[i].stage, Pieces):
        stage = replace(whole, stages=(*whole.stages[:j], stage, *whole.stages[j + 1 :]))
    return (*steps[:i], replace(steps[i], stage=stage), *steps[i + 1 :])
