"""Tests of each stage with its transpose, conjugate and inverse, against the matrices of `tests/support/dense.py`."""

import functools
import re
from dataclasses import replace

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._backend.base import Call
from decompops._basis.base import Run
from decompops._basis.fourier import DFT, Fourier
from decompops._common.blocks import Blocks
from decompops._core.primitive import apply
from decompops._plan.plan import Plan
from decompops._plan.stage import AbstractStage, Clear, Crop, Extend, LocalTransform, Move, Resize, Scale

from dense import apply_stage, as_matrix, conjugated, true_subspace, units
from helpers import make_mesh, thinned


C128, F64 = np.dtype(np.complex128), np.dtype(np.float64)


def cut(lengths, names, sizes, order=(), halo=()):
    """Return `Blocks` on a mesh of `sizes`. `names` has a mesh axis for each grid axis, or "-" for no mesh axis."""
    parts = {"-": 1, **dict(zip("cxy" if len(sizes) == 3 else "xy", sizes))}  # `make_mesh` uses these names.
    mesh_axes = tuple(None if name == "-" else name for name in names)
    return Blocks(lengths, tuple(parts[name] for name in names), mesh_axes, order, halo)


def resize(blocks, lengths, half=(), nyquist=False):
    """Return the `Resize` from the spectrum of `blocks.lengths` points to the spectrum of fewer points, `lengths`."""
    axes = tuple(axis for axis, n in enumerate(lengths) if n != blocks.lengths[axis])
    bases = [Fourier(axis in half) for axis in range(blocks.ndim)]
    before, after = (
        replace(blocks, lengths=tuple(basis.stored(n) for basis, n in zip(bases, shape)))
        for shape in (blocks.lengths, lengths)
    )
    runs = tuple(bases[axis].truncation(blocks.lengths[axis], lengths[axis], nyquist=nyquist) for axis in axes)
    return Resize(before, after, axes, runs)


def moves():
    pencil = functools.partial(cut, (3, 5, 2), sizes=(2, 2))
    return (2, 2), {
        "z to y": Move(pencil("xy-"), pencil("x-y")),
        "z to y, stored otherwise": Move(pencil("xy-", order=(2, 0, 1)), pencil("x-y", order=(1, 2, 0))),
        "y to x": Move(pencil("x-y"), pencil("-xy", order=(1, 2, 0))),
        "storage only": Move(pencil("xy-"), pencil("xy-", order=(2, 1, 0))),
        "to the next but one axis": Move(pencil("xy-"), pencil("-yx")),
    }


def others():
    blocks = cut((3, 5, 2), "xy-", (2, 2))
    even = replace(blocks, lengths=(4, 4, 2))
    long = replace(blocks, halo=((1, 2), (0, 3), (2, 0)))
    only = replace(blocks, halo=((0, 0), (1, 2), (0, 0)))
    return (2, 2), {
        "crop": Crop(long, blocks),
        "clear": Clear(blocks),
        "clear nothing": Clear(even),
        "scale": Scale(blocks, -2.5),
        "two halos": Extend(only, replace(only, halo=((2, 1), (1, 2), (0, 0))), 0, True),
        "stored otherwise": Extend(
            replace(even, order=(2, 1, 0)), replace(even, order=(2, 1, 0), halo=((0, 0), (3, 1), (0, 0))), 1, False
        ),
    }


def halos(turn=0):
    """Return halos of every second combination, and of the others with `turn=1`."""
    found = {}
    for i, n in enumerate((6, 5, 1)):  # 6 is divided evenly, 5 is padded, and 1 is less than the number of devices.
        for j, halo in enumerate(((1, 0), (1, 2), (4, 9))):  # Nine layers are wider than the grid.
            periodic = (i + j + turn) % 2 == 0
            blocks = cut((2, n), "-x", (3,))
            long = replace(blocks, halo=((0, 0), halo))
            found[f"{n} cells, halo {halo}, {periodic=}"] = Extend(blocks, long, 1, periodic)
    whole = cut((2, 3), "x-", (3,))
    found["undivided"] = Extend(whole, replace(whole, halo=((0, 0), (1, 2))), 1, True)
    found["no layers"] = Extend(whole, whole, 1, True)
    return (3,), found


