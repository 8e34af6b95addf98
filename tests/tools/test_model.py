"""Tests of the model of `decompops scaling` against times that are computed by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from decompops.tools.bench.model import (
    OPERATORS,
    Exchange,
    Machine,
    Work,
    fitted,
    messages_out,
    near_square,
    seconds,
    solver_step,
    stencil,
    strong,
    transform,
    weak,
)


MACHINE = Machine(operations=1e9, stencils=2e9, updates=5e8, memory=1e10, overhead=1e-6, latency=1e-5, link=1e8)


def test_a_transform_on_one_rank():
    """The lines of an axis of n points count 5 n log₂ n each: 5 * 8³ * 9 operations in all for 8³ cells."""
    found = seconds(transform((8, 8, 8), (1, 1)), (1, 1), MACHINE)
    assert found.computing == pytest.approx(5 * 512 * 9 / 1e9)
    assert found.packing == found.network == 0


def test_a_transform_on_two_nodes():
    """Each rank sends a half of its block of 4 * 8 * 8 numbers, and packs and unpacks the whole."""
    found = seconds(transform((8, 8, 8), (2, 1)), (2, 1), MACHINE)
    block = 8 * 4 * 8 * 8
    assert found.packing == pytest.approx(4 * block / 1e10)
    assert found.network == pytest.approx(2e-6 + 1e-5 + block / 2 / 1e8)


def test_a_real_transform_needs_half():
    whole, half = transform((8, 8, 8), (2, 4)), transform((8, 8, 8), (2, 4), real=True)
    assert (half.operations, half.packed) == (whole.operations / 2, whole.packed / 2)
    assert [one.size for one in half.exchanges] == [one.size / 2 for one in whole.exchanges]


def test_a_stencil_sends_its_faces():
    """A block of 4 x 4 x 16 cells has faces of 4 x 16 cells across both mesh axes."""
    work = stencil((8, 16, 16), (2, 4))
    assert [one.size for one in work.exchanges] == [4 * 4 * 16] * 2
    found = seconds(work, (2, 4), MACHINE)
    assert (found.computing, found.packing) == (pytest.approx(4 * 4 * 16 / 2e9), 0)
    assert found.network == pytest.approx(2 * (2 * 2 * 1e-6 + 1e-5 + 2 * 256 / 1e8))


@pytest.mark.parametrize(
    ("mesh", "ranks"), [((4, 4), 1), ((4, 4), 4), ((4, 4), 8), ((2, 8), 4), ((8, 2), 4), ((3, 5), 5)]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_messages_that_leave_a_node(mesh, ranks, axis):
    """The first node sends as many messages as a loop over all pairs of ranks counts."""
    exchange = Exchange(axis, 1.0, tuple(range(1, mesh[axis])))
    places = list(np.ndindex(*mesh))
    pairs = [
        (a, b) for a in places[:ranks] for b in places[ranks:] if a[1 - axis] == b[1 - axis] and a[axis] != b[axis]
    ]
    assert messages_out(exchange, mesh, ranks) == len(pairs)


def test_ranks_of_a_node_share_its_link():
    """On two nodes with two ranks each, the exchange along axis 1 stays inside, and that along axis 0 shares links."""
    machine = replace(MACHINE, overhead=0.0, latency=0.0, ranks=2)
    inside, across = (Work(exchanges=(Exchange(axis, 1000.0, (1,)),)) for axis in (1, 0))
    assert seconds(inside, (2, 2), machine).network == pytest.approx(4 * 1000 / 1e10)
    assert seconds(across, (2, 2), machine).network == pytest.approx(2 * 1000 / 1e8)
    assert seconds(inside, (2, 2), replace(machine, inside=1e7)).network == pytest.approx(1000 / 1e7)


def test_a_solver_step_is_a_stencil_two_transforms_updates_and_sums():
    """A rank has 8 * 8 * 16 cells. Besides its operators, a step of conjugate gradients sends three numbers."""
    shape, mesh = (16, 16, 16), (2, 2)
    step, parts = solver_step(shape, mesh), stencil(shape, mesh)
    there = transform(shape, mesh, real=True)
    assert (step.operations, step.packed) == (2 * there.operations, 2 * there.packed)
    assert step.stencils == step.updates == 8 * 8 * 16
    assert len(step.exchanges) == len(parts.exchanges) + 2 * len(there.exchanges) + 2
    computing = 5 * 8 * 8 * 16 * 12 / 1e9 + 8 * 8 * 16 * (1 / 2e9 + 1 / 5e8)
    assert seconds(step, mesh, MACHINE).computing == pytest.approx(computing)


def test_fitted_rates_give_back_what_was_measured():
    alone = {"transform": 2e-3, "stencil": 1e-4, "solver step": 5e-3, "copy": 3e-4}
    machine = fitted(MACHINE, (32, 16, 64), alone)
    for name, work in OPERATORS.items():
        found = seconds(work((32, 16, 64), (1, 1)), (1, 1), machine)
        assert (found.computing, found.packing, found.network) == (pytest.approx(alone[name]), 0, 0)
    assert machine.memory == pytest.approx(2 * 8 * 32 * 16 * 64 / 3e-4)


def test_noise_never_makes_a_rate_negative():
    machine = fitted(MACHINE, (8, 8, 8), {"transform": 2e-3, "stencil": 1e-4, "solver step": 1e-3, "copy": 3e-4})
    assert machine.updates == math.inf


@pytest.mark.parametrize("operator", OPERATORS)
def test_strong_and_weak_scaling(operator):
    """Without costs of the network, strong scaling is perfect, and weak scaling grows only with the length of lines."""
    machine = replace(MACHINE, overhead=0.0, latency=0.0, link=math.inf)
    sizes = [1, 4, 16384]
    first, _, last = strong(operator, (512, 512, 512), sizes, machine)
    assert last.computing == pytest.approx(first.computing / 16384)
    first, _, last = weak(operator, (64, 64, 64), sizes, machine)
    longer = 5 * 64**3 * math.log2(16384) / machine.operations  # The operations of the longer lines.
    assert last.computing == pytest.approx(first.computing + (0 if operator == "stencil" else longer))


def test_meshes_are_nearly_square():
    wanted = {1: (1, 1), 2: (1, 2), 6: (2, 3), 12: (3, 4), 13: (1, 13), 16384: (128, 128)}
    assert {size: near_square(size) for size in wanted} == wanted
