"""Tests of `GroupNorm` against `eqx.nn.GroupNorm` on the whole grid."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.nn import GroupNorm
from decompops.tools.hlo import collectives

from helpers import assert_close, make_mesh, random_field
from layers import compare


UNEVEN = (9, 10, 11)


def with_weights(layer):
    """Return the layer with weights and biases that differ."""
    return jax.tree.map(lambda part: part + jnp.cos(jnp.arange(part.size, dtype=part.dtype)), layer)


@pytest.mark.parametrize(
    ("sizes", "kind", "groups", "affine"),
    [((2, 4), "auto", 2, True), ((2, 4), "explicit", 1, True), ((8,), "explicit", 4, True), ((1, 1), "auto", 2, False)],
)
def test_values_and_gradients_equal_equinox(sizes, kind, groups, affine, spoilt):
    make = lambda dec: with_weights(GroupNorm(dec, groups, 4, channelwise_affine=affine))
    whole = with_weights(eqx.nn.GroupNorm(groups, 4, channelwise_affine=affine))
    compare(make, whole, (UNEVEN, UNEVEN), sizes, kind, spoilt, channels=4)


def test_each_entry_of_a_batch_is_normalised_alone():
    layer = GroupNorm(make_mesh((2, 4)), 2, 4, ndim=2)
    x = random_field((3, 4, 8, 8)) * np.array([1, 10, 100])[:, None, None, None]
    got = np.asarray(layer(x)).reshape(3, 2, -1)
    np.testing.assert_allclose(got.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(got.var(-1), 1, rtol=1e-3)


def test_layer_norm():
    layer = dops.nn.LayerNorm(make_mesh((2, 4)), 4, ndim=2)
    x = random_field((4, 8, 8))
    assert_close(layer(x), (x - x.mean()) / np.sqrt(x.var() + 1e-5))


def test_narrow_fields_are_normalised_in_single_precision():
    """In float16, the mean of these squares would overflow."""
    layer = GroupNorm(make_mesh((2, 4)), 1, 2)
    x = (500 * random_field((2, 8, 8, 8))).astype(np.float16)
    got = layer(x)
    assert got.dtype == np.float16
    expected = (x - x.mean(dtype=float)) / x.std(dtype=float)
    np.testing.assert_allclose(got.astype(float), expected, atol=2e-3)


@pytest.mark.xla
def test_it_gathers_no_field():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    layer = GroupNorm(dec, 2, 4)
    program = jax.jit(lambda layer, u: layer(u)).lower(layer, dec.shard(random_field((4, 8, 8, 8)))).compile()
    assert {one.kind for one in collectives(program.as_text())} == {"all-reduce"}


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((3, 4), {}, r"`groups` must divide `channels`, 4; got 3\."),
        ((0, 4), {}, "`groups` must be"),
        ((2, 4), {"eps": 0.0}, "`eps` must be"),
    ],
)
def test_errors(plain, arguments, options, text):
    with pytest.raises(ValueError, match=text):
        plain.nn.GroupNorm(make_mesh((2, 4)), *arguments, **options)
