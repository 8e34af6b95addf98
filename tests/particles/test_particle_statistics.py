"""Statistics of particles: their density contrast and shot noise, and particles that are drawn from a density."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import particles, spectral
from decompops.particles._modes import deconvolution

from helpers import assert_close, make_mesh


def mesh_of(sizes, shape=(16, 16, 16), lengths=(1.0, 2.0, 3.0), window="pcs", backend="native"):
    dec = dops.Decomposition(make_mesh(sizes), shape=shape, box=dops.Box(lengths), pad=True, backend=backend)
    return particles.ParticleMesh(dec, window)


def test_particles_at_random_have_the_power_of_shot_noise():
    """Also near the Nyquist wavenumber, where the window damps modes and images add to them. In a cube of 16³ cells."""
    pm, count, rng = mesh_of((2, 4), lengths=(1.0, 1.0, 1.0)), 20_000, np.random.default_rng(0)
    w = rng.uniform(0.5, 1.5, count)
    p = pm.place(rng.uniform(size=(count, 3)), w=w)
    fft = dops.FFT(pm.decomposition, real=True)
    noise = pm.shot_noise(p, p["w"])
    np.testing.assert_allclose(noise, np.sum(w**2) / np.sum(w) ** 2, rtol=1e-12)
    of = lambda field: spectral.power_spectrum(fft, field)
    found, plain = jax.jit(lambda p: (of(pm.contrast(p, p["w"])), of(pm.deposit(p, p["w"]) / w.sum() * 16**3).power))(p)
    scatter = np.sqrt(2 / np.asarray(found.modes))
    assert (np.abs(found.power / noise - 1) < 4 * scatter).all()
    last = found.power[-2:] / noise - 1
    assert (np.abs(last) < 4 * scatter[-2:]).all()
    assert scatter[-1] < 0.06
    assert plain[-1] < 0.7 * noise  # The window damps these modes, unless it is divided out.


@pytest.mark.parametrize(
    ("shape", "window", "images"), [((4,), "cic", 0.015), ((4, 4), "tsc", 0.003), ((5,), "pcs", 0.0003)]
)
def test_the_power_of_each_mode_is_the_shot_noise(shape, window, images):
    """The mean over all places of one heavy particle among many, so without a scatter. Also of the Nyquist modes."""
    pm, fine = mesh_of((1,), shape, (1.0,) * len(shape), window), 8
    q = pm.lattice(fine, offset=0.25)
    weight = lambda i: jnp.where(jnp.arange(len(q.positions)) == i, 1.0, 0.0)
    number = fine ** len(shape) * np.prod(shape)
    spectra = jax.vmap(lambda i: jnp.abs(jnp.fft.fftn(pm.contrast(q, weight(i)))) ** 2)(jnp.arange(number))
    power = np.mean(spectra, axis=0).ravel()[1:] / float(np.prod(shape)) ** 2  # Without the mean.
    assert (np.abs(power - 1) < images).all()
    assert_close(pm.shot_noise(q, weight(0)), 1.0, 1e-12)


@pytest.mark.parametrize("n", [300_000, 300_001])
def test_modes_next_to_the_nyquist_mode_are_no_sums(n):
    """In a long line, their wavenumbers are equal to that of the Nyquist mode to five digits."""
    fft = dops.FFT(mesh_of((1,), (n,), (1.0,)).decomposition, real=True)
    usual, unbiased = (deconvolution(fft, jnp.ones(1), "cic", 1, nyquist) for nyquist in (1.0, 0.5))
    assert_close(unbiased / usual, np.where(2 * np.arange(n // 2 + 1) == n, 0.5, 1.0))


def test_what_empty_slots_hold_does_not_matter():
    """Masses are zero there, so inverse masses are infinite, and quotients of masses NaN."""
    pm, rng = mesh_of((2,), (4, 4), (1.0, 1.0), "cic"), np.random.default_rng(0)
    m = rng.uniform(1, 2, 9)
    p = pm.place(rng.random((9, 2)), m=m, id=np.arange(9))
    gradient = jax.jit(jax.grad(lambda m: pm.shot_noise(p, 1 / m)))(p["m"])
    total = np.sum(1 / m)
    expected = 2 * (np.sum(m**-2) / total - 1 / m) / (total * m) ** 2
    np.testing.assert_allclose(pm.gather(p.replace(slope=gradient))["slope"], expected, atol=1e-15)

    def moved(matter):
        times, still = jnp.linspace(0.1, 1, 3), lambda p: jnp.zeros_like(p.positions)
        leapfrog = particles.KickDriftKick(pm, still, times, particles.Cosmology(matter))
        start = p.replace(velocity=jnp.stack([p["m"] / p["m"]] * 2, axis=1))
        last, _ = leapfrog.rollout(start)
        return pm.sum(last, last.positions)[0]

    slope = jax.jit(jax.value_and_grad(moved))
    assert slope(0.3)[1] == pytest.approx((slope(0.3 + 1e-5)[0] - slope(0.3 - 1e-5)[0]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_samples_of_every_kind_of_key_and_of_half_precision(implementation):
    """Positions on 600 cells need more digits than half precision has. Lone particles may be anywhere in a cell."""
    found = []
    for sizes, dtype in (((2,), np.float32), ((1,), "bfloat16")):
        pm = mesh_of(sizes, (600, 4), (1.0, 1.0))
        density, key = jnp.full((600, 4), 0.5, dtype), jax.random.key(0, impl=implementation)
        x = pm.gather(pm.sample(density, key, capacity=2000).check())["positions"]
        found.append(x[np.lexsort(x.T)])
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
    assert abs(len(found[0]) - 1200) < 5 * 1200**0.5
    np.testing.assert_allclose((found[0] * [600, 4] % 1).var(0), 1 / 12, atol=0.01)


@pytest.mark.parametrize("sizes", [(2, 4), (8,), (1,)])
def test_particles_from_a_density(sizes):
    """Counts in cells are Poisson numbers with the given means, positions fill the cells, on every mesh the same."""
    pm = mesh_of(sizes, (9, 8, 6), backend="xla" if sizes == (2, 4) else "native")
    dec, rng = pm.decomposition, np.random.default_rng(0)
    means = rng.uniform(0, 20, (9, 8, 6))
    p = jax.jit(lambda means, key: pm.sample(means, key, capacity=6000))(dec.shard(means), jax.random.key(1)).check()
    x = pm.gather(p)["positions"]
    cells = np.floor(x / dec.spacing + 0.5).astype(int)
    counts = np.zeros((9, 8, 6))
    np.add.at(counts, tuple((cells % (9, 8, 6)).T), 1)
    pull = (counts - means) / np.sqrt(means)
    assert abs(pull.mean()) < 4 / np.sqrt(means.size)
    assert abs(np.mean(pull**2) - 1) < 6 / np.sqrt(means.size)
    inside = x / dec.spacing + 0.5 - cells
    np.testing.assert_allclose(inside.mean(0), 0.5, atol=0.02)
    np.testing.assert_allclose(inside.var(0), 1 / 12, atol=0.005)
    whole = mesh_of((1,), (9, 8, 6))
    same = whole.gather(whole.sample(jnp.asarray(means), jax.random.key(1), capacity=6000))["positions"]
    order = lambda x: x[np.lexsort(np.round(x, 9).T)]
    np.testing.assert_allclose(order(x % dec.box_lengths), order(same % dec.box_lengths), atol=1e-12)


def test_sampling_says_what_is_wrong():
    pm = mesh_of((2,), (4, 4, 4))
    ones = np.ones((4, 4, 4))
    traced = jax.jit(lambda density: pm.sample(density, jax.random.key(0), capacity=100))
    with pytest.raises(ValueError, match=r"`capacity` must be at least \d+, the number of particles on device"):
        traced(100 * ones).check()
    settled = pm.exchange(pm.grow(traced(100 * ones), 5000))  # A sample is drawn again: its particles are lost.
    with pytest.raises(ValueError, match=r"`positions` must be finite; got 100 particles with NaN"):
        settled.check()
    assert pm.sample(100 * ones, jax.random.key(0), capacity=5000).check().counts.sum() > 6000
    with pytest.raises(ValueError, match=r"`density` must be finite and at least zero; got -1\.0"):
        pm.sample(ones - 2 * (np.arange(64).reshape(4, 4, 4) == 27), jax.random.key(0), capacity=100)
    for cell in ((1, 2, 3), (3, 0, 0)):  # on the first and on the last device
        density = np.ones((4, 4, 4))
        density[cell] = np.nan
        found = traced(density)
        assert bool(found.overflows)
        with pytest.raises(ValueError, match=rf"got 1 particles with NaN .* on device {cell[0] // 2}"):
            found.check()
    assert not bool(traced(np.ones((4, 4, 4))).overflows)


def test_wrong_arguments_are_named(plain):
    pm = plain.particles.ParticleMesh(plain.Decomposition(make_mesh((2,)), shape=(4, 4, 4)))
    p, key = pm.place(np.ones((3, 3))), jax.random.key(0)
    n = len(p.positions)
    p = p.replace(charge=np.ones(n) + 0j)
    for call in (pm.contrast, pm.shot_noise):
        with pytest.raises(ValueError, match=rf"`weights` must be real numbers of shape \({n},\); got \({n}, 3\)"):
            call(p, p.positions)
        with pytest.raises(TypeError, match=r"`weights` must be real numbers of shape .* got .* complex128"):
            call(p, p["charge"])
    with pytest.raises(KeyError, match=r"`name` must be one of the attributes \('charge',\) of .*; got 'mass'"):
        p["mass"]
    with pytest.raises(TypeError, match=r"`charge` must be real numbers of shape .* got .* complex128"):
        plain.particles.Gravity(pm, mass="charge")(p)
    for call in (pm.deposit, pm.exchange, lambda x: pm.grow(x, 99), lambda x: pm.sum(x, np.ones(n))):
        with pytest.raises(TypeError, match=r"`p` must be `Particles`, as `ParticleMesh.place` returns; got"):
            call(p.positions)
    with pytest.raises(ValueError, match=r"`field` must have shape \(\*batch, 4, 4, 4\) .*; got \(4, 4\)"):
        pm.read(p, np.ones((4, 4)))
    with pytest.raises(ValueError, match=r"`density` must be one field, of 3 axes; got the shape \(2, 4, 4, 4\)"):
        pm.sample(np.ones((2, 4, 4, 4)), key, capacity=9)
    with pytest.raises(TypeError, match="`density` must be real numbers; got complex128"):
        pm.sample(np.ones((4, 4, 4)) + 0j, key, capacity=9)
    with pytest.raises(ValueError, match="`density` must be finite and at least zero; got inf"):
        pm.sample(np.where(np.arange(4) == 1, np.inf, np.ones((4, 4, 4))), key, capacity=9)


def test_values_in_the_padding_of_a_density_do_not_matter():
    dec = dops.Decomposition(make_mesh((2,)), shape=(3, 4), box=dops.Box(1.0), pad=True)
    pm, ones = particles.ParticleMesh(dec), dec.shard(np.ones((3, 4)))
    sample = lambda density: pm.gather(pm.sample(density, jax.random.key(0), capacity=40).check())["positions"]
    np.testing.assert_array_equal(sample(ones.at[3].set(-1.0)), sample(ones))


def test_the_mean_of_more_particles_than_32_bits_can_count():
    pm = mesh_of((2,), (4, 4, 4))
    p = pm.place(np.random.default_rng(0).random((20, 3)))
    full = eqx.tree_at(lambda p: p.counts, p, np.array([2**31 - 1, 3], np.int32))
    values = np.ones(len(p.positions), np.float32)
    with jax.enable_x64(False):
        added = int(pm.sum(full, values))
        np.testing.assert_allclose(pm.mean(full, values), added / (2**31 + 2), rtol=1e-6)
