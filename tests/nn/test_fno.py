"""Tests of `FNO3D`: its results on every mesh against its formula on one device, and its use in models."""

import contextlib

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from decompops.nn import FNO, FNO3D, HaloConv3D, SpectralConv3D
from decompops.tools.hlo import collectives
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, spec_of


SHAPE = (9, 10, 11)
OPTIONS = {"width": 4, "modes": (2, 3, 2), "depth": 2}


def transform(sizes, kind="auto", shape=SHAPE, **options):
    return dops.FFT3D(make_mesh(sizes, kind), shape=shape, pad=True, real=True, **options)


def formula(model, x):
    """Apply the operator by the formula of Li et al., to fields on one device."""

    def affine(linear, v):
        return jnp.moveaxis(jnp.vectorize(linear, signature="(i)->(o)")(jnp.moveaxis(v, 0, -1)), -1, 0)

    v = affine(model.lifting, x)
    for block in model.blocks:
        v = model.activation(block.spectral(v) + affine(block.linear, v))
    return affine(model.projection, model.activation(affine(model.hidden, v)))


@eqx.filter_jit
def run(function, model, u):
    """Return the result, and the gradients with respect to the weights and the input."""
    loss = lambda both: (jnp.sum(jnp.sin(v := function(*both))), v)
    (_, v), gradients = eqx.filter_value_and_grad(loss, has_aux=True)((model, u))
    return v, *gradients


def call(model, u):
    return model(u)


@pytest.fixture(scope="module")
def expected():
    """Return the model, its input, and the result and gradients of the formula."""
    model = FNO3D(transform((1, 1)), 1, 2, **OPTIONS, key=jax.random.key(0))
    x = random_field((1, *SHAPE))
    return x, *run(formula, model, jnp.asarray(x))


@pytest.mark.parametrize(("sizes", "kind", "checkpoint"), [((2, 4), "auto", False), ((8, 1), "explicit", True)])
def test_the_model_is_the_same_on_every_mesh(sizes, kind, checkpoint, expected, spoilt):
    x, v, for_weights, for_x = expected
    fft = transform(sizes, kind)
    model, dec = FNO3D(fft, 1, 2, **OPTIONS, checkpoint=checkpoint, key=jax.random.key(0)), fft.decomposition
    with jax.set_mesh(dec.mesh) if kind == "explicit" else contextlib.nullcontext():
        got, for_model, for_input = run(call, model, spoilt(dec, x))
    assert_close(got, dec.shard(np.asarray(v)))  # The padding must be zero.
    assert_close(for_input, dec.shard(np.asarray(for_x)))
    back = for_model.replace(fft=transform((1, 1)))
    for mine, theirs in zip(*[jax.tree.leaves(eqx.filter(g, eqx.is_array)) for g in (back, for_weights)], strict=True):
        assert_close(mine, theirs)


ADAM = optax.adam(1e-2)


def train(weights, state, rest, u, target, steps):
    """Run some steps of Adam, and return the losses."""
    loss = lambda weights: jnp.mean((eqx.combine(weights, rest)(u) - target) ** 2)

    def step(carry, _):
        weights, state = carry
        value, gradient = jax.value_and_grad(loss)(weights)
        updates, state = ADAM.update(gradient, state, weights)
        return (optax.apply_updates(weights, updates), state), value

    with jax.numpy_dtype_promotion("standard"):  # Adam needs this promotion.
        return jax.jit(lambda *carry: jax.lax.scan(step, carry, length=steps))(weights, state)


def a_derivative(fft, u):
    """Return a field on the devices of `fft`, and its derivative along x."""
    u = fft.decomposition.shard(u)
    return u, dops.spectral.Derivative(fft, (1, 0, 0))(u)


def test_the_model_learns():
    """The model learns a first derivative from one field in a few steps of Adam."""
    fft = transform((2, 4), shape=(8, 8, 8), backend="native")
    model = FNO3D(fft, 1, 1, width=4, modes=4, depth=1, key=jax.random.key(0))
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    data = a_derivative(fft, random_field((1, 8, 8, 8)))
    (weights, _), losses = train(weights, ADAM.init(weights), rest, *data, steps=40)
    assert losses[-1] < 0.3 * losses[0]
    trained = eqx.combine(weights, rest).blocks[0].spectral.weight
    assert spec_of(trained) == spec_of(model.blocks[0].spectral.weight)


