"""Tests of the layers between two grids, against Equinox and NumPy on one device."""

import contextlib
import functools

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import nn
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, spec_of, thinned
from layers import compare


FINE, FACTOR = (12, 20, 6), (2, 2, 3)
COARSE = (6, 10, 2)
# On 2x4 devices, four blocks share the 20 cells of FINE and the 10 cells of COARSE along y: five cells each, and three.
# So the blocks of the two grids begin at different places.
MESHES = [((2, 4), "auto"), ((8, 1), "explicit"), ((1, 1), "auto")]
KEY = jax.random.key(0)


LAYERS = {
    "down": (nn.HaloConv, eqx.nn.Conv, (FINE, COARSE)),
    "up": (nn.HaloConvTranspose, eqx.nn.ConvTranspose, (COARSE, FINE)),
}


@pytest.mark.parametrize(
    ("name", "kernel", "mode", "sizes", "kind"),
    thinned(
        [
            (name, *options, *mesh)
            for name in LAYERS
            for options in ((3, "CIRCULAR"), ((2, 4, 1), "ZEROS"))
            for mesh in MESHES
        ],
        lambda name, kernel, mode, sizes, kind: (
            sizes == (2, 4) or (name, kernel, kind) in {("down", 3, "explicit"), ("up", 3, "auto")}
        ),
    ),
)
def test_convolutions_between_grids(name, kernel, mode, sizes, kind, spoilt):
    mine, theirs, shapes = LAYERS[name]
    options = {"kernel_size": kernel, "stride": FACTOR, "padding_mode": mode, "key": KEY}
    whole = theirs(3, 2, 3, padding="SAME", **options)
    compare(lambda dec: mine(dec, 2, 3, **options), whole, shapes, sizes, kind, spoilt)


@pytest.mark.parametrize("mode", ["CIRCULAR", "ZEROS"])
def test_the_transposed_convolution_is_the_adjoint(mode):
    mesh = make_mesh((2, 4))
    fine, coarse = (dops.Decomposition(mesh, shape=shape, pad=True) for shape in (FINE, COARSE))
    options = {"kernel_size": (3, 4, 1), "stride": FACTOR, "use_bias": False, "padding_mode": mode, "key": KEY}
    down, up = nn.HaloConv(fine, 2, 3, **options), nn.HaloConvTranspose(coarse, 3, 2, **options)
    weight = jnp.flip(down.conv.weight, axis=(2, 3, 4)).swapaxes(0, 1)
    up = eqx.tree_at(lambda layer: layer.conv.weight, up, weight)
    x, y = random_field((2, *FINE)), random_field((3, *COARSE))
    left = np.vdot(coarse.gather(jax.jit(down.__call__)(fine.shard(x))), y)
    right = np.vdot(x, fine.gather(jax.jit(up.__call__)(coarse.shard(y))))
    assert_close(left, right)


@pytest.mark.parametrize(
    ("reduce", "sizes", "kind"),
    thinned(
        [(reduce, *mesh) for reduce in ("mean", "max") for mesh in MESHES],
        lambda reduce, sizes, kind: sizes == (2, 4) or (reduce == "max") == (kind == "explicit"),
    ),
)
def test_pools(reduce, sizes, kind, spoilt):
    cls = {"mean": nn.AvgPool, "max": nn.MaxPool}[reduce]
    boxes = [length for n, f in zip(COARSE, FACTOR) for length in (n, f)]
    whole = lambda x: getattr(jnp, reduce)(x.reshape(2, *boxes), axis=(2, 4, 6))
    compare(lambda dec: cls(dec, FACTOR), whole, (FINE, COARSE), sizes, kind, spoilt)


@pytest.mark.parametrize(("sizes", "kind"), MESHES)
def test_upsampling(sizes, kind, spoilt):
    def whole(x):
        for axis, factor in enumerate(FACTOR):
            x = jnp.repeat(x, factor, axis=1 + axis)
        return x

    compare(lambda dec: nn.Upsample(dec, FACTOR), whole, (COARSE, FINE), sizes, kind, spoilt)


@pytest.mark.parametrize(("coarse", "factor"), [(1, 7), (5, 3), (8, 2), (13, 2), (17, 5), (31, 4)])
def test_any_lengths_on_eight_devices(coarse, factor):
    """Blocks of the two grids begin at places whose distance grows from device to device."""
    mesh = make_mesh((8,))
    fine, small = (dops.Decomposition(mesh, shape=(n,), pad=True) for n in (coarse * factor, coarse))
    x, y = random_field(fine.shape), random_field(small.shape)
    assert_close(small.gather(nn.MaxPool(fine, factor)(x)), x.reshape(coarse, factor).max(1))
    assert_close(fine.gather(nn.Upsample(small, factor)(y)), np.repeat(y, factor))


def kinds(layer, shape):
    u = layer.decomposition.shard(np.zeros(shape))
    program = jax.jit(lambda layer, u: layer(u)).lower(layer, u).compile()
    return {one.kind for one in collectives(program.as_text())}


