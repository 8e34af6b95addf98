"""Tests of `HaloConv3D` against `eqx.nn.Conv3d` on the whole grid."""

import contextlib
from collections import Counter

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.nn import HaloConv3D
from decompops.tools.hlo import collectives
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, spec_of


UNEVEN = (9, 10, 11)


def loss(v):
    return jnp.sum(jnp.sin(v)), v


@jax.jit
def run(layer, u):
    """Return the result, and the gradients with respect to the weights and the input."""
    (_, v), gradients = jax.value_and_grad(lambda layer, u: loss(layer(u)), argnums=(0, 1), has_aux=True)(layer, u)
    return v, gradients


@pytest.mark.parametrize(
    ("sizes", "kind", "shape", "kernel", "options"),
    [
        ((2, 4), "auto", UNEVEN, 3, {}),
        ((2, 4), "explicit", UNEVEN, 2, {"padding_mode": "ZEROS"}),
        ((8, 1), "auto", (16, 6, 4), (1, 3, 5), {"groups": 2, "use_bias": False}),
        ((8,), "explicit", UNEVEN, (3, 2, 1), {"dilation": (2, 1, 1), "groups": 2, "padding_mode": "ZEROS"}),
        pytest.param((1, 1), "auto", UNEVEN, 3, {"dilation": 2}, marks=pytest.mark.sweep),
        pytest.param((2, 4), "auto", (4, 8, 3), 1, {}, marks=pytest.mark.sweep),
    ],
)
def test_values_and_gradients_equal_equinox(sizes, kind, shape, kernel, options, spoilt):
    mesh, key = make_mesh(sizes, kind), jax.random.key(3)
    dec = dops.Decomposition(mesh, shape=shape, pad=True)
    layer = HaloConv3D(dec, 2, 4, kernel, **options, key=key)
    whole = eqx.nn.Conv3d(2, 4, kernel, padding="SAME", **{"padding_mode": "CIRCULAR"} | options, key=key)
    assert eqx.tree_equal(jax.tree.leaves(layer), jax.tree.leaves(whole))

    x = random_field((2, *shape))
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        got, (for_layer, for_input) = run(layer, spoilt(dec, x))
    expected, (for_whole, for_x) = run(whole, jnp.asarray(x))
    assert_close(got, dec.shard(np.asarray(expected)))  # The padding must be zero.
    assert_close(for_input, dec.shard(np.asarray(for_x)))
    for mine, theirs in zip(jax.tree.leaves(for_layer), jax.tree.leaves(for_whole), strict=True):
        assert_close(mine, theirs)
    if kind == "explicit":
        assert jax.typeof(got).sharding.spec == P(None, *dec.spec("z"))


def communicated(function, *arguments):
    found = collectives(jax.jit(function).lower(*arguments).compile().as_text())
    return Counter(c.kind for c in found), found


@pytest.mark.xla
@pytest.mark.parametrize("kind", [pytest.param("auto", marks=pytest.mark.sweep), "explicit"])
def test_only_halos_and_gradients_of_weights_are_communicated(kind):
    mesh = make_mesh((2, 4), kind)
    layer = HaloConv3D(mesh, 2, 3, 3, key=jax.random.key(0))
    batch = jax.ShapeDtypeStruct((5, 2, 8, 8, 8), np.float64, sharding=NamedSharding(mesh, P(None, None, "x", "y")))
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        # Along x, both neighbours are the same device, which sends both halo layers in one message.
        forward, found = communicated(lambda layer, u: jax.vmap(layer)(u), layer, batch)
        assert forward == {"collective-permute": 3}
        along_x, along_y = 5 * 2 * 2 * 2 * 8 * 8, 5 * 2 * 6 * 1 * 8 * 8
        assert sorted(c.bytes for c in found) == sorted([along_x, along_y, along_y])
        backward, _ = communicated(jax.grad(lambda layer, u: loss(layer(u))[0], argnums=(0, 1)), layer, batch)
    assert backward == {"collective-permute": 6, "all-reduce": 1}


