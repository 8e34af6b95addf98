"""Compares layers on sharded fields with the same layers on one device."""

import contextlib

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from helpers import assert_close, make_mesh, random_field


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