@pytest.mark.xla
def test_only_neighbours_communicate():
    """Pools communicate nothing if the blocks of the two grids begin at the same places."""
    mesh = make_mesh((2, 4))
    even, uneven = (dops.Decomposition(mesh, shape=shape, pad=True) for shape in ((8, 16, 4), FINE))
    assert kinds(nn.AvgPool(even, 2), even.shape) == set()
    assert kinds(nn.Upsample(even, 2), even.shape) == set()
    assert kinds(nn.AvgPool(uneven, 2), uneven.shape) == {"collective-permute"}
    for layer in (nn.HaloConv, nn.HaloConvTranspose):
        assert kinds(layer(even, 1, 2, 3, stride=2, key=KEY), (1, *even.shape)) == {"collective-permute"}


@functools.cache
def on_batches(kind):
    """Return for each layer its two grids, the layer, and what it should return for a batch on one device."""
    mesh = make_mesh((2, 2, 2), kind, ("batch", "x", "y"))
    fine, coarse = (dops.Decomposition(mesh, shape=shape, pad=True) for shape in ((4, 6, 2), (2, 3, 1)))
    boxes = lambda x: x.reshape(*x.shape[:2], 2, 2, 3, 2, 1, 2)
    repeated = lambda x: x.repeat(2, -1).repeat(2, -2).repeat(2, -3)
    options = {"kernel_size": 3, "stride": 2, "key": KEY}
    plain = lambda layer: jax.vmap(layer(3, 2, 4, padding="SAME", padding_mode="CIRCULAR", **options))
    return {
        "HaloConv": (fine, coarse, nn.HaloConv(fine, 2, 4, **options), plain(eqx.nn.Conv)),
        "HaloConvTranspose": (
            *(coarse, fine, nn.HaloConvTranspose(coarse, 2, 4, **options)),
            plain(eqx.nn.ConvTranspose),
        ),
        "AvgPool": (fine, coarse, nn.AvgPool(fine, 2), lambda x: boxes(x).mean((3, 5, 7))),
        "MaxPool": (fine, coarse, nn.MaxPool(fine, 2), lambda x: boxes(x).max((3, 5, 7))),
        "Upsample": (coarse, fine, nn.Upsample(coarse, 2), repeated),
        "GroupNorm": (coarse, coarse, nn.GroupNorm(coarse, 1, 2), jax.vmap(eqx.nn.GroupNorm(1, 2))),
    }


NAMES = ["HaloConv", "HaloConvTranspose", "AvgPool", "MaxPool", "Upsample", "GroupNorm"]


@pytest.mark.xla
@pytest.mark.parametrize(
    ("name", "kind"),
    thinned(
        [(name, kind) for name in NAMES for kind in ("auto", "explicit")],
        lambda name, kind: (kind == "auto") == (name in ("HaloConv", "MaxPool", "Upsample")),
    ),
)
def test_groups_of_devices_take_parts_of_a_batch(name, kind):
    """A mesh axis of its own shards the batch. Devices communicate only with devices of the same group."""
    source, target, layer, whole = on_batches(kind)[name]
    x = random_field((4, 2, *source.shape)) * np.array([1, 2, 3, 4])[:, None, None, None, None]
    u = source.shard(x)
    assert spec_of(u)[0] == "batch"
    loss = lambda function, x: (jnp.sum(jnp.sin(v := function(x))), v)
    slope_of = lambda function: jax.jit(lambda x: jax.grad(lambda x: loss(function, x), has_aux=True)(x))
    with jax.set_mesh(source.mesh) if kind == "explicit" else contextlib.nullcontext():
        program = jax.jit(lambda layer, u: layer(u)).lower(layer, u).compile()
        slope, got = slope_of(layer)(u)
    for_x, expected = slope_of(whole)(jnp.asarray(x))
    assert spec_of(got) == spec_of(slope) == P("batch", None, "x", "y", None)
    assert_close(got, target.shard(np.asarray(expected)))
    assert_close(slope, source.shard(np.asarray(for_x)))
    found = collectives(program.as_text())
    assert {one.kind for one in found} == {"all-reduce" if name == "GroupNorm" else "collective-permute"}
    assert all(len({device // 4 for device in group}) == 1 for one in found for group in one.groups)


def test_pools_of_complex_fields():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(4, 8), axes="x", pad=True)
    u = random_field((4, 8), np.complex128)
    assert_close(nn.AvgPool(dec, 2)(u), u.reshape(2, 2, 4, 2).mean((1, 3)))
    assert_close(nn.Upsample(dec, 2)(u), u.repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize("layer", ["AvgPool", "MaxPool", "Upsample"])
def test_a_mesh_has_no_shape(layer, plain):
    with pytest.raises(TypeError, match="`decomposition` must be a `Decomposition`; got Mesh"):
        getattr(plain.nn, layer)(make_mesh((2, 4)), 2)


def test_bad_input():
    mesh = make_mesh((2, 4))
    dec = dops.Decomposition(mesh, shape=FINE, pad=True)
    for message, make in {
        r"`factor` must divide the lengths of the grid, \(12, 20, 6\); got 5": lambda: nn.AvgPool(dec, 5),
        "`stride` must divide the lengths of the grid": lambda: nn.HaloConv(dec, 1, 1, 3, stride=4, key=KEY),
        "`mesh` must be a `Decomposition` with a `shape`": lambda: nn.HaloConv(mesh, 1, 1, 3, stride=2, key=KEY),
        "`factor` must be one positive integer": lambda: nn.Upsample(dec, 0),
    }.items():
        with pytest.raises(ValueError, match=message):
            make()
