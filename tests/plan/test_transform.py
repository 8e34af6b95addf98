"""Tests of plans of transforms in mixed bases, on grids of one to four axes, against NumPy and SciPy."""

import functools
import re
from dataclasses import replace

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
import scipy.signal
from decompops._backend.base import Call
from decompops._basis.cosine import Cosine
from decompops._basis.fourier import Fourier
from decompops._basis.points import Points
from decompops._common.blocks import pencil_blocks
from decompops._core.primitive import apply
from decompops._plan.stage import LocalTransform, Move
from decompops._plan.transform import transform_plan

from helpers import assert_close, make_mesh, random_field


F, H, C, P = Fourier(), Fourier(half=True), Cosine(2), Points()
NAMES = {1: ("x",), 2: ("x", "y"), 3: ("c", "x", "y")}


def plan_for(sizes, shape, bases, kept=None, *, nyquist=False, axis_contiguous=False):
    pencil = functools.partial(pencil_blocks, names=NAMES[len(sizes)], sizes=sizes)
    stored = tuple(basis.stored(n) for basis, n in zip(bases, kept or shape))
    order = (*range(1, len(shape)), 0) if axis_contiguous else ()
    source, target = pencil(len(shape) - 1, shape), pencil(0, stored, order=order)
    return transform_plan("Test", source, target, bases, kept or shape, nyquist=nyquist)


def stored_field(blocks, u, junk=0.0):
    """Return a field in storage order, with `junk` in its padding."""
    u = u.transpose(blocks.order)
    return np.pad(u, [(0, n - m) for n, m in zip(blocks.shape, u.shape)], constant_values=junk)


def true_field(blocks, u):
    """Return the field without padding, in grid order. Assert that the padding is zero."""
    u = np.asarray(u)
    cells = tuple(map(slice, blocks.true_shape))
    assert np.count_nonzero(u) == np.count_nonzero(u[cells])
    return u[cells].transpose(np.argsort(blocks.order))


def transformed(u, bases, kept):
    """Transform one axis after the other with SciPy. A half spectrum is the first half of a full spectrum."""
    for axis, (basis, k) in enumerate(zip(bases, kept)):
        n = u.shape[axis]
        if basis == P:
            continue
        if basis == C:
            u = np.take(scipy.fft.dct(u.real, axis=axis) + 1j * scipy.fft.dct(u.imag, axis=axis), np.arange(k), axis)
            continue
        modes = np.fft.fftfreq(k, 1 / k).astype(int)
        present = np.abs(modes) < k / 2 if k < n else np.ones(k)
        u = np.take(scipy.fft.fft(u, axis=axis), modes % n, axis) * np.expand_dims(present, [*range(1, u.ndim - axis)])
        u = np.take(u, np.arange(basis.stored(k)), axis)
    return u


# Each case has mesh sizes, a shape, bases, and the numbers of points whose coefficients are kept.
CASES = [
    ((1,), (6,), (H,), (5,)),
    ((4,), (5, 6), (F, F), None),
    ((2,), (5, 6), (F, H), (4, 4)),
    ((3,), (4, 5), (H, C), None),
    ((2, 2), (3, 5, 4), (F, F, F), (2, 5, 3)),
    pytest.param((2, 2), (3, 5, 4), (F, F, H), None, marks=pytest.mark.sweep),
    ((2, 2), (3, 4, 4), (F, H, C), (3, 3, 2)),
    ((1, 2), (3, 4, 4), (F, H, C), (2, 4, 4)),  # One call transforms x and y.
    ((2, 1), (3, 4, 4), (F, C, H), None),
    ((1, 1), (3, 4, 5), (H, C, C), (3, 3, 5)),
    ((1, 4), (3, 4, 4), (C, F, C), None),
    pytest.param((2, 2), (3, 4, 4), (C, C, C), None, marks=pytest.mark.sweep),
    ((2, 2, 2), (3, 2, 4, 3), (F, F, F, H), (2, 2, 3, 3)),
    pytest.param((2, 2), (3, 2, 4, 3), (F, H, C, C), None, marks=pytest.mark.sweep),
    ((2, 1, 2), (3, 2, 4, 3), (C, F, H, C), None),
    ((2, 2), (5, 4, 3), (H, F, F), None),
    ((2, 2), (3, 5, 4), (F, H, F), (2, 4, 3)),
    pytest.param((1, 4), (3, 4, 4), (F, P, H), None, marks=pytest.mark.sweep),
    ((2, 2), (3, 4, 5), (P, F, P), None),
    ((2, 2), (3, 2, 4, 3, 2), (F, P, H, F, P), None),
]