def transforms(turn=0):
    """Return transforms of every second combination, and of the others with `turn=1`."""
    found = {}
    sizes = (2,)
    for kind in ("c2c", "r2c", "c2r"):
        for sign in (-1, 1):
            for weighted in (False, True) if kind != "c2c" else (False,):
                for normalised in (False, True):
                    transform = DFT(kind, sign, weighted, normalised)
                    flags = f"{'weighted ' * weighted}{'normalised ' * normalised}"
                    for axes, points in (((1,), (3, 4)), ((2, 1), (3, 5, 2))):
                        if ((sign > 0) + weighted + normalised + len(axes) + turn) % 2:
                            continue
                        points = cut(points, "x--"[: len(points)], sizes)
                        last = {axes[-1]: points.lengths[axes[-1]] // 2 + 1}
                        half = replace(points, lengths=tuple(last.get(i, n) for i, n in enumerate(points.lengths)))
                        ends = {"c2c": (points, points), "r2c": (points, half), "c2r": (half, points)}[kind]
                        found[f"{kind} {sign:+d} {flags}along {axes}"] = LocalTransform(*ends, axes, transform, 0.5)
    blocks = cut((2, 3, 3), "--x", sizes, (2, 1, 0))
    found["stored otherwise"] = LocalTransform(blocks, blocks, (0, 1), DFT("c2c", -1))
    return sizes, found


def resizes():
    one, three = cut((2, 8), "x-", (2,)), cut((3, 6, 5), "x--", (2,), (0, 2, 1))
    return (2,), {
        **{
            f"{n} to {kept}, {half=}, {nyquist=}": resize(replace(one, lengths=(2, n)), (2, kept), half, nyquist)
            for n, kept in ((8, 4), (7, 4), (8, 5), (2, 1))
            for half in ((), (1,))
            for nyquist in (False, True)
        },
        "two axes": resize(three, (3, 4, 2), nyquist=True),
        "two axes, one halved": resize(three, (3, 4, 3), half=(2,)),
        "many to one": Resize(one, replace(one, lengths=(2, 3)), (1,), ((Run(1, 0, 2), Run(5, 0, 2, 3.0)),)),
    }


def four_axes():
    sizes = (2, 2, 2)
    pencil = functools.partial(cut, (3, 2, 2, 3), sizes=sizes)
    z, y = pencil("cxy-"), pencil("cx-y", order=(3, 1, 0, 2))
    half = replace(z, lengths=(3, 2, 2, 2))
    return sizes, {
        "move": Move(z, y),
        "c2c": LocalTransform(y, y, (2,), DFT("c2c", -1)),
        "r2c": LocalTransform(z, half, (3,), DFT("r2c", -1)),
        "extend": Extend(z, replace(z, halo=((1, 1), (0, 0), (0, 0), (0, 0))), 0, True),
        "crop": Crop(replace(z, halo=((1, 1), (0, 0), (0, 2), (0, 0))), z),
        "clear": Clear(z),
        "resize": Resize(z, half, (3,), ((Run(0, 0, 1), Run(2, 1, 1)),)),
    }


def moves_of_several_mesh_axes():
    """Return moves in which several mesh axes shard one grid axis before or after the move.

    These mesh axes move together, or only one of them moves. The new grid axis may already be sharded.
    """
    both = Blocks((4, 4, 2), (4, 2, 1), (("c", "x"), "y", None))
    part = replace(both, parts=(2, 4, 1), names=("c", ("y", "x"), None))
    long = replace(part, lengths=(2, 8, 1))
    return (2, 2, 2), {
        "both": Move(both, replace(both, parts=(1, 2, 4), names=(None, "y", ("c", "x")), order=(1, 2, 0))),
        "the minor one": Move(both, replace(both, parts=(2, 2, 2), names=("c", "y", "x"))),
        "behind another one": Move(both, part),
        "as the third one": Move(long, replace(long, parts=(1, 8, 1), names=(None, ("y", "x", "c"), None))),
    }


GROUPS = {f.__name__: f() for f in (moves, others, halos, transforms, resizes, four_axes, moves_of_several_mesh_axes)}
MORE = {"more_halos": halos(1), "more_transforms": transforms(1)}
CASES = [(group, name) for group, (_, stages) in (GROUPS | MORE).items() for name in stages]


def kinds_of(stage: AbstractStage):
    """Return the dtypes of input and result. They are complex, unless the stage takes or returns real numbers."""
    real = isinstance(stage, LocalTransform) and stage.transform.kind == "r2c"
    dtype = stage.input_dtype(F64 if real else C128)
    return dtype, stage.result_dtype(dtype)


def inverse_of(stage: AbstractStage):
    inverse = stage.inverse()
    return None if inverse is None else Plan("inverse", stage.after, (inverse[0],), inverse[1])


@functools.cache
def results(group: str):
    """Apply the stages of a group, and their transposes, conjugates and inverses, to unit vectors in one program."""
    sizes, stages = (GROUPS | MORE)[group]
    mesh, programs, inputs = make_mesh(sizes), {}, {}
    for name, stage in stages.items():
        dtypes = kinds_of(stage)
        forms = {"itself": stage, "transpose": stage.transpose(), "conjugate": stage.conjugate()}
        plans = {form: Plan(form, s.before, (s,)) for form, s in forms.items()}
        if (inverse := inverse_of(stage)) is not None:
            plans["inverse"] = inverse
        for form, plan in plans.items():
            dtype = dtypes[form in ("transpose", "inverse")]
            programs[name, form] = Call(plan, mesh, dops.XLA())
            inputs[name, form] = units(plan.source, dtype)
    run = jax.jit(lambda inputs: {key: apply(programs[key], x) for key, x in inputs.items()})
    return {key: np.asarray(y) for key, y in run(inputs).items()}


@pytest.mark.parametrize(
    ("group", "name"), thinned(CASES, lambda group, name: group not in MORE), ids=lambda text: text
)
def test_stage(group, name):
    stage = (GROUPS | MORE)[group][1][name]
    source, target = kinds_of(stage)
    found = {form: as_matrix(y) for (other, form), y in results(group).items() if other == name}
    expected = as_matrix(apply_stage(stage, units(stage.before, source)))
    assert results(group)[name, "itself"].dtype == target
    assert results(group)[name, "transpose"].dtype == source
    check = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-12 * max(1, abs(expected).max()))
    check(found["itself"], expected)
    # JAX pairs a cotangent with a tangent as Re(sum(ct * t)), without conjugation.
    check(found["transpose"], conjugated(expected.T, source, target))
    check(found["conjugate"], conjugated(expected, target, source))
    assert stage.transpose().transpose() == stage
    assert stage.conjugate().conjugate() == stage
    if "inverse" not in found:
        assert isinstance(stage, Extend | Crop)
        return
    inverse = found["inverse"]
    check(expected @ inverse @ expected, expected)
    check(inverse @ expected @ inverse, inverse)
    # The inverse always undoes transforms and scales. It undoes `Move` and `Clear` only without padding.
    if isinstance(stage, Move | Clear):
        check(inverse @ expected @ np.diag(true := true_subspace(stage.before, source)), np.diag(true))
    elif isinstance(stage, Resize):
        assert np.linalg.matrix_rank(expected) <= min(expected.shape)
    elif isinstance(stage, LocalTransform) and stage.transform.kind == "c2r":
        # The product in the other order is not the identity, because the transform ignores some imaginary parts.
        check(expected @ inverse, np.eye(len(expected)))
    else:
        check(inverse @ expected, np.eye(len(inverse)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "int8", "int64", "bool"])
