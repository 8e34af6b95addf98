"""Tests of `Transpose`: exact moves of cells between any two pencils."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.testing import assert_transposed
from jax.sharding import PartitionSpec as P

from helpers import assert_close, extended, make_mesh, put, random_field, spec_of, surrounded, thinned


PAIRS = list(itertools.product("xyz", "xyz"))
STORED = {"x": (1, 2, 0), "y": (2, 0, 1), "z": (0, 1, 2)}


# On 2 x 4 devices, CI tests all pairs. On the other meshes, it tests three pairs, on axes of both kinds.
FEW = {(2, 4): PAIRS, (3, 2): [("x", "z"), ("y", "x"), ("z", "z")], (8,): [("z", "x"), ("y", "z"), ("x", "y")]}
CASES = [(sizes, *pair) for sizes in FEW for pair in PAIRS]


@pytest.mark.parametrize(("sizes", "source", "target"), thinned(CASES, lambda sizes, *pair: tuple(pair) in FEW[sizes]))
def test_all_pairs_exactly(sizes, source, target):
    mesh, shape = make_mesh(sizes, "auto" if source < target else "explicit"), (9, 10, 11)
    transpose = dops.Transpose(mesh, source, target, shape=shape, pad=True)
    dec = transpose.decomposition
    u = random_field(shape)
    x = dec.shard(u, source)
    v = transpose(x)
    np.testing.assert_array_equal(dec.gather(v), u)
    # The padding of the result is zero, whatever the padding of the input contains.
    assert np.count_nonzero(v) == u.size
    dirty = np.full(x.shape, np.nan)
    dirty[tuple(map(slice, shape))] = u
    np.testing.assert_array_equal(transpose(put(mesh, dirty, *dec.spec(source))), v)
    assert v.shape == dec.padded_shape(target)
    assert spec_of(v) == dec.spec(target) == transpose.out_spec
    back = transpose.inverse(v)
    np.testing.assert_array_equal(back, x)
    assert spec_of(back) == dec.spec(source)
    assert_transposed(transpose, transpose.T, np.asarray(x), np.asarray(dec.shard(random_field(shape, seed=1), target)))


@pytest.mark.parametrize(("source", "target"), [pair for pair in PAIRS if pair[0] != pair[1]])
def test_axis_contiguous_order(source, target):
    """With `axis_contiguous`, the local axis of a pencil is stored last, as in cuDecomp."""
    mesh, shape = make_mesh((2, 4)), (8, 16, 24)
    transpose = dops.Transpose(mesh, source, target, shape=shape, axis_contiguous=True)
    u = random_field(shape)
    v = transpose(np.transpose(u, STORED[source]))
    np.testing.assert_array_equal(v, np.transpose(u, STORED[target]))
    assert transpose.out_spec[-1] is None
    np.testing.assert_array_equal(transpose.inverse(v), np.transpose(u, STORED[source]))


@pytest.mark.parametrize("pencil", ["x", "y", "z"])
@pytest.mark.parametrize("shape", [(8, 16, 24), (7, 9, 11)])
def test_one_pencil_from_one_order_to_another(pencil, shape):
    transpose = dops.Transpose(
        make_mesh((2, 4)), pencil, pencil, shape=shape, pad=True, source_order="yzx", target_order="xzy"
    )
    u = random_field(shape)
    x = transpose.in_layout.shard(u)
    np.testing.assert_array_equal(np.asarray(x)[tuple(map(slice, u.transpose(1, 2, 0).shape))], u.transpose(1, 2, 0))
    v = transpose(x)
    np.testing.assert_array_equal(transpose.out_layout.gather(v), u)
    np.testing.assert_array_equal(transpose.out_layout.crop(v), u.transpose(0, 2, 1))
    assert spec_of(v) == transpose.out_spec
    np.testing.assert_array_equal(transpose.T(v), x)


@pytest.mark.parametrize(("source", "target"), [("x", "z"), ("y", "z"), ("z", "x")])
@pytest.mark.parametrize(("sizes", "shape"), [((2,), (1, 3, 2)), ((1, 2), (2, 1, 3))])
def test_devices_without_cells(sizes, shape, source, target):
    transpose = dops.Transpose(make_mesh(sizes), source, target, shape=shape, pad=True, axis_contiguous=True)
    before, after = (layout.shape for layout in (transpose.plan().source, transpose.plan().target))
    stored = [np.transpose(random_field(shape), STORED[pencil]) for pencil in (source, target)]
    u, v = (np.pad(w, [(0, p - n) for p, n in zip(padded, w.shape)]) for w, padded in zip(stored, (before, after)))
    np.testing.assert_array_equal(transpose(u), v)


@pytest.mark.parametrize(
    ("target", "shape"),
    thinned(
        itertools.product("xyz", [(9, 10, 11), (8, 16, 24), (63, 64, 64)]),
        lambda *case: case in (("x", (9, 10, 11)), ("y", (63, 64, 64)), ("y", (9, 10, 11)), ("z", (8, 16, 24))),
    ),
)
def test_axis_contiguous_results_are_gathered_and_cropped(target, shape):
    """Results in axis-contiguous order are gathered and cropped correctly.

    For shape (63, 64, 64), a padded y-pencil stored as (z, x, y) and a padded field in natural order both have the
    shape (64, 64, 64), so the shape does not tell the storage order.
    """
    mesh = make_mesh((2, 4))
    u = random_field(shape)
    dec = dops.Decomposition(mesh, shape=shape, pad=True)
    v = dops.Transpose(dec, "z", target, axis_contiguous=True)(u)
    np.testing.assert_array_equal(dec.gather(v, target, axis_contiguous=True), u)
    np.testing.assert_array_equal(dec.crop(v, target, axis_contiguous=True), np.transpose(u, STORED[target]))
    spectrum = dops.FFT3D(dec, axis_contiguous=True)(u)
    assert_close(dec.gather(spectrum, "x", axis_contiguous=True), np.fft.fftn(u))


def test_cudecomps_matrix():
    """Test transposes of cuDecomp's grid between all pencils on four devices, in both storage orders, with halos."""
    dec = dops.Decomposition(make_mesh((2, 2)), shape=(9, 10, 11), pad=True)
    u, halo = random_field(dec.shape), ((1, 1), (3, 3), (2, 2))
    cases = [(*pair, flag) for pair in PAIRS for flag in (True, False)]
    options = {"source_halo": halo, "target_halo": halo}
    transposes = [dops.Transpose(dec, *pair, axis_contiguous=flag, **options) for *pair, flag in cases]
    plans = [transpose.plan() for transpose in transposes]
    fields = [extended(u, p.source.parts, halo, (True,) * 3).transpose(p.source.order) for p in plans]
    results = jax.jit(lambda fields: [transpose(x) for transpose, x in zip(transposes, fields)])(fields)
    for plan, result in zip(plans, results):
        np.testing.assert_array_equal(result, surrounded(u, plan.target.parts, halo).transpose(plan.target.order))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "int8", "uint32", "bool"])
