"""Tests of exchanges in pieces: which stages are split, along which axis, and with which results."""

import functools
from dataclasses import dataclass, replace

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._backend.base import Call
from decompops._backend.xla.backend import run_stage
from decompops._basis.fourier import DFT, Fourier
from decompops._common.blocks import Blocks
from decompops._core.primitive import apply
from decompops._plan.lower import Chunks, schedule
from decompops._plan.pieces import Pieces, even_lengths, in_pieces
from decompops._plan.plan import Plan
from decompops._plan.stage import Clear, LocalTransform, Move, Resize, Scale

from dense import apply_plan
from helpers import assert_close, make_mesh, random_field


def fourier(blocks, *axes, sign=-1):
    return LocalTransform(blocks, blocks, axes, DFT("c2c", sign))


# On a pencil mesh, the first exchange does not involve x, and the second one does not involve z. The last move restores
# natural order.
Z = Blocks((5, 9, 7), (2, 4, 1), ("x", "y", None))
Y = Blocks((5, 9, 7), (2, 1, 4), ("x", None, "y"), (0, 2, 1))
X = Blocks((5, 9, 7), (1, 2, 4), (None, "x", "y"), (1, 2, 0))
LAST = replace(X, order=(0, 1, 2))
FIRST = (fourier(Z, 2), Move(Z, Y), fourier(Y, 1))
SECOND = (Move(Y, X), fourier(X, 0), Move(X, LAST))
PENCILS = Plan("Pencils", Z, (*FIRST, *SECOND), 0.25)

# A grid of four axes on the same mesh.
W4 = Blocks((6, 5, 4, 9), (2, 4, 1, 1), ("x", "y", None, None))
V4 = Blocks((6, 5, 4, 9), (1, 4, 1, 2), (None, "y", None, "x"), (1, 2, 3, 0))
U4 = Blocks((6, 5, 4, 9), (4, 1, 1, 2), ("y", None, None, "x"), (3, 2, 0, 1))
FOUR = Plan("Four", W4, (fourier(W4, 3), Move(W4, V4), fourier(V4, 2), fourier(V4, 0), Move(V4, U4), fourier(U4, 1)))

# A real transform that keeps fewer modes, on a slab mesh.
R = Blocks((6, 10, 7), (4, 1, 1), ("y", None, None))
C = replace(R, lengths=(6, 10, 4))
D = Blocks((6, 10, 4), (1, 4, 1), (None, "y", None), (1, 2, 0))
CUT = replace(D, lengths=(3, 10, 4))
SHORTER = Resize(D, CUT, (0,), (Fourier().truncation(6, 3, nyquist=True),))
SLAB = Plan("Slab", R, (LocalTransform(R, C, (2,), DFT("r2c", -1)), Move(C, D), fourier(D, 0), SHORTER))

# A grid of two axes, both of which take part in the exchange.
ROWS, COLUMNS = Blocks((8, 6), (2, 1), ("x", None)), Blocks((8, 6), (1, 2), (None, "x"))
TWO = Plan("Two", ROWS, (fourier(ROWS, 1), Move(ROWS, COLUMNS), fourier(COLUMNS, 0)))


def pieces_of(plan, count, fields=1):
    return tuple(in_pieces(plan.stages, count, fields))


def test_each_exchange_goes_with_the_transforms_beside_it():
    assert pieces_of(PENCILS, 2) == (Pieces(FIRST, 0, 2), Pieces(SECOND, 2, 2))
    # If the first exchange is cut along axis 2, one transform can be cut with it; along axis 1, three.
    assert pieces_of(FOUR, 2) == (Pieces(FOUR.stages[:4], 1, 2), Pieces(FOUR.stages[4:], 3, 2))
    # The real transform of z cannot be split along z. The exchange and the stages after it can be split along z.
    assert pieces_of(SLAB, 3) == (SLAB.stages[0], Pieces(SLAB.stages[1:], 2, 3))


def test_the_longest_axis_is_split_and_the_outermost_one_of_several():
    def choice(*lengths):
        blocks = [Blocks(lengths, (1, 1, 2, 1), (None, None, "x", None), (3, 1, 0, 2))]
        blocks.append(replace(blocks[0], parts=(1, 1, 1, 2), names=(None, None, None, "x")))
        (pieces,) = in_pieces((Move(*blocks),), 2, 1)
        return pieces.axis

    assert choice(8, 6, 4, 4) == 0
    assert choice(6, 8, 4, 4) == 1
    assert choice(8, 8, 4, 4) == 1


def test_a_batch_is_split_as_a_whole():
    assert pieces_of(PENCILS, 4, 3) == (Pieces(PENCILS.stages, None, 3),)
    assert pieces_of(TWO, 2, 5) == (Pieces(TWO.stages, None, 2),)
    alone = Plan("", Y, (fourier(Y, 1),))
    assert pieces_of(alone, 2, 5) == alone.stages


def test_stages_that_cannot_be_split_stay_as_they_are():
    assert pieces_of(TWO, 2) == TWO.stages  # Both axes take part in the exchange.
    assert pieces_of(Plan("", Z, (Clear(Z),)), 2) == (Clear(Z),)
    thin = [replace(blocks, lengths=(2, 9, 7)) for blocks in (Z, Y)]  # Each device has one cell of x.
    assert pieces_of(Plan("", thin[0], (Move(*thin),)), 2) == (Move(*thin),)
    two = [replace(blocks, lengths=(4, 9, 7)) for blocks in (Z, Y)]
    # There are at most as many pieces as cells.
    assert pieces_of(Plan("", two[0], (Move(*two),)), 8) == (Pieces((Move(*two),), 0, 2),)


