"""Tests of particles on a mesh with groups of devices: mesh axes that do not shard the grid."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import particles
from jax.sharding import NamedSharding, PartitionSpec as P

import waves
from helpers import make_mesh


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_read_a_field_whose_components_groups_share(kind):
    """Each group holds all particles, and reads all components."""
    mesh = make_mesh((2, 2, 2), kind)
    dec = dops.Decomposition(mesh, shape=(4, 6, 2), box=dops.Box(1.0))
    pm, rng = particles.ParticleMesh(dec, "tsc"), np.random.default_rng(5)
    x = rng.uniform(size=(20, 3))
    p = pm.place(x, capacity=20, m=rng.normal(size=20))
    field, weights = rng.normal(size=(2, 4, 6, 2)), rng.normal(size=(p.positions.shape[0], 2))
    sharded = dec.shard(field)
    assert "c" in sharded.sharding.spec
    expected = np.stack([pm.read(p, component) for component in field], axis=-1)
    np.testing.assert_allclose(pm.read(p, sharded), expected, rtol=1e-13)
    total = lambda field: jnp.sum(weights * pm.read(p, field))
    np.testing.assert_allclose(jax.jit(total)(sharded), np.sum(weights * expected), rtol=1e-12)
    gradient = jax.jit(jax.grad(total))(sharded)
    np.testing.assert_allclose(gradient, dec.gather(pm.deposit(p, weights)), rtol=1e-12)
    nufft = particles.NUFFT(dec, 1e-10)
    q = nufft.particle_mesh.place(x, id=np.arange(20))
    values = nufft.particle_mesh.gather(q.replace(r=nufft.type2(q, dops.FFT(dec)(dec.shard(field + 0j)))))["r"]
    for i, component in enumerate(field):
        wanted = waves.type2(x, np.fft.fftn(component), dec.shape, dec.box_lengths, real=False)
        np.testing.assert_allclose(values[:, i], wanted, atol=1e-8 * abs(wanted).max())


def test_vmap_over_a_batch_that_groups_share(plain):
    """JAX cannot map particles over an Explicit mesh axis; the error says what to do, and that works."""
    mesh = make_mesh((2, 2, 2), "explicit")
    dec = plain.Decomposition(mesh, shape=(4, 6, 2), box=plain.Box(1.0))
    pm = plain.particles.ParticleMesh(dec, "cic")
    p = pm.place(np.random.default_rng(5).uniform(size=(20, 3)), capacity=20, m=np.arange(20.0))
    functions = {
        "deposit": lambda s: pm.deposit(p, s * p["m"]),
        "exchange": lambda s: pm.exchange(p.replace(p.positions + s))["m"],
        "sum": lambda s: pm.sum(p, s * p["m"]),
    }
    factors = jax.device_put(np.array([1.0, 2.0]), NamedSharding(mesh, P("c")))
    refused = r"`jax.vmap` must not be sharded .* over 'c'\. .*jax.sharding.reshard"
    with jax.set_mesh(mesh):
        for function in functions.values():
            mapped = jax.jit(jax.vmap(function))
            with pytest.raises(ValueError, match=refused):
                mapped(factors)
            every = mapped(jax.sharding.reshard(factors, P()))
            np.testing.assert_allclose(every[1], function(2.0), rtol=1e-12)


@pytest.mark.parametrize(("kind", "backend"), [("auto", "xla"), ("explicit", "native")])
def test_derivatives_inside_a_shard_map_over_the_groups(kind, backend):
    """Each group has weights, displacements and a field of its own. Another field is the same in all groups."""
    mesh = make_mesh((2, 2, 2), kind)
    dec = dops.Decomposition(mesh, shape=(4, 6, 2), axes=("x", "y"), box=dops.Box(1.0), backend=backend)
    pm, rng = particles.ParticleMesh(dec, "tsc"), np.random.default_rng(5)
    p = pm.place(rng.uniform(size=(20, 3)), capacity=20)
    slots = p.positions.shape[0]

    def of_group(w, d, field, common, p):
        moved = pm.exchange(p.replace(p.positions + d[0], w=w[0]))
        mass = pm.deposit(moved, moved["w"])
        return pm.sum(moved, pm.read(moved, field[0] * mass) * pm.read(moved, common) + moved["w"] ** 2)

    arrays = [rng.normal(size=(2, slots)), 0.3 * rng.normal(size=(2, slots, 3)), rng.normal(size=(2, *dec.shape))]
    arrays += [rng.normal(size=dec.shape)]
    specs = P("c", ("x", "y")), P("c", ("x", "y"), None), P("c", "x", "y"), P("x", "y")
    of_groups = (P("c"), P("c"), P("c"), P())
    axes = {"axis_names": {"c"}, "in_specs": (*of_groups, P()), "out_specs": of_groups}
    gradient = jax.shard_map(jax.grad(of_group, (0, 1, 2, 3)), mesh=mesh, **axes)
    found = jax.jit(gradient)(*[jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs)], p)
    value = jax.jit(lambda *given: sum(of_group(*(x[i:][:1] for x in given[:3]), given[3], p) for i in range(2)))
    for i, x in enumerate(arrays):
        step = 1e-6 * rng.normal(size=x.shape)
        above, below = (value(*arrays[:i], x + sign * step, *arrays[i + 1 :]) for sign in (1, -1))
        np.testing.assert_allclose(np.sum(found[i] * step), (above - below) / 2, rtol=1e-6, err_msg=str(i))
