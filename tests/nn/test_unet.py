"""Tests of `UNet` against the same network of Equinox layers on one device."""

import contextlib

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.nn import UNet
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, spec_of
from layers import compare


KEY = jax.random.key(0)
ZEROS = {"groups": None, "padding_mode": "ZEROS", "activation": jnp.tanh}


class Whole(eqx.Module):
    """The network of a `UNet`, with its weights, on the whole grid."""

    net: UNet

    def __call__(self, x):
        return self.convolved(self.net.projection, self.from_level(0, x))

    def from_level(self, level, v):
        net = self.net
        v = self.twice(net.encoder[level], v)
        if level == len(net.down):
            return v
        below = self.from_level(level + 1, self.convolved(net.down[level], v))
        return self.twice(net.decoder[level], jnp.concatenate([v, self.convolved(net.up[level], below)]))

    def twice(self, block, v):
        for conv, norm in zip(block.convs, block.norms):
            v = self.convolved(conv, v)
            v = block.activation(v if isinstance(norm, eqx.nn.Identity) else norm.norm(v))
        return v

    def convolved(self, layer, v):
        conv = layer.conv
        options = {"kernel_size": conv.kernel_size, "stride": conv.stride, "padding_mode": layer.padding_mode}
        plain = type(conv)(v.ndim - 1, conv.in_channels, conv.out_channels, padding="SAME", **options, key=KEY)
        return eqx.tree_at(lambda plain: (plain.weight, plain.bias), plain, (conv.weight, conv.bias))(v)


@pytest.mark.parametrize(
    ("sizes", "kind", "shape", "options"),
    [
        # Blocks of the two grids along y begin at different places. The coarse grid has an empty block.
        ((2, 4), "auto", (4, 10, 2), {"width": 4, "depth": 1, "groups": 2}),
        ((8,), "explicit", (16, 12), {"width": 2, "depth": 2, "kernel_size": (3, 2), **ZEROS}),
        pytest.param(
            (8, 1),
            "explicit",
            (6, 4, 2),
            {"width": 3, "depth": 1, "kernel_size": (3, 2, 1), "activation": jnp.tanh},
            marks=pytest.mark.sweep,
        ),
        pytest.param((1, 1), "auto", (8, 4, 4), {"width": 2, "depth": 2}, marks=pytest.mark.sweep),
    ],
)
def test_values_and_gradients_equal_equinox(sizes, kind, shape, options, spoilt):
    make = lambda dec: UNet(dec, 2, 3, **options, key=KEY)
    one = dops.Decomposition(make_mesh((1,)), shape=shape)
    compare(make, Whole(make(one)), (shape, shape), sizes, kind, spoilt)


