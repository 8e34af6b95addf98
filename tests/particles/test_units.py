"""Particles in any unit of mass and length, in half precision, and more of them than 32 bits can count."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import particles

from helpers import assert_close, make_mesh


PLACES = np.random.default_rng(0).random((50, 3)).astype(np.float32)


def mesh_of_box(length):
    dec = dops.Decomposition(make_mesh((2, 2)), shape=(8, 8, 8), box=dops.Box(length))
    return particles.ParticleMesh(dec, "tsc")


def accelerations(length, mass, strength):
    pm = mesh_of_box(length)
    p = pm.place(PLACES * np.float32(length), mass=np.full(50, mass, np.float32))
    return np.asarray(particles.Gravity(pm, strength, mass="mass")(p), float)


@pytest.mark.parametrize(
    ("length", "mass", "strength"),
    [(1e13, 2e30, 4 * np.pi * 6.674e-11), (1e11, 2e30, 6.674e-11), (1e-10, 1e-20, 1e-3), (1e-12, 10, 1)],
)
def test_gravity_is_proportional(length, mass, strength):
    """In SI units, for example."""
    expected = accelerations(1.0, 1.0, 1.0) * strength * mass / length**2
    np.testing.assert_allclose(accelerations(length, mass, strength), expected, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("weight", [1e-27, 1e-20, 1e18, 1e30])
def test_shot_noise_does_not_depend_on_the_unit_of_mass(weight):
    pm = mesh_of_box(1.0)
    p = pm.place(PLACES, w=np.full(50, weight, np.float32))
    assert_close(pm.shot_noise(p, p["w"]), 1 / 50, 1e-5)


def test_shot_noise_fits_where_the_volume_does_not():
    pm = mesh_of_box(1e13)
    assert_close(np.asarray(pm.shot_noise(pm.place(PLACES * np.float32(1e13))), float) / 1e39, np.array(1 / 50), 1e-5)


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16", np.int32])
def test_means_of_many_numbers(dtype):
    pm = mesh_of_box(1.0)
    places = np.random.default_rng(1).random((70_000, 3)).astype(np.float32)
    values = np.full(70_000, 60_000).astype(jax.numpy.dtype(dtype))  # Their sum is more than any of these dtypes holds.
    p = pm.place(places, values=values)
    assert_close(pm.mean(p, p["values"]), float(values[0]), 1e-3)


@pytest.mark.parametrize("backend", ["xla", "native"])
def test_a_sample_of_more_particles_than_32_bits_can_count(backend):
    dec = dops.Decomposition(make_mesh((2,)), shape=(8, 4), backend=backend)
    sample = particles.ParticleMesh(dec).sample(np.full((8, 4), 2.0**30), jax.random.key(0), capacity=300)
    assert sample.overflows
    np.testing.assert_array_equal(sample.counts, 300)
    with pytest.raises(ValueError, match="2147483647"):
        sample.check()


def test_a_density_of_integers_is_refused(plain):
    pm = plain.particles.ParticleMesh(plain.Decomposition(make_mesh((2, 2)), shape=(8, 8, 8)))
    with pytest.raises(TypeError, match=r"^`density` must be real numbers; got int64"):
        pm.sample(np.ones((8, 8, 8), int), jax.random.key(0), capacity=300)