def test_dtypes(dtype):
    dtype = jnp.zeros(0, dtype).dtype
    blocks = cut((2, 4), "x-", (2,))
    half = replace(blocks, lengths=(2, 3))
    c2c, r2c, c2r = (
        LocalTransform(*ends, (1,), DFT(kind, 1))
        for kind, ends in (("c2c", (blocks, blocks)), ("r2c", (blocks, half)), ("c2r", (half, blocks)))
    )
    spectrum = jnp.fft.fft(np.zeros(4, dtype)).dtype
    real = spectrum.type(0).real.dtype
    assert (c2c.input_dtype(dtype), c2c.result_dtype(spectrum)) == (spectrum, spectrum)
    assert (c2r.input_dtype(dtype), c2r.result_dtype(spectrum)) == (spectrum, real)
    for stage in (Move(blocks, replace(blocks, order=(1, 0))), Clear(blocks)):
        assert (stage.input_dtype(dtype), stage.result_dtype(dtype)) == (dtype, dtype)
    if dtype.kind == "c":
        with pytest.raises(TypeError, match="`x` must be real for a real transform; got complex64"):
            r2c.input_dtype(dtype)
    else:
        assert (r2c.input_dtype(dtype), r2c.result_dtype(real)) == (real, spectrum)
    if dtype.kind in "biu":
        with pytest.raises(TypeError, match=f"`x` must hold .* numbers to be multiplied by 2.0; got {dtype}"):
            Scale(blocks, 2.0).input_dtype(dtype)
    else:
        assert Scale(blocks, 2.0).input_dtype(dtype) == dtype


BLOCKS = cut((4, 6, 5), "xy-", (2, 2))
WIDE = replace(BLOCKS, halo=((1, 1), (0, 0), (0, 0)))
RUN = Run(0, 0, 3)


def shorter(*runs, axis=2, length=3):
    lengths = tuple(length if i == axis else n for i, n in enumerate(BLOCKS.lengths))
    return Resize(BLOCKS, replace(BLOCKS, lengths=lengths), (axis,), (runs,))


