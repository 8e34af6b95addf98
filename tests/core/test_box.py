"""Tests of `Box`: its lengths, the number of lengths, and their use in operators."""

import math

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import make_mesh


def test_lengths_and_volume():
    assert dops.Box().lengths == 2 * math.pi
    assert dops.Box(np.array([1, 2, 3])).lengths == (1.0, 2.0, 3.0)
    assert dops.Box((2.0, 3.0)).volume == 6.0
    assert dops.Box([2.0, 3.0, 4.0, 5.0]).volume == 120.0
    assert dops.Box(2.0).with_axes(3) == dops.Box((2.0, 2.0, 2.0))
    assert repr(dops.Box(1)) == "Box(1.0)"
    assert repr(dops.Box((1, 2))) == "Box((1.0, 2.0))"
    assert repr(eqx.nn.Lambda(dops.Box((1, 2)))) == "Lambda(fn=Box((1.0, 2.0)))"
    assert repr(eqx.nn.Lambda(dops.Box(jnp.ones(())))) == "Lambda(fn=Box(f64[]))"


def test_equal_boxes_are_equal():
    assert dops.Box(1.0) == dops.Box(1)
    assert hash(dops.Box((1.0, 2.0))) == hash(dops.Box([1, 2]))
    assert dops.Box(1.0) != dops.Box(2.0)
    assert dops.Box(1.0) != dops.Box((1.0, 1.0, 1.0))


@pytest.mark.parametrize(("lengths", "slope"), [(lambda x: x, 3 * 1.5**2), (lambda x: (x, 2.0, x), 2 * 2 * 1.5)])
def test_traced_lengths_and_derivatives(lengths, slope):
    def volume(x):
        box = dops.Box(lengths(x)).with_axes(3)
        assert box.is_traced
        return box.volume

    assert jax.jit(jax.grad(volume))(1.5) == pytest.approx(slope)
    assert not dops.Box(lengths(1.5)).is_traced
    gradient = jax.grad(lambda box: box.volume)(dops.Box(jnp.array([1.0, 2.0, 3.0])))
    assert np.array(gradient.lengths) == pytest.approx([6.0, 3.0, 2.0])
    assert jax.jit(lambda lengths: dops.Box(lengths).volume)(jnp.array([1.0, 2.0, 3.0])) == pytest.approx(6.0)


def test_operators_keep_what_they_are_given():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8), box=dops.Box(3.0), real=True)
    for made in (dops.spectral.Gradient(fft), dops.spectral.Dealias(fft), dops.pde.NavierStokes(fft, 1.0)):
        assert made.fft is fft
        assert made.transform.axis_contiguous
        assert made.transform.decomposition.box == dops.Box((3.0, 3.0, 3.0))
    assert dops.spectral.Gradient(fft).transform.modes is None
    assert dops.pde.NavierStokes(fft, 1.0).transform.modes == dops.spectral.Dealias(fft).transform.modes == (5, 5, 5)
    layer = dops.nn.SpectralConv3D(fft, 1, 1, 2, key=jax.random.key(0))
    assert layer.fft is fft
    assert layer.transform.modes == (3, 3, 3)
    assert dops.spectral.Resample(fft, (4, 4, 4)).fft is fft


def test_a_copy_with_another_fft_has_another_transform():
    fft, other = (dops.FFT3D(make_mesh((1, 1)), shape=(n, n, n), real=True) for n in (8, 4))
    dealias = dops.spectral.Dealias(fft)
    assert dealias.transform.modes == (5, 5, 5)
    copy = eqx.tree_at(lambda operator: operator.fft, dealias, other)
    assert copy.transform.decomposition.shape == (4, 4, 4)
    assert copy.transform.modes == (3, 3, 3)


