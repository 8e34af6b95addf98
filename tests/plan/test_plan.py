"""Tests of plans: errors, comparison, and random plans with their derived plans against dense matrices."""

import math
import re
from dataclasses import dataclass, replace

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._backend.base import Call
from decompops._basis.cosine import Cosine, RealToReal, Sine
from decompops._basis.fourier import DFT, Fourier
from decompops._common.blocks import Blocks
from decompops._core.primitive import apply
from decompops._plan.plan import Plan
from decompops._plan.stage import AbstractStage, Clear, Crop, Extend, LocalTransform, Move, Resize, Scale
from decompops._plan.transform import transform_plan
from hypothesis import HealthCheck, given, settings, strategies as st

from dense import apply_plan, as_matrix, conjugated, units
from helpers import assert_close, make_mesh, random_field


C64, C128, F32, F64 = (np.dtype(name) for name in ("complex64", "complex128", "float32", "float64"))
BLOCKS = Blocks((4, 6, 6), (2, 1, 1), ("x", None, None))
HALF = replace(BLOCKS, lengths=(4, 6, 4))
WIDE = replace(BLOCKS, halo=((1, 1), (0, 0), (0, 0)))
C2C, R2C = LocalTransform(BLOCKS, BLOCKS, (1,), DFT("c2c", -1)), LocalTransform(BLOCKS, HALF, (2,), DFT("r2c", -1))
C2R = R2C.transpose()
EXTEND = Extend(BLOCKS, WIDE, 0, True)


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("must each start from the blocks after the previous one; got stage 0, which starts from", (C2R,)),
        ("must each start from the blocks after the previous one; got stage 1, which starts from", (R2C, C2C)),
        (f"after {WIDE}.", (C2C, EXTEND, C2C)),
    ],
)
def test_stages_that_do_not_fit_are_refused(text, stages):
    with pytest.raises(ValueError, match=re.escape(text)):
        Plan("Thing", BLOCKS, stages)


def test_objects_that_are_not_stages_are_refused(plain):
    make, clear = plain._plan.plan.Plan, plain._plan.stage.Clear(BLOCKS)
    with pytest.raises(TypeError, match=r"`stages` of `Thing` must be a tuple of stages; got \[Clear"):
        make("Thing", BLOCKS, [clear])
    with pytest.raises(TypeError, match="`stages` of `Thing` must be stages; got 3 at 1"):
        make("Thing", BLOCKS, (clear, 3))
    with pytest.raises(TypeError, match=r"`stages` of `Thing` must be stages; got <class .*Clear'> at 0"):
        make("Thing", BLOCKS, (type(clear),))


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan])
def test_the_scale_must_be_finite(scale):
    with pytest.raises(ValueError, match=f"`scale` of `Thing` must be finite; got {scale}"):
        Plan("Thing", BLOCKS, (), scale)


def test_plans_are_compared_by_all_fields():
    plan = Plan("Thing", BLOCKS, (C2C,), 2.0)
    same = Plan("Thing", replace(BLOCKS), (replace(C2C),), 2.0)
    assert plan == same
    assert hash(plan) == hash(same)
    others = [replace(plan, name="Other"), replace(plan, scale=1.0), plan.conjugate(), replace(plan, stages=())]
    assert len({plan, same, *others}) == 5
    assert plan.source == plan.target == BLOCKS
    assert Plan("Thing", BLOCKS, (R2C,)).target == HALF
    assert plan.mesh_axes == ("x",)


def test_one_plan_after_another():
    forward, back = Plan("F", BLOCKS, (R2C,), 2.0), Plan("B", HALF, (C2R,), 3.0)
    assert forward.then(back, "Both") == Plan("Both", BLOCKS, (R2C, C2R), 6.0)
    with pytest.raises(ValueError, match=r"`stages` of `Twice` must each start from the blocks .*; got stage 1"):
        forward.then(forward, "Twice")


def test_plans_without_an_inverse():
    plan = Plan("Thing", BLOCKS, (C2C, EXTEND))
    assert not plan.is_invertible
    with pytest.raises(ValueError, match="`Thing` has no inverse, because `Extend` has none"):
        plan.inverse()
    plan = Plan("Zero", BLOCKS, (C2C,), 0.0)
    assert not plan.is_invertible
    with pytest.raises(ValueError, match="`Zero` has no inverse, because it multiplies by 0"):
        plan.inverse()