def test_training_continues_on_another_mesh():
    """Training gives the same losses after the model and the optimizer's state have moved to another mesh.

    The two meshes shard the weights differently.
    """
    here, there = (transform(sizes, shape=(8, 8, 8), backend="native") for sizes in ((2, 2, 2), (1, 4)))
    u = random_field((1, 8, 8, 8))
    model = FNO3D(here, 1, 1, width=4, modes=(2, 3, 2), depth=1, key=jax.random.key(0))
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    (weights, state), _ = train(weights, ADAM.init(weights), rest, *a_derivative(here, u), steps=3)
    expected, losses = train(weights, state, rest, *a_derivative(here, u), steps=3)

    everywhere = NamedSharding(there.decomposition.mesh, P())
    move = lambda part: part.replace(fft=there) if isinstance(part, FNO) else jax.device_put(part, everywhere)
    moved = jax.tree.map(move, (weights, state), is_leaf=lambda part: isinstance(part, FNO))
    for one, other in zip(jax.tree.leaves((weights, state)), jax.tree.leaves(moved), strict=True):
        assert np.array_equal(one, other)
    spectral = lambda model: model.blocks[0].spectral
    assert spec_of(spectral(weights).weight) != spec_of(spectral(moved[0]).weight)
    got, got_losses = train(*moved, rest.replace(fft=there), *a_derivative(there, u), steps=3)
    assert_close(got_losses, losses)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert_close(one, other, rtol=1e-10)


@pytest.mark.xla
def test_in_a_sequence_for_a_sharded_batch():
    def model(sizes):
        fft, keys = transform(sizes), jax.random.split(jax.random.key(5), 3)
        layers = [
            HaloConv3D(fft.decomposition, 2, 3, 3, key=keys[0]),
            eqx.nn.Lambda(jnp.tanh),
            SpectralConv3D(fft, 3, 2, 2, key=keys[1]),
            FNO3D(fft, 2, 1, width=2, modes=2, depth=1, key=keys[2]),
        ]
        return eqx.nn.Sequential(layers), fft.decomposition

    x = random_field((4, 2, *SHAPE))
    layers, dec = model((2, 2, 2))
    u = dec.shard(x)
    assert spec_of(u)[0] == "c"
    mapped = jax.jit(jax.vmap(lambda u: layers(u))).lower(u).compile()
    assert spec_of(mapped(u)) == P("c", None, "x", "y", None)
    alone, there = model((1, 1))
    assert_close(dec.gather(mapped(u)), there.gather(eqx.filter_jit(alone)(x)))
    found = collectives(mapped.as_text())
    assert {c.kind for c in found} == {"all-to-all", "collective-permute"}
    assert all(len({device // 4 for device in group}) == 1 for c in found for group in c.groups)


def test_checkpoints_cost_transforms():
    def transforms(checkpoint):
        fft = transform((2, 4), shape=(8, 8, 8))
        model = FNO3D(fft, 1, 1, width=2, modes=2, depth=2, checkpoint=checkpoint, key=jax.random.key(0))
        weights, rest = eqx.partition(model, eqx.is_array)
        loss = lambda weights, u: jnp.sum(eqx.combine(weights, rest)(u))
        jaxpr = str(jax.make_jaxpr(jax.grad(loss))(weights, np.ones((1, 8, 8, 8))))
        return jaxpr.count("Plan(name=")

    assert transforms(True) == transforms(False) + 2 * OPTIONS["depth"]


def test_on_another_grid_and_mesh():
    here, there = transform((2, 4)), transform((8, 1), "explicit", (12, 16, 8))
    options = OPTIONS | {"depth": 1}
    model = FNO3D(here, 1, 2, **options, key=jax.random.key(0))
    moved, expected = model.replace(fft=there), FNO3D(there, 1, 2, **options, key=jax.random.key(0))
    assert eqx.tree_equal(moved, expected, rtol=1e-14)
    assert eqx.tree_equal(moved.replace(fft=here), model)
    with jax.set_mesh(there.decomposition.mesh):
        assert eqx.filter_eval_shape(moved, np.ones((1, 12, 16, 8))).shape == (2, 16, 16, 8)


def test_bad_input(plain):
    fft, key = transform((2, 4)), jax.random.key(0)
    cases = {
        "`in_channels` must be an integer of at least one; got 0": {"in_channels": 0},
        "`out_channels` must be an integer of at least one; got 0": {"out_channels": 0},
        "`width` must be an integer of at least one; got 0": {"width": 0},
        "`depth` must be an integer of at least one; got -1": {"depth": -1},
        r"`modes` must be at least one and at most \(5, 5, 6\) wavenumbers.*; got 7": {"modes": 7},
        "`fft` must be built with `real=True`": {"fft": fft.replace(real=False)},
    }
    usual = {"fft": fft, "in_channels": 1, "out_channels": 1, "width": 2, "modes": 2, "depth": 1}
    for message, options in cases.items():
        with pytest.raises(ValueError, match=message):
            FNO3D(**usual | options, key=key)
    with pytest.raises(
        ValueError, match=r"`x` must have shape \(\*batch, 1, nx, ny, nz\), with 1 channels; got \(2, 9"
    ):
        FNO3D(**usual, key=key)(np.zeros((2, *SHAPE)))
    unchecked = {"fft": plain.FFT3D(make_mesh((2, 4)), shape=SHAPE, pad=True, real=True)}
    with pytest.raises(TypeError, match="`activation` must be a function; got 'gelu'"):
        plain.nn.FNO3D(**usual | unchecked, activation="gelu", key=key)
    with pytest.raises(TypeError, match="`fft` must be an `FFT` or a `Transform`; got None"):
        plain.nn.FNO3D(**usual | {"fft": None}, key=key)