def test_lengths_of_pieces():
    assert even_lengths(7, 3) == (3, 2, 2)
    assert even_lengths(6, 3) == (2, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), 0, 2), "`stages` of `Pieces` must be one or more stages"),
        (((FIRST[1], FIRST[0]), 0, 2), "`stages` of `Pieces` must be one or more stages"),
        ((FIRST, 1, 2), "`axis` of `Pieces` must be an axis that no stage changes; got 1, which Move"),
        (((Scale(Z, 2.0),), 0, 2), "`axis` of `Pieces` must be an axis that no stage changes; got 0, which Scale"),
        ((FIRST, 0, 4), "`count` of `Pieces` must be from 1 to 3, the cells of a block along its axis; got 4"),
        ((FIRST, 0, 0), "`count` of `Pieces` must be from 1 to 3, the cells of a block along its axis; got 0"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pieces(*arguments)


def test_pieces_are_a_stage():
    plan, pieced = Plan("", Z, FIRST), Plan("", Z, (Pieces(FIRST, 0, 2),))
    assert pieced.transpose().stages[0].stages == plan.transpose().stages
    assert pieced.conjugate().stages[0].stages == plan.conjugate().stages
    real = Pieces(SLAB.stages[:1], 1, 2)
    assert real.input_dtype(np.dtype(np.int32)) == SLAB.input_dtype(np.dtype(np.int32))
    assert real.result_dtype(np.dtype(np.float32)) == np.complex64
    # A plan may contain `Pieces`. If no kernel takes the `Pieces`, the stages inside still run.
    u = random_field(Z.shape, np.complex128)
    assert_close(apply(Call(pieced, make_mesh((2, 4)), dops.XLA()), jnp.asarray(u)), apply_plan(plan, u))


@dataclass(frozen=True)
class Kernels(dops.AbstractBackend):
    """A backend that takes as many stages as `function` returns, and runs these stages in pieces with XLA."""

    function: object
    overlap: int = 1

    def problem(self):
        return None

    def check(self, mesh):
        pass

    def takes(self, stages):
        return self.function(stages)

    def run(self, plan, block, call):
        for stage in plan.stages:
            for part in stage.stages if isinstance(stage, Pieces) else (stage,):
                block = run_stage(part, block, call.platform)
        return block


def nothing(stages):
    return 0


def moves(stages):
    return int(isinstance(stages[0], Move))


def every_plain_stage(stages):
    return next((i for i, stage in enumerate(stages) if isinstance(stage, Pieces)), len(stages))


def pieces_as_a_whole(stages):
    return len(stages)


TAKES = [nothing, moves, every_plain_stage, pieces_as_a_whole]


@pytest.mark.parametrize("takes", TAKES)
def test_kernels_take_pieces_or_their_stages(takes):
    parts = schedule(PENCILS, takes, "cpu", 2)
    if takes is pieces_as_a_whole:
        (part,) = parts
        first = (replace(FIRST[0], scale=0.25), *FIRST[1:])
        assert part.native
        assert part.plan.stages == (Pieces(first, 0, 2), Pieces(SECOND, 2, 2))
        return
    assert all(isinstance(part, Chunks) for part in parts)
    assert [part.axis for part in parts] == [0, 2]
    assert [[length for length, _ in part.pieces] for part in parts] == [[2, 1], [1, 1]]
    segments = [segment for part in parts for segment in part.pieces[0][1]]
    assert [segment.native for segment in segments] == {
        nothing: [False, False],
        moves: [False, True, False, True, False, True],
        every_plain_stage: [True, True],
    }[takes]


@pytest.mark.parametrize(
    ("plan", "dtype", "backend", "batch"),
    [
        (PENCILS, np.complex128, dops.XLA(overlap=2), ()),
        (PENCILS, np.complex128, dops.XLA(overlap=2), (3, 1)),
        (PENCILS, np.complex128, Kernels(moves, 3), ()),
        (PENCILS, np.complex128, Kernels(every_plain_stage, 2), (2,)),
        (PENCILS.transpose(), np.complex128, Kernels(pieces_as_a_whole, 2), ()),
        (FOUR, np.complex128, dops.XLA(overlap=3), ()),
        (FOUR.conjugate(), np.complex128, dops.XLA(overlap=8), ()),
        (SLAB, np.float64, dops.XLA(overlap=2), ()),
        (SLAB.transpose(), np.complex128, dops.XLA(overlap=2), ()),
        (TWO, np.complex128, dops.XLA(overlap=2), ()),
    ],
)
def test_values_and_derivatives(plan, dtype, backend, batch):
    u = random_field((*batch, *plan.source.shape), dtype)
    run = jax.jit(functools.partial(apply, Call(plan, make_mesh((2, 4)), backend)))
    got, pull = jax.vjp(run, jnp.asarray(u))
    assert_close(got, apply_plan(plan, u))
    t = random_field(got.shape, got.dtype, 1)
    (cotangent,) = pull(jnp.asarray(t))
    assert_close(cotangent, apply_plan(plan.transpose(), t))