@pytest.mark.parametrize(("sizes", "shape", "bases", "kept"), CASES)
def test_values(sizes, shape, bases, kept):
    plan = plan_for(sizes, shape, bases, kept, axis_contiguous=sum(shape) % 2 == 0)
    kept = kept or shape
    if H not in bases or F not in bases[bases.index(H) :]:  # Fourier axes after H need more exchanges.
        assert sum(isinstance(s, Move) and s.gathered is not None for s in plan.stages) == sum(n > 1 for n in sizes)
    dtype = np.float64 if H in bases or F not in bases else np.complex128
    assert plan.input_dtype(np.dtype(dtype)) == dtype
    u, mesh = random_field(shape, dtype), make_mesh(sizes)

    @jax.jit
    def programs(u):
        k = apply(Call(plan, mesh, dops.XLA()), u)
        return k, apply(Call(plan.inverse(), mesh, dops.XLA()), k)

    k, back = programs(jnp.asarray(stored_field(plan.source, u, junk=7.0)))
    found = true_field(plan.target, k)
    assert_close(found, transformed(u, bases, kept) if np.iscomplexobj(found) else transformed(u, bases, kept).real)
    if kept == shape:
        assert_close(true_field(plan.source, back), u)


def test_axes_of_one_kind_are_transformed_at_once():
    """Each plan transforms axes of one kind in the fewest calls. If a call halves an axis, this axis is the last."""

    def axes(sizes, bases):
        plan = plan_for(sizes, (4,) * len(bases), bases)
        return [(s.axes, getattr(s.transform, "kind", "dct")) for s in plan.stages if isinstance(s, LocalTransform)]

    assert axes((1, 1), (F, F, H)) == [((0, 1, 2), "r2c")]
    assert axes((2, 1), (F, F, H)) == [((1, 2), "r2c"), ((0,), "c2c")]
    assert axes((1, 2), (F, F, H)) == [((2,), "r2c"), ((1, 0), "c2c")]
    assert axes((1, 2), (F, H, C)) == [((2,), "dct"), ((0, 1), "r2c")]
    assert axes((1, 1), (C, F, H)) == [((0,), "dct"), ((1, 2), "r2c")]
    assert axes((1, 1), (F, C, H)) == [((1,), "dct"), ((0, 2), "r2c")]
    assert axes((1, 1), (F, H, F)) == [((0, 2, 1), "r2c")]
    assert axes((1, 1), (C, C, C)) == [((0, 1, 2), "dct")]
    assert axes((2, 2), (F, F, F, H)) == [((2, 3), "r2c"), ((1,), "c2c"), ((0,), "c2c")]
    for kept in (None, (4, 4, 3)):  # Here no Nyquist mode stands for two modes, so `nyquist` changes nothing.
        plans = [plan_for((1, 1), (4, 4, 4), (F, F, H), kept, nyquist=nyquist) for nyquist in (False, True)]
        assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("sizes", "bases", "old", "new"),
    [
        ((2, 2), (F, F, H), (5, 6, 8), (4, 4, 4)),
        ((2, 1), (F, H, C), (6, 8, 3), (4, 6, 3)),
        ((1, 2), (F, H, C), (4, 4, 3), (6, 8, 3)),
        ((1, 1), (F, H, C), (6, 4, 2), (4, 6, 2)),
        ((2,), (F, F), (6, 6), (4, 8)),
    ],
)
def test_resampling_keeps_the_nyquist_mode(sizes, bases, old, new):
    kept = tuple(map(min, old, new))
    forward, back = (plan_for(sizes, n, bases, kept, nyquist=True, axis_contiguous=True) for n in (old, new))
    plan = replace(forward.then(back.inverse(), "Resample"), scale=1.0)
    for n, basis in zip(old, bases):
        plan = replace(plan, scale=plan.scale / (2 * n if basis == C else n))
    u = random_field(old, np.float64 if H in bases else np.complex128)
    got = apply(Call(plan, make_mesh(sizes), dops.XLA()), jnp.asarray(stored_field(plan.source, u)))
    expected = functools.reduce(lambda u, axis: scipy.signal.resample(u, new[axis], axis=axis), range(len(old)), u)
    assert_close(true_field(plan.target, got), expected)


@pytest.mark.parametrize("bases", [(H, H), (F, H, H), (H, C, H)])
def test_only_one_half_spectrum(bases):
    with pytest.raises(ValueError, match=r"`bases` must have at most one basis with real fields and complex coeff"):
        plan_for((1,) * (len(bases) - 1), (4,) * len(bases), bases)


@pytest.mark.parametrize("kept", [(4, 5), (0, 4), (-1, 2)])
def test_kept_must_be_within_the_points(kept):
    pencil = functools.partial(pencil_blocks, names=("x",), sizes=(2,))
    text = f"`kept` must be from 1 to the number of points of each axis, (4, 4); got {kept}."
    with pytest.raises(ValueError, match=re.escape(text)):
        transform_plan("Test", pencil(1, (4, 4)), pencil(0, (4, 4)), (F, F), kept)


def test_there_must_be_a_basis_for_each_axis():
    pencil = functools.partial(pencil_blocks, names=("x",), sizes=(2,))
    with pytest.raises(ValueError, match="`bases` and `kept` must have one entry for each of 2 axes"):
        transform_plan("Test", pencil(1, (4, 4)), pencil(0, (4, 4)), (F,), (4, 4))