def test_only_arrays_are_leaves():
    assert jax.tree.leaves(dops.Box((1.0, np.float64(2.0), 3))) == []
    mixed = dops.Box((1.0, jnp.array(2.0)))
    assert jax.tree.leaves(mixed) == [2.0]
    assert mixed.lengths == (1.0, 2.0)
    assert jax.jit(lambda box: box.volume)(mixed) == 2.0
    fft = dops.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), box=dops.Box(3.0))
    assert jax.tree.leaves(fft) == []
    assert fft == dops.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), box=dops.Box(3.0))
    assert fft != fft.replace(box=dops.Box(4.0))
    assert fft.replace(box=dops.Box(4.0)).decomposition.spacing == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("make", [dops.Decomposition, dops.FFT3D, dops.FFT])
def test_what_is_built_on_a_decomposition_keeps_or_changes_its_box(make):
    mesh = make_mesh((2, 4))
    dec = dops.Decomposition(mesh, shape=(8, 8, 8), box=dops.Box((1.0, 2.0, 3.0)))
    box_of = lambda made: getattr(made, "decomposition", made).box
    assert box_of(make(dec)) == dec.box
    assert box_of(make(dec, shape=(16, 8, 8))) == dec.box
    assert box_of(make(dec, box=dops.Box(2.0))) == dops.Box((2.0, 2.0, 2.0))
    assert box_of(make(mesh, shape=(8, 8, 8))) is None
    assert make(mesh, shape=(8, 8, 8)).box_lengths == (2 * math.pi,) * 3
    assert dec.layout("x").box == dec.box
    assert dops.Transpose(dec, "z", "x").out_layout.box == dec.box


WALLS = [dops.Cosine(1), dops.Sine(2), dops.Chebyshev(), dops.Cells.clustered(8, 1.5)]


@pytest.mark.parametrize("wall", WALLS, ids=str)
def test_walls_need_a_box(wall):
    transform = dops.Transform(make_mesh((2,)), shape=(8, 8), bases=(wall, dops.Fourier(half=True)))
    transform(np.ones((8, 8)))  # The transform itself needs no lengths.
    uses = (
        transform.wavenumbers,
        lambda: dops.spectral.Derivative(transform, (0, 1)),
        lambda: dops.spectral.Poisson(transform, None if wall.is_diagonal else "neumann"),
        lambda: dops.plot.slice(transform, np.ones((8, 8))),
    )
    for use in uses:
        with pytest.raises(ValueError, match=r"`box` must be given to a transform with walls, .* along x .*; got "):
            use()


BAD = [
    *(
        (lambda d, bad=bad: d.Box(bad), "`lengths` must be one positive, finite .*; got")
        for bad in (0, -1.0, np.inf, math.nan)
    ),
    *(
        (lambda d, bad=bad: d.Box(bad), "`lengths` must be one positive, finite .*; got")
        for bad in ("long", "2", True, (), None, (1, "x"))
    ),
    (lambda d: d.Box(np.ones((2, 2))), "`lengths` must be one positive, finite .*; got array"),
    (lambda d: jax.jit(lambda x: d.Box(x).volume)(np.ones((2, 2))), "`lengths` must be .*; got"),
    (lambda d: d.Box(1.0).volume, r"`volume` needs one length for each axis; got Box\(1.0\)\. .* `box.with_axes\(3\)"),
    (lambda d: d.Box((1.0, 2.0)).with_axes(3), "`box` has 2 lengths, but the grid has 3 axes; got"),
    *(
        (lambda d, make=make, bad=bad: getattr(d, make)(make_mesh((1,)), shape=(4, 4, 4), box=bad(d)), text)
        for make in ("Decomposition", "FFT", "FFT3D")
        for bad, text in (
            (lambda d: (1.0, 2.0, 3.0), "`box` must be a `Box`.*; got"),
            (lambda d: d.Box((1.0, 2.0)), "`box` has 2 lengths, but the grid has 3 axes; got"),
        )
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((TypeError, ValueError), match=text):
        call(plain)
