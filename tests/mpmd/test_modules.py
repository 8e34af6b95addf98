"""Tests of Equinox modules that move between groups, whole or in parts."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import mpmd
from jax.sharding import NamedSharding, PartitionSpec as P

from groups import make_groups


class Network(eqx.Module):
    """A module with arrays and with other objects that users keep in modules."""

    inner: eqx.nn.Sequential
    table: np.ndarray
    activation: Callable
    rate: float
    training: bool
    name: object
    kind: type

    def __call__(self, x):
        return self.activation(self.inner(x)) * self.rate + self.table


@eqx.filter_jit
def run(model, x):
    return model(x)


def test_whole_modules_move():
    """A module moves into a group, to another group and back. Only its arrays change, and its results stay equal."""
    groups = make_groups((2, 2, 2))
    place, last = mpmd.MpmdSharding(groups, [0], P()), NamedSharding(groups.groups[1], P())
    linear, dropout = eqx.nn.Linear(2, 3, key=jax.random.key(0)), eqx.nn.Dropout(0.5, inference=True)
    inner = eqx.nn.Sequential([linear, eqx.nn.Lambda(jax.nn.gelu), dropout])
    model = Network(inner, np.arange(3.0), jnp.tanh, 0.5, False, "name", np.float32)
    arrays, static = eqx.partition(model, lambda leaf: isinstance(leaf, np.ndarray | jax.Array))
    values = jax.tree.map(np.array, arrays)
    x = np.array([0.3, -2.0])
    weight, bias = jax.tree.leaves(values)[:2]
    expected = 0.5 * np.tanh(jax.nn.gelu(weight @ x + bias)) + np.arange(3.0)
    moved = mpmd.spmd_to_mpmd_reshard(groups, model, jax.tree.map(lambda _: place, arrays))
    for part in (moved, mpmd.reshard(moved, mpmd.MpmdSharding(groups, [1], P())), mpmd.reshard(moved, last)):
        found, rest = eqx.partition(part, eqx.is_array)
        assert eqx.tree_equal(rest, static)
        for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(values), strict=True):
            np.testing.assert_array_equal(got, want)
        there = jax.tree.leaves(found)[0].sharding
        at = jax.device_put(x, there)
        result = run(part, at)
        assert result.sharding.device_set == there.device_set
        np.testing.assert_allclose(result, expected, rtol=1e-12)
        np.testing.assert_array_equal(run(eqx.combine(static, found), at), result)
        slope = eqx.filter_grad(lambda model, x: jnp.sum(run(model, x)))(part, at)
        np.testing.assert_array_equal(slope.table, np.ones(3))
    back = mpmd.mpmd_to_spmd_reshard(groups, moved, last)
    assert eqx.tree_equal(eqx.filter(back, eqx.is_array, inverse=True), static)


def test_only_the_arrays_of_a_module_may_move():
    """`eqx.combine(static, moved)` puts the moved arrays back into the module. `static` must come first."""
    groups = make_groups((2, 4))
    model = eqx.nn.MLP(2, 2, 3, 1, activation=jax.nn.gelu, key=jax.random.key(0))
    expected = model(np.ones(2))
    arrays, static = eqx.partition(model, eqx.is_array)
    moved = mpmd.spmd_to_mpmd_reshard(groups, arrays, mpmd.MpmdSharding(groups, [1], P()))
    whole = eqx.combine(static, moved)
    at = jax.device_put(np.ones(2), NamedSharding(groups.groups[1], P()))
    np.testing.assert_allclose(run(whole, at), expected, rtol=1e-12)
    local = jax.tree.map(lambda array: array, moved)  # `jax.Array`s can be combined in any order.
    np.testing.assert_allclose(eqx.combine(local, static)(at), expected, rtol=1e-12)


def test_arrays_of_other_libraries_are_refused(plain):
    mpmd = plain.mpmd
    groups = mpmd.MpmdMesh(make_groups((2, 4)).mesh, "g")
    place = mpmd.MpmdSharding(groups, [0], P())
    strange = {"a": jnp.ones(2), "b": type("Strange", (), {"__array__": None})()}
    with pytest.raises(TypeError, match="`tree` must hold arrays of JAX and NumPy; got Strange"):
        mpmd.spmd_to_mpmd_reshard(groups, strange, place)
    strange["a"] = jax.device_put(strange["a"], place.group_sharding(0))
    with pytest.raises(TypeError, match="`tree` must hold arrays with a NamedSharding; got Strange"):
        mpmd.reshard(strange, place)