def test_dtypes_are_kept(dtype):
    u = jnp.asarray(np.arange(512).reshape(8, 8, 8) % 5, dtype)
    v = dops.Transpose(make_mesh((2, 4)), "z", "x")(u)
    assert v.dtype == u.dtype
    np.testing.assert_array_equal(v, u)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_gradient_keeps_the_sharding(kind):
    mesh = make_mesh((2, 4), kind)
    with jax.set_mesh(mesh):
        transpose = dops.Transpose(mesh, "z", "x")
        weights = random_field((8, 8, 8), seed=1)
        x = put(mesh, random_field((8, 8, 8)), "x", "y", None)
        w = put(mesh, weights, None, "x", "y")
        g = jax.jit(jax.grad(lambda v: jnp.sum(w * transpose(v) ** 2)))(x)
        np.testing.assert_allclose(g, 2 * weights * np.asarray(x), rtol=1e-14)
        assert spec_of(g) == P("x", "y", None)


BAD = [
    (
        lambda d, m: d.Transpose(m, "z", "w"),
        '`target` must be "x" or "y" or "z", or the number of a grid axis; got \'w\'',
    ),
    (lambda d, m: d.Transpose(m, 3, "x"), '`source` must be "x" or "y" or "z", or the number of a grid axis; got 3'),
    (
        lambda d, m: d.Transpose(m, source_order="zx"),
        "`source_order` must have each axis of the grid once, .*; got 'zx'",
    ),
    (
        lambda d, m: d.Transpose(m, "z", "x")(np.ones((8, 9, 8))),
        "`shape` must be divisible by the mesh, unless `pad=True`; got .* 4 devices",
    ),
    (
        lambda d, m: d.Transpose(m, "z", "x", shape=(4, 4, 4))(np.ones((8, 8, 8))),
        r"\(\*batch, 4, 4, 4\); got \(8, 8, 8\)",
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises(ValueError, match=text):
        call(plain, make_mesh((2, 4)))
