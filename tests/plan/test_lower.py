"""Tests of each pass that lowers a plan. The steps after a pass compute the same as the steps before it."""

import functools
import re
from dataclasses import dataclass, field, replace

import decompops as dops
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._backend.base import AbstractBackend, Call
from decompops._backend.xla.backend import run_stage
from decompops._basis.cosine import RealToReal
from decompops._basis.fourier import DFT, Fourier
from decompops._basis.mixed import Mixed
from decompops._common.blocks import Blocks
from decompops._core.primitive import apply
from decompops._plan.lower import Chunks, Segment, Step, _exchanges, computed, fused, joined, scaled, schedule, split
from decompops._plan.plan import Plan
from decompops._plan.stage import Clear, LocalTransform, Move, Resize, Scale
from jax.sharding import AbstractMesh

from dense import apply_plan, apply_stage
from helpers import make_mesh, random_field


Z = Blocks((4, 3, 5), (2, 1, 1), ("x", None, None))
Y = Blocks((4, 3, 5), (1, 2, 1), (None, "x", None))
SHORT = replace(Y, lengths=(2, 3, 5))
FORWARD, BACK = LocalTransform(Z, Z, (1, 2), DFT("c2c", -1)), LocalTransform(Y, Y, (0,), DFT("c2c", 1))
MOVE, CUT = Move(Z, Y), Resize(Y, SHORT, (0,), (Fourier().truncation(4, 2, nyquist=False),))
ADD = Resize(Y, SHORT, (0,), (Fourier().truncation(4, 2, nyquist=True),))
CLEAR = Clear(Z)
STAGES = (CLEAR, FORWARD, MOVE, BACK, CUT)
PLAN = Plan("Thing", Z, STAGES, 0.5)
WEIGHTED = LocalTransform(Y, replace(Y, lengths=(3, 3, 5)), (0,), DFT("r2c", 1, weighted=True))


def xla(stages):
    return 0


def every(stages):
    return len(stages)


def moves(stages):
    return int(isinstance(stages[0], Move))


def transforms_with_their_moves(stages):
    """Take two transforms and the move between them, as a library with its own exchanges would."""
    kinds = tuple(type(stage) for stage in stages[:3])
    return 3 if kinds == (LocalTransform, Move, LocalTransform) else 0


def steps(*stages, kernel=None):
    return tuple(Step(stage, kernel) for stage in stages)


def product(steps, scale=1.0):
    """Run the steps on a random input."""
    u = random_field(Z.shape, np.complex128)
    return scale * functools.reduce(lambda u, step: apply_stage(step.stage, u), steps, u)


@pytest.mark.parametrize(
    ("takes", "kernels"),
    [
        (xla, (None,) * 5),
        (every, (0,) * 5),
        (moves, (None, None, 2, None, None)),
        (transforms_with_their_moves, (None, 1, 1, 1, None)),
    ],
)
def test_split(takes, kernels):
    assert split(STAGES, takes) == tuple(map(Step, STAGES, kernels))


@pytest.mark.parametrize("count", [6, -1, None])
def test_takes_must_return_how_many_stages_it_takes(count):
    with pytest.raises(ValueError, match=f"`takes` must return how many of 5 stages a kernel runs; got {count}"):
        split(STAGES, lambda stages: count)


def test_computed():
    """`computed` marks that XLA's inverse transforms divide by the number of points. Kernels do not divide."""
    before = steps(*STAGES)
    after, factor = computed(before, "cpu")
    divided = replace(BACK, transform=DFT("c2c", 1, normalised=True))
    assert after == steps(CLEAR, FORWARD, MOVE, divided, CUT)
    assert factor == 4.0
    np.testing.assert_allclose(product(after, factor), product(before), atol=1e-12)
    assert computed(steps(*STAGES, kernel=0), "cpu") == (steps(*STAGES, kernel=0), 1.0)
    assert computed((), "cpu") == ((), 1.0)


