"""Tests of groups of devices: one mesh axis shards the batch, and the devices along the others share one field.

The program of a group may run inside of a `jax.shard_map` over that axis, or the whole batch is an argument. Values and
gradients are compared with those of each field alone.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from catalogue import SIZES, Entry, catalogue, with_few_steps
from helpers import assert_close, make_mesh


@functools.cache
def everything(kind: str, ndim: int) -> dict[str, Entry]:
    return with_few_steps(catalogue(make_mesh(SIZES[ndim], kind), ndim))


def loss(function):
    return lambda x: sum(jnp.sum(jnp.abs(y) ** 2) for y in jax.tree.leaves(function(x)))


def groups(entry: Entry) -> tuple[str, list[np.ndarray], jax.Array]:
    """Return a mesh axis that the grid leaves over, a field for each group of devices along it, and the batch."""
    mesh, used = entry.layout.mesh, str(entry.layout.spec)
    free = next(name for name in mesh.axis_names if name not in used)
    fields = [np.roll(entry.field(), i, -1) / (i + 1) for i in range(mesh.shape[free])]
    return free, fields, jax.device_put(np.stack(fields), NamedSharding(mesh, P(free, *entry.sharding().spec)))


def close_to_single_fields(entry: Entry, fields: list[np.ndarray], function, results) -> None:
    alone = jax.jit(function)
    for i, field in enumerate(fields):
        expected = alone(jax.device_put(field, entry.sharding()))
        jax.tree.map(lambda found, one: assert_close(np.asarray(found)[i], one, 1e-9), results, expected)  # noqa: B023


def inside_a_shard_map(entry: Entry) -> None:
    free, fields, batch = groups(entry)
    for function in (entry.function, jax.grad(loss(entry.function))):

        def of_group(block, function=function):
            return jax.tree.map(lambda y: y[None], function(block[0]))

        axes = {"axis_names": {free}, "in_specs": P(free), "out_specs": P(free)}
        results = jax.jit(jax.shard_map(of_group, mesh=entry.layout.mesh, **axes))(batch)
        close_to_single_fields(entry, fields, function, results)


def gradient_of_a_batch(entry: Entry) -> None:
    _, fields, batch = groups(entry)
    gradient = jax.jit(jax.grad(loss(jax.vmap(entry.function))))(batch)  # Without `jax.set_mesh`.
    close_to_single_fields(entry, fields, jax.grad(loss(entry.function)), gradient)


def failures(kind: str, ndim: int, names: str, attempt) -> dict[str, str]:
    found, entries = {}, {name: one for name, one in everything(kind, ndim).items() if re.search(names, name)}
    assert entries
    for name, entry in entries.items():
        try:
            attempt(entry)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return found


ALL = [
    pytest.param(kind, ndim, "", marks=[pytest.mark.sweep, pytest.mark.timeout(7200)])
    for kind in ("auto", "explicit")
    for ndim in SIZES
]


@pytest.mark.parametrize(
    ("kind", "ndim", "names"),
    [("auto", 3, "^(CG|Multigrid)$"), ("explicit", 2, "^(structure_functions|HaloConv|Convolution)$"), *ALL],
)
def test_values_and_gradients_inside_a_shard_map(kind, ndim, names):
    assert failures(kind, ndim, names, inside_a_shard_map) == {}


@pytest.mark.parametrize(("kind", "ndim", "names"), [("explicit", 2, "^(bispectrum|HyperDiffusion: IMEXRK)$"), *ALL])
def test_gradients_of_a_batch(kind, ndim, names):
    """Loops of JAX carry cotangents whose types lack the mesh axis of the batch."""
    assert failures(kind, ndim, names, gradient_of_a_batch) == {}