def test_the_levels():
    """Each level has half as many cells along each axis, and twice as many channels."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(8, 24, 16))
    net = eqx.filter_eval_shape(lambda key: UNet(dec, 3, 1, width=4, depth=3, key=key), KEY)
    blocks = [block.convs[1] for block in net.encoder]
    assert [conv.conv.out_channels for conv in blocks] == [4, 8, 16, 32]
    assert [conv.decomposition.shape for conv in blocks] == [(8, 24, 16), (4, 12, 8), (2, 6, 4), (1, 3, 2)]
    assert str(net.in_structure) == "f[*, 3, 8, 24, 16] z-pencils 2x4"
    assert str(net.out_structure) == "f[*, 1, 8, 24, 16] z-pencils 2x4"


def programs(net, u):
    """Return the compiled program of a call, and the collectives of the call and of its gradient."""
    gradient = eqx.filter_jit(eqx.filter_grad(lambda net, u: jnp.sum(net(u) ** 2)))
    called = eqx.filter_jit(lambda net, u: net(u)).lower(net, u).compile()
    texts = [program.compiled.as_text() for program in (called, gradient.lower(net, u).compile())]
    return lambda *arguments: called(*arguments), *map(collectives, texts)


@pytest.mark.xla
@pytest.mark.parametrize(("kind", "groups"), [pytest.param("auto", None, marks=pytest.mark.sweep), ("explicit", 1)])
def test_groups_of_devices_take_parts_of_a_batch(kind, groups):
    """Blocks travel only between devices that share a part of the batch. No device gathers a field."""
    mesh = make_mesh((2, 2, 2), kind, ("batch", "x", "y"))
    dec = dops.Decomposition(mesh, shape=(4, 6, 4), pad=True)
    net = UNet(dec, 2, 1, width=2, depth=1, groups=groups, key=KEY)
    x = random_field((4, 2, 4, 6, 4))
    u = dec.shard(x)
    assert spec_of(u)[0] == "batch"
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        called, forward, backward = programs(net, u)
        got = called(net, u)
    assert spec_of(got) == P("batch", None, "x", "y", None)
    assert_close(dec.gather(got), jax.jit(jax.vmap(Whole(net.replace(decomposition=one_device(dec)))))(x))
    assert {one.kind for one in forward} == {"collective-permute", *(["all-reduce"] if groups else [])}
    assert {one.kind for one in backward} == {"collective-permute", "all-reduce"}
    assert all(len({device // 4 for device in group}) == 1 for one in forward for group in one.groups)


def one_device(dec):
    return dops.Decomposition(make_mesh((1,)), shape=dec.shape)


def test_on_another_grid_and_mesh():
    here = dops.Decomposition(make_mesh((2, 4)), shape=(4, 12, 4), pad=True)
    there = dops.Decomposition(make_mesh((8, 1), "explicit"), shape=(16, 8, 4))
    net, expected = (UNet(dec, 1, 2, width=2, depth=1, key=KEY) for dec in (here, there))
    moved = net.replace(decomposition=there)
    assert eqx.tree_equal(moved, expected)
    assert eqx.tree_equal(moved.replace(decomposition=here), net)
    assert all(part.sharding.mesh == there.mesh for part in jax.tree.leaves(eqx.filter(moved, eqx.is_array)))
    with pytest.raises(ValueError, match="`decomposition` must have 3 axes"):
        net.replace(decomposition=dops.Decomposition(make_mesh((8,)), shape=(16, 8)))


def test_bad_input(plain):
    mesh = make_mesh((2, 4))
    dec, odd = (plain.Decomposition(mesh, shape=shape, pad=True) for shape in ((8, 12, 4), (8, 9, 4)))
    usual = {"decomposition": dec, "in_channels": 1, "out_channels": 1, "width": 2, "depth": 1, "key": KEY}
    for message, options in {
        r"`depth` must be such that 2\*\*depth .*, \(8, 12, 4\); got 3\. Pass `depth=2`, or": {"depth": 3},
        r"`depth` must be such that .*, \(8, 9, 4\); got 1\. Pass another grid, of even": {"decomposition": odd},
        "`depth` must be an integer of at least one; got 0": {"depth": 0},
        "`width` must be an integer of at least one; got 0": {"width": 0},
        "`in_channels` must be an integer of at least one; got 0": {"in_channels": 0},
        "`out_channels` must be an integer of at least one; got 0": {"out_channels": 0},
        "`groups` must divide `width`, 2; got 3": {"groups": 3},
        "`groups` must be an integer of at least one; got 0": {"groups": 0},
        "`kernel_size` must be one positive integer": {"kernel_size": 0},
        "`padding_mode` must be one of": {"padding_mode": "REFLECT"},
    }.items():
        with pytest.raises(ValueError, match=message):
            plain.nn.UNet(**usual | options)
    for message, options in {
        "`decomposition` must be a `Decomposition`; got Mesh": {"decomposition": mesh},
        "`activation` must be a function; got 'gelu'": {"activation": "gelu"},
        "`key` must be a key of JAX": {"key": 0},
    }.items():
        with pytest.raises(TypeError, match=message):
            plain.nn.UNet(**usual | options)
    net = plain.nn.UNet(**usual)
    with pytest.raises(ValueError, match=r"`x` must have shape \(\*batch, 1, nx, ny, nz\), .*; got \(2, 8, 12, 4\)"):
        net(np.zeros((2, 8, 12, 4)))