def test_dtypes():
    """A plan casts its input to the dtype that its stages need. The first stage that needs a certain dtype decides."""
    complex_, real = Plan("C", BLOCKS, (Clear(BLOCKS), C2C)), Plan("R", BLOCKS, (Clear(BLOCKS), R2C, C2R))
    assert [complex_.input_dtype(np.dtype(d)) for d in ("float32", "int64", "complex128")] == [C64, C128, C128]
    assert [real.input_dtype(np.dtype(d)) for d in ("float32", "int64")] == [F32, F64]
    assert [complex_.result_dtype(C64), real.result_dtype(F32)] == [C64, F32]
    with pytest.raises(TypeError, match="`x` must be real"):
        real.input_dtype(C64)
    # A real-to-real transform may precede a transform that needs complex numbers.
    cosine = LocalTransform(BLOCKS, BLOCKS, (2,), RealToReal("dct", 2))
    mixed = Plan("Mixed", BLOCKS, (cosine, C2C))
    assert [mixed.input_dtype(np.dtype(d)) for d in ("float32", "int8", "complex64")] == [C64, C128, C64]
    # Without a transform, integers can be moved but not scaled.
    move = Plan("Moved", BLOCKS, (Clear(BLOCKS),))
    assert move.input_dtype(np.dtype("int8")) == np.dtype("int8")
    with pytest.raises(TypeError, match=re.escape("to be multiplied by 0.5; got int8")):
        replace(move, scale=0.5).input_dtype(np.dtype("int8"))
    assert replace(real, scale=0.5).input_dtype(np.dtype("int64")) == F64


@pytest.mark.parametrize("dtype", [F64, C128])
def test_stages_whose_dtypes_do_not_fit_are_refused(dtype):
    # A plan must not silently make a real result complex again, because the transpose of the plan would get complex
    # numbers where real numbers are needed.
    plan = Plan("Back", HALF, (C2R, C2C))
    text = "its stage `LocalTransform` needs complex128, but the stages before it return float64"
    with pytest.raises(TypeError, match=re.escape(text)):
        plan.input_dtype(dtype)
    with pytest.raises(TypeError, match="`x` must be real for a real transform"):
        Plan("Twice", BLOCKS, (C2C, R2C)).input_dtype(dtype)


@dataclass(frozen=True)
class Reverse(AbstractStage):
    """A stage that reverses each line of every block, defined as another package would define it."""

    before: Blocks
    result: str = "right"

    @property
    def after(self):
        return self.before

    def transpose(self):
        return self

    def apply(self, block):
        return {"right": block[..., ::-1], "short": block[..., 1:], "real": block.real}[self.result]


@dataclass(frozen=True)
class Nothing(AbstractStage):
    """A stage that no backend can run."""

    before: Blocks

    @property
    def after(self):
        return self.before

    def transpose(self):
        return self


def run(plan, x):
    return apply(Call(plan, make_mesh((2,)), dops.XLA()), jnp.asarray(x))


def test_stages_of_other_packages():
    x = np.random.default_rng(0).standard_normal((4, 6, 6)) + 1j
    plan = Plan("Mirror", BLOCKS, (Reverse(BLOCKS), C2C), 2.0)
    np.testing.assert_allclose(run(plan, x), 2 * np.fft.fft(x[..., ::-1], axis=1), atol=1e-12)
    with pytest.raises(TypeError, match=r"the stage `Nothing` is unknown to this backend. Define `apply\(block\)`"):
        run(Plan("Thing", BLOCKS, (Nothing(BLOCKS),)), x)
    for result, got in (("short", "complex128(2, 6, 5)"), ("real", "float64(2, 6, 6)")):
        text = f"the stage `Reverse` of `Mirror` must return a block complex128(2, 6, 6); got {got}."
        with pytest.raises(ValueError, match=re.escape(text)):
            run(Plan("Mirror", BLOCKS, (Reverse(BLOCKS, result),)), x)
    with pytest.raises(ValueError, match="`Mirror` has no inverse, because `Reverse` has none"):
        plan.inverse()


def test_operators_and_stages_that_return_nothing_are_refused(plain):
    @dataclass(frozen=True)
    class Lost(plain._plan.stage.AbstractStage):
        before: object

        @property
        def after(self):
            return self.before

        def transpose(self):
            return self

        def apply(self, block):
            pass

    class Own(plain._operator.planned.AbstractPlanned):
        decomposition: object
        lost: bool

        def plan(self):
            blocks = self.decomposition.blocks()
            return plain._plan.plan.Plan("Own", blocks, (Lost(blocks),)) if self.lost else None

    dec, u = plain.Decomposition(make_mesh((1, 1)), shape=(2, 2, 2)), np.ones((2, 2, 2))
    with pytest.raises(TypeError, match=r"`Own.plan` must return a `Plan`; got None"):
        Own(dec, False)(u)
    with pytest.raises(ValueError, match=r"the stage `Lost` of `Own` must return a block float64\(2, 2, 2\); got None"):
        Own(dec, True)(u)


