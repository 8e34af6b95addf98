"""Tests of plans encoded as numbers. The tests decode the numbers in Python, as ffi/common/plan.cc does in C++."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from decompops._backend.native.encode import encoded, mesh_entries
from decompops._basis.cosine import RealToReal
from decompops._basis.fourier import DFT
from decompops._basis.points import Identity
from decompops._common.blocks import Blocks
from decompops._plan.pieces import Pieces
from decompops._plan.plan import Plan
from decompops._plan.stage import Clear, Crop, Extend, LocalTransform, Move, Resize, Scale


AXES = ("c", "x", "y")
STAMP = 123
KINDS = [
    [],
    ["kind", "sign", "weighted", "count"],
    ["axis", "periodic", "transposed"],
    ["transposed"],
    [],
    ["axis", "pieces"],
    [],
    ["count"],
    ["sine", "type", "power", "count"],
]


def decoded(numbers):
    """Return the stamp, the number of the type to send, the source blocks, and the stages that `numbers` encodes.

    A stage is a tuple of three entries: the number of its kind, its parameters, and its target blocks.
    """
    rest = iter(numbers.tolist())
    take = lambda count: tuple(itertools.islice(rest, count))
    stamp, wire, ndim = take(3)

    def blocks():
        lengths, parts, names, order = (take(ndim) for _ in range(4))
        halo = tuple(take(2) for _ in range(ndim))
        return Blocks(lengths, parts, tuple(None if i < 0 else AXES[i] for i in names), order, halo)

    source, stages = blocks(), []
    for number in rest:
        fields = dict(zip(KINDS[number], take(len(KINDS[number]))))
        fields["axes"] = take(fields.pop("count", 0))
        stages.append((number, fields, blocks()))
    return stamp, wire, source, stages


Z = Blocks((4, 6, 5), (2, 3, 1), ("y", "x", None), (0, 2, 1))
Y = Blocks((4, 6, 5), (2, 1, 3), ("y", None, "x"))
HALF = replace(Z, lengths=(4, 6, 3))
WIDE = replace(Y, halo=((0, 0), (1, 2), (0, 0)))
R2C = LocalTransform(Z, HALF, (2,), DFT("r2c", 1, weighted=True), 3.0)
C2R = LocalTransform(HALF, Z, (2,), DFT("c2r", -1))
C2C = LocalTransform(Y, Y, (1,), DFT("c2c", -1))
EXTEND = Extend(Y, WIDE, 1, True)
CROP = Crop(WIDE, Y)


def fields(**known):
    return {"axes": (), **known}


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ((), []),
        ((Move(Z, Y), Clear(Y)), [(0, fields()), (4, fields())]),
        (
            (R2C, C2R),
            [
                (1, {"kind": 1, "sign": 1, "weighted": 1, "axes": (2,)}),
                (1, {"kind": 2, "sign": -1, "weighted": 0, "axes": (2,)}),
            ],
        ),
        ((C2C,), [(1, {"kind": 0, "sign": -1, "weighted": 0, "axes": (1,)})]),
        (
            (replace(C2C, before=replace(Z, parts=(1, 3, 1)), after=replace(Z, parts=(1, 3, 1)), axes=(2, 0)),),
            [(1, {"kind": 0, "sign": -1, "weighted": 0, "axes": (2, 0)})],
        ),
        (
            (
                LocalTransform(Z, Z, (2,), RealToReal("dct", 2, before=1, after=-1)),
                LocalTransform(Z, Z, (2,), RealToReal("dst", 3, before=2, after=1)),
            ),
            [
                (8, {"sine": 0, "type": 2, "power": -1, "axes": (2,)}),
                (8, {"sine": 1, "type": 3, "power": 2, "axes": (2,)}),
            ],
        ),
        ((EXTEND, CROP), [(2, fields(axis=1, periodic=1, transposed=0)), (3, fields(transposed=0))]),
        (
            (CROP.transpose(), replace(EXTEND, periodic=False).transpose()),
            [(3, fields(transposed=1)), (2, fields(axis=1, periodic=0, transposed=1))],
        ),
    ],
)
def test_numbers(stages, expected):
    source = stages[0].before if stages else Z
    numbers = encoded(Plan("Thing", source, stages), AXES, STAMP)
    assert numbers.dtype == np.int64
    stamp, wire, first, found = decoded(numbers)
    assert (stamp, wire, first) == (STAMP, 0, source)
    assert [(number, fields) for number, fields, _ in found] == expected
    assert [after for *_, after in found] == [stage.after for stage in stages]


def test_any_number_of_axes():
    blocks = Blocks((4, 2), (2, 1), ("x", None))
    numbers = encoded(Plan("Thing", blocks, (Clear(blocks),)), AXES, STAMP)
    assert decoded(numbers) == (STAMP, 0, blocks, [(4, fields(), blocks)])


@pytest.mark.parametrize(("axis", "number"), [(1, 1), (None, -1)])
def test_pieces_are_opened_and_joined(axis, number):
    move = Move(Z, replace(Z, parts=(1, 3, 2), names=(None, "x", "y")))
    *_, source, found = decoded(encoded(Plan("Thing", Z, (Pieces((move,), axis, 2),)), AXES, STAMP))
    assert source == Z
    assert found == [(5, fields(axis=number, pieces=2), Z), (0, fields(), move.after), (6, fields(), move.after)]


def test_mesh_axes_that_act_as_one():
    together = Blocks((4, 6), (6, 1), (("y", "x"), None))
    plan = Plan("Thing", together, (Clear(together),))
    assert mesh_entries(plan, AXES) == (("y", "x"), "c")
    assert encoded(plan, mesh_entries(plan, AXES), STAMP)[7:9].tolist() == [0, -1]
    apart = Plan("Thing", Z, (Move(Z, Y),))
    assert mesh_entries(apart, AXES) == AXES


@pytest.mark.parametrize(
    "stage",
    [
        Scale(Z, 2.0),
        Resize(Z, Z, (2,), ((),)),
        LocalTransform(Z, Z, (2,), Identity()),
        LocalTransform(Z, Z, (2,), RealToReal("dct", 1)),
        LocalTransform(Z, Z, (2,), RealToReal("dst", 4)),
        LocalTransform(Z, Z, (2,), DFT("c2c", 1, normalised=True)),
    ],
    ids=lambda stage: type(stage).__name__,
)
def test_encoding_refuses_stages_that_the_kernels_do_not_support(stage):
    with pytest.raises(ValueError, match=rf"the kernels do not support the stage {type(stage).__name__}\(before="):
        encoded(Plan("Thing", Z, (stage,)), AXES, STAMP)


@pytest.mark.parametrize(("wire", "number"), [(None, 0), ("float32", 1), ("bfloat16", 2), ("float16", 3)])
def test_wire(wire, number):
    assert decoded(encoded(Plan("Thing", Z, ()), AXES, STAMP, wire)) == (STAMP, number, Z, [])
