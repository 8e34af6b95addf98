"""Tests of `UFNO`: its formula on one device, its weights, and the operator on other meshes and grids."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.nn import FNO, UFNO
from decompops.tools.hlo import collectives

from helpers import assert_close, make_mesh, random_field
from layers import run


SHAPE = (6, 8, 10)
OPTIONS = {"width": 2, "modes": (2, 3, 2), "depth": 2, "unet_depth": 1, "key": jax.random.key(0)}


def transform(sizes, kind="auto", shape=SHAPE):
    return dops.FFT3D(make_mesh(sizes, kind), shape=shape, pad=True, real=True)


class Formula(eqx.Module):
    """The operator of Wen et al. on one device, with the spectral convolutions and the U-Nets of a model."""

    model: FNO

    def __call__(self, x):
        affine = lambda linear, v: jnp.einsum("oi,i...->o...", linear.weight, v) + linear.bias.reshape(-1, 1, 1, 1)
        model = self.model
        v = affine(model.lifting, x)
        fourier, *u_fourier = model.blocks
        v = jax.nn.gelu(fourier.spectral(v) + affine(fourier.linear, v))
        for block in u_fourier:
            v = jax.nn.gelu(block.spectral(v) + affine(block.linear, v) + block.unet(v))
        return affine(model.projection, jax.nn.gelu(affine(model.hidden, v)))


def test_the_formula_on_other_meshes(spoilt):
    here, there = transform((1, 1)), transform((2, 4), "explicit")
    x, dec = random_field((1, *SHAPE)), there.decomposition
    with jax.set_mesh(dec.mesh):
        model = UFNO(there, 1, 2, **OPTIONS, checkpoint=True)
    v, for_weights, for_x = run(Formula(model.replace(fft=here)), jnp.asarray(x))
    with jax.set_mesh(dec.mesh):
        got, for_model, for_input = run(model, spoilt(dec, x))
    assert_close(got, dec.shard(np.asarray(v)))  # The padding must be zero.
    assert_close(for_input, dec.shard(np.asarray(for_x)))
    back = for_model.replace(fft=here)
    for mine, theirs in zip(*[jax.tree.leaves(eqx.filter(g, eqx.is_array)) for g in (back, for_weights)], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-10 * max(1, abs(theirs).max()))


def test_the_other_weights_are_those_of_the_fourier_neural_operator():
    fft = transform((2, 4))
    options = OPTIONS | {"depth": 3}
    model, plain = UFNO(fft, 1, 2, **options), FNO(fft, 1, 2, **options)
    assert [block.unet is None for block in model.blocks] == [True, False, False]
    nets = [block.unet for block in model.blocks[1:]]
    assert not np.array_equal(*[net.projection.conv.weight for net in nets])
    without = eqx.tree_at(lambda model: [block.unet for block in model.blocks[1:]], model, [None, None])
    assert eqx.tree_equal(without, plain)
    assert [model.title, plain.title] == ["UFNO", "FNO3D"]
    assert [block.unet is None for block in UFNO(fft, 1, 2, unets=1, **options).blocks] == [True, True, False]


def test_on_another_grid_and_mesh():
    here, there = transform((2, 4)), transform((8, 1), "explicit", (12, 16, 8))
    model, expected = (UFNO(fft, 1, 2, **OPTIONS | {"depth": 1}) for fft in (here, there))
    moved = model.replace(fft=there)
    assert eqx.tree_equal(moved, expected, rtol=1e-14)
    assert eqx.tree_equal(moved.replace(fft=here), model)


@pytest.mark.xla
def test_no_device_gathers_a_field():
    """Channels that the mesh divides leave only transforms, halos and the sums of the normalisation."""
    fft = transform((2, 4), shape=(8, 8, 8))
    model = UFNO(fft, 1, 1, **OPTIONS | {"width": 4, "depth": 1})
    u = fft.decomposition.shard(random_field((1, 8, 8, 8)))
    program = eqx.filter_jit(lambda model, u: model(u)).lower(model, u).compile()
    assert {one.kind for one in collectives(program.compiled.as_text())} == {
        "all-to-all",
        "collective-permute",
        "all-reduce",
    }


def test_bad_input():
    fft = transform((2, 4))
    for message, options in {
        r"`unets` must be an integer from zero to `depth`, 2; got 3": {"unets": 3},
        r"`unets` must be an integer from zero to `depth`, 2; got -1": {"unets": -1},
        r"`depth` must be an integer of at least one; got 0": {"depth": 0},
        r"`unet_depth` must be such that 2\*\*unet_depth divides .*, \(6, 8, 10\); got 2": {"unet_depth": 2},
    }.items():
        with pytest.raises(ValueError, match=message):
            UFNO(fft, 1, 1, **OPTIONS | options)