MISFITS = {
    "`Move` must move a field without halos": [
        lambda: Move(BLOCKS, replace(BLOCKS, lengths=(4, 6, 6))),
        lambda: Move(WIDE, replace(WIDE, order=(2, 1, 0))),
    ],
    "`Move` must move mesh axes from one grid axis to another, in one exchange": [
        lambda: Move(BLOCKS, cut((4, 6, 5), "-yx", (2, 3))),  # The numbers of devices differ.
        lambda: Move(BLOCKS, cut((4, 6, 5), "xy-", (4, 2))),
        lambda: Move(BLOCKS, cut((4, 6, 5), "yx-", (2, 2))),  # This change needs two moves.
        lambda: Move(BLOCKS, cut((4, 6, 5), "x--", (2, 2))),  # The mesh axis y moves to no other grid axis.
        lambda: Move(BLOCKS, cut((4, 6, 5), "-xy", (2, 2))),
    ],
    "`LocalTransform` must keep the blocks and the storage order of a field without halos": [
        lambda: LocalTransform(BLOCKS, replace(BLOCKS, order=(2, 1, 0)), (2,), DFT("c2c", 1)),
        lambda: LocalTransform(WIDE, WIDE, (2,), DFT("c2c", 1)),
    ],
    "`LocalTransform` must transform whole axes only": [
        lambda: LocalTransform(BLOCKS, BLOCKS, (1, 2), DFT("c2c", 1)),
        lambda: LocalTransform(BLOCKS, replace(BLOCKS, lengths=(4, 4, 5)), (2,), DFT("c2c", 1)),
    ],
    "`axes` of `LocalTransform` must be different axes of the grid, numbered from 0 to 2": [
        lambda: LocalTransform(BLOCKS, BLOCKS, (-1,), DFT("c2c", 1)),
        lambda: LocalTransform(BLOCKS, BLOCKS, (2, 2), DFT("c2c", 1)),
        lambda: LocalTransform(BLOCKS, BLOCKS, (3,), DFT("c2c", 1)),
        lambda: LocalTransform(BLOCKS, BLOCKS, (), DFT("c2c", 1)),
    ],
    "`Extend` must only add a halo to one axis": [
        lambda: Extend(BLOCKS, WIDE, 1, True),
        lambda: Extend(WIDE, replace(WIDE, halo=((2, 2), (0, 0), (0, 0))), 0, True),
        lambda: Extend(WIDE, BLOCKS, 0, True),
    ],
    "`axes` of `Extend` must be different axes of the grid": [lambda: Extend(BLOCKS, BLOCKS, -1, True)],
    "`Crop` must only remove halos": [
        lambda: Crop(WIDE, replace(BLOCKS, lengths=(4, 6, 4))),
        lambda: Crop(replace(WIDE, halo=((1, 1), (1, 1), (0, 0))), WIDE),
        lambda: Crop(BLOCKS, WIDE),
    ],
    "`Clear` must get a field without halos": [lambda: Clear(WIDE)],
    "`factor` of `Scale` must be finite; got inf": [lambda: Scale(BLOCKS, float("inf"))],
    "`Resize` must only change the lengths of whole axes": [
        lambda: shorter(RUN, axis=1, length=5),
        lambda: Resize(BLOCKS, replace(BLOCKS, lengths=(4, 6, 3)), (2,), ()),
        lambda: Resize(BLOCKS, replace(BLOCKS, lengths=(4, 5, 3)), (2,), ((RUN,),)),
    ],
    "`runs` of `Resize` must stay within the 5 -> 3 coefficients along axis 2, must not overlap in part": [
        lambda: shorter(Run(0, 0, 4)),
        lambda: shorter(Run(3, 0, 3)),
        lambda: shorter(Run(-1, 0, 3)),
        lambda: shorter(Run(0, 0, 2), Run(3, 1, 2)),
        lambda: shorter(Run(0, 0, 2), Run(1, 2, 1)),
        lambda: shorter(Run(0, 0, 0)),
        lambda: shorter(Run(0, 0, 3, 0.0)),
    ],
}


@pytest.mark.parametrize("text", MISFITS)
def test_invalid_stages_are_refused(text):
    for make in MISFITS[text]:
        with pytest.raises(ValueError, match=re.escape(text)):
            make()


def test_stages_without_an_inverse():
    assert Scale(BLOCKS, 0.0).inverse() is None
    assert LocalTransform(BLOCKS, BLOCKS, (2,), DFT("c2c", 1), 0.0).inverse() is None


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("`Blocks` must have one entry for each grid axis", ((4, 6), (2,), ("x", None))),
        ("`order` must have each of the 2 grid axes once; got (0, 0)", ((4, 6), (2, 1), ("x", None), (0, 0))),
        ("`lengths` and `parts` must be positive", ((4, 0), (2, 1), ("x", None))),
        ("`halo` not negative", ((4, 6), (2, 1), ("x", None), (), ((0, -1), (0, 0)))),
        ("`names` must have a different mesh axis for each axis of several parts", ((4, 6), (2, 2), ("x", None))),
        ("`names` must have a different mesh axis for each axis of several parts", ((4, 6), (2, 2), ("x", "x"))),
    ],
)
def test_invalid_blocks_are_refused(text, fields):
    with pytest.raises(ValueError, match=re.escape(text)):
        Blocks(*fields)