def moves_from(blocks):
    """Yield the blocks after each possible move of a mesh axis to a grid axis that is not sharded."""
    for giver in (axis for axis in range(blocks.ndim) if blocks.parts[axis] > 1):
        for taker in (axis for axis in range(blocks.ndim) if blocks.parts[axis] == 1):
            there = dict(zip((giver, taker), (taker, giver)))
            parts, names = (
                tuple(values[there.get(axis, axis)] for axis in range(blocks.ndim))
                for values in (blocks.parts, blocks.names)
            )
            yield replace(blocks, parts=parts, names=names)


def random_plan(draw):
    """Draw stages that fit together, on a mesh of up to eight devices, and the dtype of their input."""
    ndim = draw(st.sampled_from([3, 4, 2]))
    sizes = draw(st.sampled_from([(2,), (3,), (2, 2), (4, 2), (2, 2, 2)]).filter(lambda sizes: len(sizes) < ndim))
    names = ("c", "x", "y") if len(sizes) == 3 else ("x", "y")[: len(sizes)]
    lengths = tuple(draw(st.integers(1, {2: 5, 3: 3, 4: 2}[ndim])) for _ in range(ndim))
    rest = ndim - len(sizes)
    order = tuple(draw(st.permutations(range(ndim))))
    blocks = Blocks(lengths, (*sizes, *[1] * rest), (*names, *[None] * rest), order)
    source, dtype, stages = blocks, draw(st.sampled_from([F64, C128])), []
    current = dtype
    for _ in range(draw(st.integers(3, 5))):
        whole = [axis for axis in range(ndim) if blocks.parts[axis] == 1]
        kinds = ["extend", "clear", "scale"] if blocks.has_halo else ["extend", "move", "transform", "resize", "clear"]
        match draw(st.sampled_from([*kinds, "crop"] if blocks.has_halo else kinds)):
            case "move":
                found = list(moves_from(blocks))
                target = draw(st.sampled_from(found)) if found else blocks
                stage = Move(blocks, replace(target, order=tuple(draw(st.permutations(range(ndim))))))
            case "transform" if current == C128:
                axes = tuple(draw(st.lists(st.sampled_from(whole), min_size=1, unique=True)))
                stage = LocalTransform(blocks, blocks, axes, DFT("c2c", draw(st.sampled_from([-1, 1]))), 0.5)
            case "transform":
                axis = draw(st.sampled_from(whole))
                if draw(st.booleans()):
                    transform = RealToReal(draw(st.sampled_from(["dct", "dst"])), draw(st.integers(2, 4)))
                    stage = LocalTransform(blocks, blocks, (axis,), transform)
                else:
                    stored = tuple(n // 2 + 1 if i == axis else n for i, n in enumerate(blocks.lengths))
                    stage = LocalTransform(blocks, replace(blocks, lengths=stored), (axis,), DFT("r2c", -1))
            case "resize":
                axis = draw(st.sampled_from(whole))
                n = blocks.lengths[axis]
                kept = draw(st.integers(1, n))
                runs = Fourier().truncation(n, kept, nyquist=draw(st.booleans()))
                after = replace(blocks, lengths=tuple(kept if i == axis else m for i, m in enumerate(blocks.lengths)))
                stage = Resize(blocks, after, (axis,), (runs,))
            case "extend":
                axis = draw(st.sampled_from(range(ndim)))
                if any(blocks.halo[axis]):
                    continue
                pair = draw(st.tuples(st.integers(0, 2), st.integers(0, 1)))
                halo = tuple(pair if i == axis else own for i, own in enumerate(blocks.halo))
                stage = Extend(blocks, replace(blocks, halo=halo), axis, draw(st.booleans()))
            case "crop":
                stage = Crop(blocks, replace(blocks, halo=((0, 0),) * ndim))
            case "clear" if not blocks.has_halo:
                stage = Clear(blocks)
            case _:
                stage = Scale(blocks, -2.0)
        stages.append(stage)
        blocks, current = stage.after, stage.result_dtype(current)
    return make_mesh(sizes), Plan("Random", source, tuple(stages), draw(st.sampled_from([1.0, 3.0]))), dtype


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_plans(data):
    mesh, plan, dtype = random_plan(data.draw)
    result = plan.result_dtype(dtype)
    assert plan.input_dtype(dtype) == dtype
    x, y = units(plan.source, dtype), units(plan.target, result)

    def apply_to(plan, x):
        return apply(Call(plan, mesh, dops.XLA()), x)

    def programs(x, y):
        found = {
            "itself": apply_to(plan, x),
            "transpose": apply_to(plan.transpose(), y),
            "conjugate": apply_to(plan.conjugate(), x),
            # A plan is linear, so it is its own linearization at any point. Members of a batch are independent.
            "jvp": jax.jvp(lambda x: apply_to(plan, x), (0 * x,), (x,))[1],
            "vjp": jax.vmap(lambda y: jax.vjp(lambda x: apply_to(plan, x), 0 * x[0])[1](y)[0])(y),
        }
        return found | ({"inverse": apply_to(plan.inverse(), y)} if plan.is_invertible else {})

    found = {name: as_matrix(value) for name, value in jax.jit(programs)(x, y).items()}
    matrix = as_matrix(apply_plan(plan, x))
    transpose = conjugated(matrix.T, dtype, result)
    expected = {
        "itself": matrix,
        "transpose": transpose,
        "conjugate": conjugated(matrix, result, dtype),
        "jvp": matrix,
        "vjp": transpose,
    }
    inverse = found.pop("inverse", None)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-12 * abs(matrix).max(initial=1), err_msg=name)
    if inverse is not None and not any(isinstance(stage, Resize) for stage in plan.stages):
        # The inverse undoes the plan for every result of the plan. Values that the plan removes are not restored.
        np.testing.assert_allclose(matrix @ inverse @ matrix, matrix, rtol=0, atol=1e-10 * abs(matrix).max(initial=1))
    assert plan.transpose().transpose() == plan
    assert plan.conjugate().conjugate() == plan


