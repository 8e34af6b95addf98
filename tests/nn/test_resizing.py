"""Tests of the layers between two grids, against Equinox and NumPy on one device."""

import contextlib

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import nn

from helpers import assert_close, make_mesh, random_field


FINE, FACTOR = (12, 20, 6), (2, 2, 3)
COARSE = (6, 10, 2)
# On the meshes of two and four devices along y, the blocks of FINE and COARSE begin at different cells.
MESHES = [((2, 4), "auto"), ((8, 1), "explicit"), ((1, 1), "auto")]
KEY = jax.random.key(0)


def run(layer, x):
    """Return the result, and the gradients with respect to the weights and the input."""
    loss = lambda both: (jnp.sum(jnp.sin(v := both[0](both[1]))), v)
    (_, v), (for_layer, for_x) = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))((layer, x))
    return v, for_layer, for_x


def compare(make, whole, shapes, sizes, kind, spoilt, channels=2):
    """Compare a layer, its results and its gradients with the function `whole` on one device."""
    mesh = make_mesh(sizes, kind)
    source, target = (dops.Decomposition(mesh, shape=shape, pad=True) for shape in shapes)
    layer, x = make(source), random_field((channels, *shapes[0]))
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        got, for_layer, for_input = run(layer, spoilt(source, x))
    expected, for_whole, for_x = run(whole, jnp.asarray(x))
    assert_close(got, target.shard(np.asarray(expected)))  # The padding must be zero.
    assert_close(for_input, source.shard(np.asarray(for_x)))
    weights = [jax.tree.leaves(eqx.filter(gradient, eqx.is_array)) for gradient in (for_layer, for_whole)]
    for mine, theirs in zip(*weights, strict=True):
        assert_close(mine, theirs)
    assert layer.out_structure.layout.true_shape == shapes[1]


@pytest.mark.parametrize(("sizes", "kind"), MESHES)
@pytest.mark.parametrize(("kernel", "mode"), [(3, "CIRCULAR"), ((2, 4, 1), "ZEROS")])
def test_strided_convolution(sizes, kind, kernel, mode, spoilt):
    options = {"kernel_size": kernel, "stride": FACTOR, "padding_mode": mode, "key": KEY}
    make = lambda dec: nn.HaloConv(dec, 2, 3, **options)
    whole = eqx.nn.Conv(3, 2, 3, padding="SAME", **options)
    compare(make, whole, (FINE, COARSE), sizes, kind, spoilt)


@pytest.mark.parametrize(("sizes", "kind"), MESHES)
@pytest.mark.parametrize(("kernel", "mode"), [(3, "CIRCULAR"), ((2, 4, 3), "ZEROS")])
def test_transposed_convolution(sizes, kind, kernel, mode, spoilt):
    options = {"kernel_size": kernel, "stride": FACTOR, "padding_mode": mode, "key": KEY}
    make = lambda dec: nn.HaloConvTranspose(dec, 2, 3, **options)
    whole = eqx.nn.ConvTranspose(3, 2, 3, padding="SAME", **options)
    compare(make, whole, (COARSE, FINE), sizes, kind, spoilt)


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


@pytest.mark.parametrize(("sizes", "kind"), MESHES)
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_pools(sizes, kind, reduce, spoilt):
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
