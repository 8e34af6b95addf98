"""Tests of `Load` and `ParticleMesh.loads`: how evenly particles are spread, on this mesh and on others."""

import math

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import particles

import clouds
from helpers import make_mesh


COUNT = 400


def particle_mesh(sizes, shape, *, pad=True, periodic=True, kind="auto") -> particles.ParticleMesh:
    box = dops.Box(tuple(1.0 + axis for axis in range(len(shape))))
    return particles.ParticleMesh(
        dops.Decomposition(make_mesh(sizes, kind), shape=shape, box=box, pad=pad), "cic", periodic
    )


def positions_in(pm: particles.ParticleMesh) -> np.ndarray:
    """Return random positions, most of them at low x, and some outside the box."""
    uniform = np.random.default_rng(0).uniform(-0.2, 1.2, (COUNT, pm.decomposition.ndim))
    uniform[: 3 * COUNT // 4, 0] *= 0.1
    return uniform * pm.decomposition.box_lengths


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_load(kind):
    pm = particle_mesh((2, 4), (8, 8, 8), kind=kind)
    p = pm.place(positions_in(pm))
    counts = np.asarray(p.counts)
    np.testing.assert_allclose(p.load.ratio, counts.max() / counts.mean(), rtol=1e-6)
    np.testing.assert_array_equal(p.load.counts, counts)
    device, most = np.argmax(counts), counts.max()
    ratio = f"{most / (COUNT / 8):.2f}"
    assert str(p.load) == f"device {device} has {most} particles, {ratio} x the mean; each device has {counts}"

    @jax.jit
    def moved(p):
        q = pm.exchange(p.replace(jnp.zeros_like(p.positions)))
        str(q.load)  # Traced numbers have no value, but they can be printed.
        return p.load.ratio, q.load

    before, after = moved(pm.grow(p, COUNT))
    np.testing.assert_allclose(before, p.load.ratio, rtol=1e-12)
    np.testing.assert_allclose(after.ratio, 8)
    np.testing.assert_array_equal(after.counts, [COUNT, *[0] * 7])
    assert np.isnan(pm.place(np.zeros((0, 3))).load.ratio)


@pytest.mark.parametrize(
    ("sizes", "shape", "pad", "periodic", "meshes"),
    [
        ((2, 4), (9, 10, 5), True, (True, False, True), {(1, 8), (2, 4), (4, 2), (8, 1)}),
        ((2, 4), (12, 8, 4), False, True, {(1, 8), (2, 4), (4, 2)}),
        ((8,), (16, 6), True, True, {(8,)}),
        ((2, 2), (4, 4, 4, 4), True, True, {(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)}),
        ((1,), (5,), True, True, {()}),
    ],
)
def test_loads(sizes, shape, pad, periodic, meshes):
    """NumPy counts the particles in the blocks of each mesh; positions and particles have the same answer."""
    pm = particle_mesh(sizes, shape, pad=pad, periodic=periodic)
    dec, x = pm.decomposition, positions_in(pm)
    found = pm.loads(x)
    assert found.keys() == meshes
    flags = periodic if isinstance(periodic, tuple) else (periodic,) * len(shape)
    for parts, load in found.items():
        core = [-(-n // count) for n, count in zip(shape, (*parts, 1))]
        home = clouds.owners(x, shape, dec.box_lengths, flags, core)
        expected = np.bincount(np.ravel_multi_index(home.T, (*parts, 1)), minlength=math.prod(sizes))
        np.testing.assert_array_equal(load.counts, expected)
    ratios = [float(load.ratio) for load in found.values()]
    assert ratios == sorted(ratios)
    of_particles = pm.loads(pm.place(x))
    assert list(of_particles) == list(found)
    for parts, load in of_particles.items():
        np.testing.assert_array_equal(load.counts, found[parts].counts)


def test_a_better_mesh():
    """The advice holds: on the mesh that it puts first, the particles have the load that it promises."""
    pm = particle_mesh((8,), (8, 8, 8))
    x = positions_in(pm)
    best, load = next(iter(pm.loads(pm.place(x)).items()))
    assert best == (1, 8)
    there = particle_mesh(best, (8, 8, 8))
    np.testing.assert_array_equal(there.place(x).counts, load.counts)
    assert load.ratio < pm.place(x).load.ratio / 2


def test_nothing_is_gathered():
    pm = particle_mesh((2, 4), (8, 8, 8), kind="explicit")
    p = pm.place(positions_in(pm))
    text = jax.jit(lambda p: p.load.ratio).lower(p).compile().as_text()
    assert "all-gather" not in text


def test_errors(plain):
    dec = plain.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8))
    pm = plain.particles.ParticleMesh(dec)
    with pytest.raises(ValueError, match=r"`positions` must be real numbers of shape \(n, 3\); got \(4, 2\) float64"):
        pm.loads(np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"`positions` must be finite; got \[nan  0.  0.\] for particle 0"):
        pm.loads(np.array([[np.nan, 0, 0]]))
    p = pm.place(np.ones((4, 3)))
    with pytest.raises(ValueError, match="`positions` must be finite; got particles with NaN"):
        pm.loads(p.replace(p.positions.at[0, 0].set(np.inf)))
    with pytest.raises(TypeError, match=r"`p` must not be traced.*; use `p\.load` inside"):
        jax.jit(lambda p: pm.loads(p)[2, 4].ratio)(p)


CALLS = {
    "exchange": lambda pm, p: pm.exchange(p),
    "deposit": lambda pm, p: pm.deposit(p),
    "read": lambda pm, p: pm.read(p, jnp.ones(pm.decomposition.shape)),
    "sum": lambda pm, p: pm.sum(p, jnp.ones(len(p.positions))),
    "grow": lambda pm, p: pm.grow(p, 100),
    "loads": lambda pm, p: pm.loads(p),
    "gravity": lambda pm, p: particles.Gravity(pm)(p),
}


@pytest.mark.parametrize("call", CALLS)
def test_particles_of_another_mesh(call):
    """A device would take the slots of others for its own, with counts that are not theirs."""
    mesh_of = lambda devices, shape: particles.ParticleMesh(
        dops.Decomposition(make_mesh((devices,)), shape=shape, box=dops.Box(1.0))
    )
    p = mesh_of(4, (8, 8)).place(np.random.default_rng(0).random((20, 2)), capacity=24)
    for devices, shape in ((8, (8, 8)), (2, (8, 8)), (4, (8, 8, 8))):
        with pytest.raises(ValueError, match=rf"`p` must be particles .* {devices} devices and {len(shape)} axes; got"):
            CALLS[call](mesh_of(devices, shape), p)