def mixed_transform():
    """Return a plan of four axes in four bases. Two mesh axes shard one grid axis; a third mesh axis shards another."""
    shape = (4, 4, 4, 2)
    bases = (Cosine(2), Fourier(), Sine(3), Fourier(half=True))
    source = Blocks(shape, (4, 2, 1, 1), (("c", "x"), "y", None, None))
    stored = tuple(basis.stored(n) for basis, n in zip(bases, shape))
    target = Blocks(stored, (1, 2, 4, 1), (None, "y", ("c", "x"), None), (1, 2, 3, 0))
    plan = transform_plan("Mixed", source, target, bases, shape, scale=0.5)
    last = Move(target, replace(target, parts=(1, 4, 2, 1), names=(None, ("y", "x"), "c", None)))
    return plan.then(Plan("Part", target, (last,)), "Mixed")


def test_all_derivatives_of_a_mixed_transform():
    """Compare the derived plans, and derivatives up to second order, with one dense matrix."""
    plan, mesh = mixed_transform(), make_mesh((2, 2, 2))
    assert [stage.is_partial for stage in plan.stages if isinstance(stage, Move)].count(True) == 1

    def apply_to(plan, x):
        return apply(Call(plan, mesh, dops.XLA()), x)

    def energy(x):  # This is the energy of the transformed square of x.
        return jnp.sum(jnp.abs(apply_to(plan, x * x)) ** 2) / 2

    @jax.jit
    def programs(x, y, u, v):
        slope = jax.grad(energy)
        return {
            "itself": apply_to(plan, x),
            "transpose": apply_to(plan.transpose(), y),
            "conjugate": apply_to(plan.conjugate(), x),
            "inverse": apply_to(plan.inverse(), y),
            "adjoint": apply_to(plan.transpose().conjugate(), y),
        }, {
            "grad": slope(u),
            "jvp of grad": jax.jvp(slope, (u,), (v,))[1],
            "vjp of grad": jax.vjp(slope, u)[1](v)[0],
            "grad of jvp": jax.grad(lambda u: jax.jvp(energy, (u,), (v,))[1])(u),
            "vjp of the transform": jax.vmap(lambda y: jax.vjp(lambda x: apply_to(plan, x), u)[1](y)[0])(y[:2]),
        }

    x, y = units(plan.source, F64), units(plan.target, C128)
    u, v = (random_field(plan.source.shape, seed=seed) for seed in range(2))
    forms, derivatives = jax.tree.map(np.asarray, programs(x, y, u, v))
    matrix = as_matrix(apply_plan(plan, x))
    # `matrix` maps real and imaginary parts, so its transpose is the adjoint. JAX's transpose does not conjugate.
    expected = {
        "itself": matrix,
        "transpose": conjugated(matrix.T, F64, C128),
        "conjugate": conjugated(matrix, C128, F64),
        "inverse": np.linalg.pinv(matrix),
        "adjoint": matrix.T,
    }
    normal, u, v = matrix.T @ matrix, u.ravel(), v.ravel()
    curvature = 2 * v * (normal @ u**2) + 4 * u * (normal @ (u * v))
    expected |= dict.fromkeys(["jvp of grad", "vjp of grad", "grad of jvp"], curvature)
    expected |= {"grad": 2 * u * (normal @ u**2), "vjp of the transform": conjugated(matrix.T, F64, C128)[:, :2].T}
    found = {name: as_matrix(values) for name, values in forms.items()}
    # The inverse is tested on results of the plan.
    found["inverse"] = found["inverse"] @ matrix @ expected["inverse"]
    for name, values in (found | derivatives).items():
        assert_close(values.reshape(expected[name].shape), expected[name], 1e-11)