@pytest.mark.xla
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_groups_of_devices_convolve_batches_independently(kind):
    mesh = make_mesh((2, 2, 2), kind)
    layer = HaloConv3D(dops.Decomposition(mesh, shape=(4, 6, 3)), 2, 3, 2, key=jax.random.key(0))
    x = random_field((4, 2, 4, 6, 3))
    u = layer.decomposition.shard(x)
    assert spec_of(u)[0] == "c"
    apply = {"auto": lambda layer, u: jax.vmap(layer)(u), "explicit": lambda layer, u: layer(u)}[kind]
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        kinds, found = communicated(apply, layer, u)
        got = jax.jit(apply)(layer, u)
    assert set(kinds) == {"collective-permute"}
    assert all(source // 4 == target // 4 for c in found for source, target in c.groups)
    assert spec_of(got) == P("c", None, "x", "y", None)
    whole = eqx.nn.Conv3d(2, 3, 2, padding="SAME", padding_mode="CIRCULAR", key=jax.random.key(0))
    assert_close(got, jax.jit(jax.vmap(whole))(x))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_data_parallel_training_in_a_shard_map_of_the_user(kind):
    """In a `shard_map` over the batch axis with `check_vma`, JAX sums the gradients of replicated weights."""
    mesh = make_mesh((2, 2, 2), kind)
    layer = HaloConv3D(dops.Decomposition(mesh, shape=(4, 6, 3)), 2, 3, 3, key=jax.random.key(0))
    x = random_field((4, 2, 4, 6, 3))
    gradient = jax.grad(lambda layer, u: loss(layer(u))[0], argnums=(0, 1))
    step = jax.shard_map(gradient, mesh=mesh, in_specs=(P(), P("c")), out_specs=(P(), P("c")), axis_names={"c"})
    with jax.set_mesh(mesh):
        for_layer, for_input = jax.jit(step)(layer, layer.decomposition.shard(x))
    whole = eqx.nn.Conv3d(2, 3, 3, padding="SAME", padding_mode="CIRCULAR", key=jax.random.key(0))
    expected = jax.jit(jax.grad(lambda whole, x: loss(jax.vmap(whole)(x))[0], argnums=(0, 1)))(whole, x)
    assert_close(for_input, expected[1])
    for mine, theirs in zip(jax.tree.leaves(for_layer), jax.tree.leaves(expected[0]), strict=True):
        assert_close(mine, theirs)


def test_channels_may_be_sharded_over_explicit_axes():
    mesh = make_mesh((2, 2, 2), "explicit")
    layer = HaloConv3D(dops.Decomposition(mesh, shape=(4, 6, 3)), 2, 3, 1, key=jax.random.key(0))
    u = layer.decomposition.shard(np.ones((2, 4, 6, 3)))
    assert spec_of(u)[0] == "c"
    with jax.set_mesh(mesh):
        v = jax.jit(lambda layer, u: layer(u))(layer, u)
    assert_close(np.asarray(v)[:, 0, 0, 0], jnp.sum(layer.conv.weight, (1, 2, 3, 4)) + layer.conv.bias[:, 0, 0, 0])


def test_bad_input():
    mesh, key = make_mesh((2, 4)), jax.random.key(0)
    cases = {
        r"`in_channels` must be an integer of at least one; got 0": (0, 1, 3, {}),
        r"`out_channels` must be an integer of at least one; got 0": (1, 0, 3, {}),
        r"`kernel_size` must be one positive integer, or three.*; got 0": (1, 1, 0, {}),
        r"`kernel_size` must be one positive integer, or three.*; got \(3, 3\)": (1, 1, (3, 3), {}),
        r"`dilation` must be one positive integer, or three.*; got \(1, -1, 1\)": (
            1,
            1,
            3,
            {"dilation": (1, -1, 1)},
        ),
        r"`groups` must be an integer of at least one; got 0": (1, 1, 3, {"groups": 0}),
        r"`groups` must divide `in_channels` and `out_channels`, \(2, 3\); got 2": (2, 3, 3, {"groups": 2}),
    }
    for message, (*arguments, options) in cases.items():
        with pytest.raises(ValueError, match=message):
            HaloConv3D(mesh, *arguments, **options, key=key)
    layer = HaloConv3D(mesh, 2, 1, 3, key=key)
    with pytest.raises(
        ValueError, match=r"`x` must have shape \(\*batch, 2, nx, ny, nz\), with 2 channels; got \(1, 8"
    ):
        layer(np.zeros((1, 8, 8, 8)))
    with pytest.raises(TypeError, match=r"`x` must have the dtype of the weights, float64; got int32\. Call `x.astype"):
        layer(np.zeros((2, 8, 8, 8), np.int32))
    with pytest.raises(ValueError, match="`shape` must be divisible by the mesh, unless `pad=True`"):
        layer(np.zeros((2, 9, 8, 8)))
    with jax.set_mesh(make_mesh((4, 2))), pytest.raises(ValueError, match="`mesh` of the operator must be the ambient"):
        layer(np.zeros((2, 8, 8, 8)))


def test_unknown_padding_mode(plain):
    with pytest.raises(ValueError, match=r"`padding_mode` must be one of \('CIRCULAR', 'ZEROS'\); got 'REFLECT'"):
        plain.nn.HaloConv3D(make_mesh((2, 4)), 1, 1, 3, padding_mode="REFLECT", key=jax.random.key(0))