def test_computed_cleans_the_modes_that_gpu_libraries_may_read():
    half = replace(Z, lengths=(4, 3, 3))
    one = LocalTransform(half, Z, (2,), DFT("c2r", 1))
    two = LocalTransform(half, Z, (1, 2), DFT("c2r", 1))
    for stage, clean in ((one, True), (two, False)):
        ((step,), factor) = computed(steps(stage), "gpu")
        assert step.stage.transform == DFT("c2r", 1, normalised=True, clean=clean)
        assert factor == np.prod(stage.points)
    # On CPUs, `clean` does not change the result, for odd and even numbers of points.
    for points in (4, 5):
        block = jnp.asarray(random_field((2, points // 2 + 1), np.complex128))
        values = [DFT("c2r", 1, clean=clean).apply(block, (-1,), (points,)) for clean in (False, True)]
        np.testing.assert_allclose(*values, atol=1e-12)


@pytest.mark.parametrize("n", [4, 5])
@pytest.mark.parametrize("kind", ["dct", "dst"])
@pytest.mark.parametrize(
    ("cosines", "axes", "half"),
    [
        (((0, 0), 1), (0, 2), True),
        (((1, -1), 2), (0, 1), True),  # The half spectrum is not along the last axis.
        (((-1, 1), 2), (1,), True),
        (((0, 2), 2), (0, 1), False),
    ],
)
def test_joined(n, kind, cosines, axes, half):
    """One FFT computes a cosine or sine transform together with Fourier transforms: forward, inverse and transposed.

    The results equal products with NumPy's matrices along one axis after the other.
    """
    weights, wall = cosines
    blocks = Blocks((3, n, 6), (1, 1, 1), (None, None, None))
    short = replace(
        blocks, lengths=tuple(m // 2 + 1 if half and axis == axes[-1] else m for axis, m in enumerate(blocks.lengths))
    )
    fourier = DFT("r2c" if half else "c2c", -1, weighted=half)
    there = (
        LocalTransform(blocks, blocks, (wall,), RealToReal(kind, 2, *weights), 2.0),
        LocalTransform(blocks, short, axes, fourier, 0.5),
    )
    back = tuple(stage.inverse()[0] for stage in reversed(there))
    transposed = tuple(stage.transpose() for stage in reversed(there))
    cases = [there, back]
    if half:
        cases += [transposed, (there[0], there[1].conjugate())]
    for stages in cases:
        (step,) = joined(steps(*stages))
        assert isinstance(step.stage.transform, Mixed)
        real = half and stages[0] is there[0]
        u = random_field(stages[0].before.shape, np.float64 if real else np.complex128)
        expected = functools.reduce(lambda u, stage: apply_stage(stage, u), stages, u)
        found = run_stage(step.stage, jnp.asarray(u), "cpu")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * abs(expected).max())


def test_not_joined():
    one, two = (LocalTransform(Y, Y, (2,), RealToReal("dct", type)) for type in (2, 1))
    real, waves = LocalTransform(Y, replace(Y, lengths=(3, 3, 5)), (0,), DFT("r2c", -1)), DFT("c2c", -1)
    long = Blocks((300, 4), (1, 1), (None, None))
    across = steps(replace(one, before=long, after=long, axes=(0,)), LocalTransform(long, long, (1,), waves))
    assert len(joined(steps(one, real))) == len(joined(across)) == 1
    assert joined(()) == ()
    for apart in (
        steps(one, real, kernel=0),
        (*steps(one), *steps(real, kernel=0)),
        steps(two, real),
        steps(one, MOVE.transpose(), FORWARD),
        steps(one, LocalTransform(Y, Y, (0,), replace(waves, sign=1))),
        steps(LocalTransform(Y, Y, (0,), waves), one),
        steps(replace(one, axes=(0,)), LocalTransform(Y, Y, (2,), waves)),
    ):
        assert joined(apart) == apart
    four = Blocks((2, 3, 2, 2), (1,) * 4, (None,) * 4)
    # One FFT transforms at most three axes, and at most one axis with walls.
    for walls, others in (((1, 2), (0,)), ((3,), (0, 1, 2))):
        apart = steps(LocalTransform(four, four, walls, one.transform), LocalTransform(four, four, others, waves))
        assert joined(apart) == apart


def test_fused():
    assert fused(steps(*STAGES), "cpu") == steps(*STAGES)
    copied = replace(CUT, fused=True)
    assert fused(steps(*STAGES), "gpu") == steps(*STAGES[:-1], copied)
    assert fused(steps(MOVE, CUT), "gpu") == steps(MOVE, replace(copied, arrived=0))
    assert fused(steps(CUT), "gpu") == steps(copied)
    assert fused(steps(MOVE, ADD), "gpu") == steps(MOVE, ADD)  # Only copies are fused, and `ADD` sums cells.
    assert fused(steps(MOVE, CUT, kernel=0), "gpu") == steps(MOVE, CUT, kernel=0)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("after_a_move", [False, True])
def test_fused_copies_give_the_same_result(mirrored, after_a_move):
    stages = (MOVE.transpose(), MOVE, CUT) if after_a_move else (CUT,)
    plan = Plan("Cut", Y, stages)
    plan = plan.transpose() if mirrored else plan
    # A `Resize` copies runs of cells, which may be listed in any order.
    plan = replace(plan, stages=tuple(backwards(s) if isinstance(s, Resize) else s for s in plan.stages))
    lowered = Plan("Cut", plan.source, tuple(s.stage for s in fused(steps(*plan.stages), "gpu")))
    u = random_field(plan.source.shape, np.complex128)
    got = apply(Call(lowered, make_mesh((2,)), dops.XLA()), jnp.asarray(u))
    np.testing.assert_array_equal(got, apply_plan(plan, u))


def backwards(stage):
    return replace(stage, runs=tuple(runs[::-1] for runs in stage.runs))


def test_scaled():
    """One of the transforms also multiplies by the scale. A transform with weights is preferred.

    If there are no transforms, an additional step multiplies.
    """
    assert scaled(steps(*STAGES), 1.0, SHORT) == steps(*STAGES)
    assert scaled(steps(*STAGES), 3 * (1 / 3) + 1e-16, SHORT) == steps(*STAGES)
    twice = replace(FORWARD, scale=2.0)
    assert scaled(steps(*STAGES), 2.0, SHORT) == steps(CLEAR, twice, *STAGES[2:])
    assert scaled(steps(twice), 3.0, Z) == steps(replace(FORWARD, scale=6.0))
    weighted = scaled(steps(FORWARD, MOVE, WEIGHTED, kernel=4), 2.0, WEIGHTED.after)
    assert weighted == steps(FORWARD, MOVE, replace(WEIGHTED, scale=2.0), kernel=4)
    assert scaled(steps(MOVE, kernel=0), 2.0, Y) == (*steps(MOVE, kernel=0), Step(Scale(Y, 2.0)))
    assert scaled((), 2.0, Z) == steps(Scale(Z, 2.0))
    for before in (steps(*STAGES), steps(CLEAR, MOVE)):
        after = scaled(before, 2.0, before[-1].stage.after)
        np.testing.assert_allclose(product(after), product(before, 2.0), atol=1e-12)


def test_schedule():
    divided = replace(BACK, transform=DFT("c2c", 1, normalised=True))
    twice = replace(FORWARD, scale=2.0)  # This scale is 0.5 times 4, because XLA's inverse divides by 4 points.

    def segment(native, *stages):
        return Segment(Plan("Thing", stages[0].before, stages), native)

    assert schedule(PLAN, xla, "cpu") == (segment(False, CLEAR, twice, MOVE, divided, CUT),)
    middle = segment(True, MOVE)
    assert schedule(PLAN, moves, "cpu") == (segment(False, CLEAR, twice), middle, segment(False, divided, CUT))
    whole = segment(True, replace(FORWARD, scale=0.5), MOVE, BACK)
    assert schedule(PLAN, transforms_with_their_moves, "cpu") == (segment(False, CLEAR), whole, segment(False, CUT))
    # The stages of each kernel are a segment.
    two = Plan("Thing", Z, (MOVE, MOVE.transpose()))
    assert schedule(two, moves, "cpu") == (segment(True, MOVE), segment(True, MOVE.transpose()))
    assert schedule(two, every, "cpu") == (segment(True, *two.stages),)
    assert schedule(Plan("Thing", Z, ()), every, "cpu") == ()
    for takes in (xla, moves, transforms_with_their_moves, every):
        for platform in ("cpu", "gpu"):
            found = [stage for part in schedule(PLAN, takes, platform) for stage in part.plan.stages]
            np.testing.assert_allclose(product(steps(*found)), product(steps(*STAGES), 0.5), atol=1e-12)


@dataclass(frozen=True)
class Kernels(AbstractBackend):
    """A backend that takes as many stages as `function` returns, runs these stages with XLA, and records the plans."""

    function: object
    ran: list = field(default_factory=list, compare=False)
    broken: bool = False

    def problem(self):
        return None

    def check(self, mesh):
        pass

    def takes(self, stages):
        return self.function(stages)

    def run(self, plan, block, call):
        self.ran.append((plan, call.plan))
        for stage in plan.stages:
            block = run_stage(stage, block, call.platform)
        return block.real if self.broken else block


@dataclass(frozen=True)
class Unfinished(Kernels):
    run = AbstractBackend.run


@pytest.mark.parametrize("takes", [xla, moves, transforms_with_their_moves, every])
def test_a_backend_runs_what_it_takes(takes):
    u = random_field(Z.shape, np.complex128)
    backend = Kernels(takes)
    got = apply(Call(PLAN, make_mesh((2,)), backend), jnp.asarray(u))
    np.testing.assert_allclose(got, apply_plan(PLAN, u), atol=1e-12)
    native = [part.plan for part in schedule(PLAN, takes, "cpu") if part.native]
    assert backend.ran == [(plan, PLAN) for plan in native]


def test_a_backend_must_return_the_shape_and_dtype_of_its_stages():
    u = jnp.asarray(random_field(Z.shape, np.complex128))
    text = "`Kernels.run` must return a block complex128(2, 2, 5); got float64(2, 2, 5)."
    with pytest.raises(ValueError, match=re.escape(text)):
        apply(Call(PLAN, make_mesh((2,)), Kernels(every, broken=True)), u)
    with pytest.raises(NotImplementedError, match="`Unfinished` takes stages, and must have a method `run`"):
        apply(Call(PLAN, make_mesh((2,)), Unfinished(every)), u)


class TestWire:
    """Tests that exchanges in a narrower dtype are separate segments."""

    @pytest.mark.parametrize("overlap", [1, 2])
    def test_one_segment_for_each_exchange(self, overlap):
        fft = dops.FFT3D(AbstractMesh((2, 4), ("x", "y")), shape=(8, 8, 8), backend=dops.XLA())
        forward = fft.plan()
        asked = []

        def takes(stages):
            asked.append(stages)
            return len(stages)

        def segments(takes):
            parts = schedule(forward, takes, "cpu", overlap, wire="float16")
            for part in parts:
                yield from (part.pieces[0][1] if isinstance(part, Chunks) else (part,))

        for choice, native in ((takes, True), (lambda stages: 0, False)):
            found = list(segments(choice))
            narrow = [segment for segment in found if segment.wire]
            assert len(narrow) == 2
            assert {segment.wire for segment in narrow} == {"float16"}
            assert all(isinstance(segment.plan.stages[0], Move) for segment in narrow)
            assert all(len(segment.plan.stages) == 1 and segment.native == native for segment in narrow)
            others = [stage for segment in found if not segment.wire for stage in segment.plan.stages]
            assert not any(isinstance(stage, Move) and stage.mesh_axis is not None for stage in others)
        # The lowering never asks a backend whether it runs an exchange together with other stages.
        assert all(len(stages) == 1 or not any(map(_exchanges, stages)) for stages in asked)

    @pytest.mark.parametrize("overlap", [1, 2])
    def test_kernels_that_narrow_run_whole_plans(self, overlap):
        plan = dops.FFT3D(AbstractMesh((2, 4), ("x", "y")), shape=(8, 8, 8), backend=dops.XLA()).plan()
        (segment,) = schedule(plan, len, "cpu", overlap, wire="float16", narrows=True)
        assert isinstance(segment, Segment)
        assert (segment.native, segment.wire) == (True, None)
        # XLA casts before and after the exchanges that no kernel runs.
        without = [schedule(plan, lambda stages: 0, "cpu", overlap, wire="float16", narrows=x) for x in (True, False)]
        assert without[0] == without[1]

    def test_without_it_nothing_changes(self):
        assert schedule(PLAN, lambda stages: 0, "cpu", wire=None) == schedule(PLAN, lambda stages: 0, "cpu")
