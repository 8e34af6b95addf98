"""Gravity, the leapfrog, the growth in a universe, and operators on modes, against plain NumPy and exact solutions."""

import functools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import particles
from scipy.integrate import solve_ivp
from scipy.special import hyp2f1

import clouds
from helpers import assert_close, make_mesh


SHAPE, LENGTHS = (8, 6, 5), (1.0, 2.0, 1.5)
COUNT = 40


def problem(sizes=(2, 4), window="cic", shape=SHAPE, lengths=LENGTHS, count=COUNT, *, backend="native", **attributes):
    """Return a `ParticleMesh`, its particles, and the positions and masses as NumPy arrays."""
    dec = dops.Decomposition(make_mesh(sizes), shape=shape, box=dops.Box(lengths), pad=True, backend=backend)
    rng = np.random.default_rng(0)
    x, m = rng.uniform(size=(count, len(shape))) * lengths, rng.uniform(1, 2, count)
    pm = particles.ParticleMesh(dec, window)
    p = pm.place(x, capacity=count, m=m, id=np.arange(count), **attributes)
    return pm, p, x, m


def angles(shape=SHAPE):
    """Return `k * spacing` along each axis."""
    return np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n) for n in shape), indexing="ij")


def transform(window: str, along) -> np.ndarray:
    """Return the Fourier transform of a window."""
    return np.prod([np.sinc(angle / (2 * np.pi)) for angle in along], axis=0) ** clouds.WIDTHS[window]


def without_nyquist(along, shape=SHAPE):
    return [np.where(np.isclose(np.abs(angle), np.pi) & (n % 2 == 0), 0, angle) for angle, n in zip(along, shape)]


def accelerations(x, m, window, laplacian="exact", gradient="exact", deconvolutions=0, strength=1.0):
    """Return the acceleration of each particle, by plain NumPy."""
    periodic, h = (True,) * 3, np.array(LENGTHS) / SHAPE
    density = clouds.deposit(window, x, m, SHAPE, LENGTHS, periodic) / np.prod(h)
    along = angles()
    squared = {
        "exact": sum((angle / d) ** 2 for angle, d in zip(along, h)),
        2: sum((2 - 2 * np.cos(angle)) / d**2 for angle, d in zip(along, h)),
    }[laplacian]
    squared[0, 0, 0] = 1
    modes = strength * np.fft.fftn(density - density.mean()) / -squared / transform(window, along) ** deconvolutions
    found = []
    for angle, d in zip(without_nyquist(along), h):
        k = {"exact": angle, 2: np.sin(angle), 4: (8 * np.sin(angle) - np.sin(2 * angle)) / 6}[gradient] / d
        field = np.fft.ifftn(-1j * k * modes).real
        found.append(clouds.read(window, x, field, LENGTHS, periodic))
    return np.stack(found, axis=1)


@pytest.mark.parametrize(
    ("window", "options"),
    [
        ("cic", {}),
        ("tsc", {"laplacian": 2, "gradient": 2}),
        ("pcs", {"gradient": 4, "deconvolutions": 2}),
    ],
)
def test_gravity_agrees_with_numpy(window, options):
    pm, p, x, m = problem(window=window, backend="xla" if window == "tsc" else "native")
    gravity = particles.Gravity(pm, 3.0, mass="m", **options)
    got = pm.gather(p.replace(a=jax.jit(gravity)(p)))["a"]
    expected = accelerations(x, m, window, strength=3.0, **options)
    np.testing.assert_allclose(got, expected, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_allclose(m @ got, 0, atol=1e-11 * np.abs(got).max() * COUNT)  # Momentum is conserved.
    contrast = pm.gather(p.replace(a=particles.Gravity(pm, mass="m", **options)(p)))["a"]
    np.testing.assert_allclose(contrast, got / 3.0 * np.prod(LENGTHS) / m.sum(), rtol=1e-9, atol=1e-14)


def test_derivative_of_gravity():
    """The gradient by positions, masses, strength and the lengths of the box, against finite differences."""
    pm, p, *_ = problem((2,), window="pcs")
    weights = np.random.default_rng(1).normal(size=p.positions.shape)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2, 3))
    def loss(x, m, strength, lengths):
        dec = dops.Decomposition(pm.decomposition, box=dops.Box(lengths))
        gravity = particles.Gravity(particles.ParticleMesh(dec, pm.window), strength, mass="m", deconvolutions=1)
        return jnp.sum(weights * gravity(p.replace(x, m=m)))

    at = (p.positions, p["m"], jnp.float64(2.0), tuple(map(jnp.float64, LENGTHS)))
    direction = jax.tree.map(lambda x: jnp.asarray(np.random.default_rng(2).normal(size=x.shape)), at)
    value = lambda eps: loss(*jax.tree.map(lambda x, d: x + eps * d, at, direction))[0]
    _, gradient = loss(*at)
    got = sum(np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction)))
    np.testing.assert_allclose(got, (value(1e-6) - value(-1e-6)) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("window", ["cic", "tsc"])
def test_interlacing_and_deconvolution_agree_with_numpy(window):
    pm, p, x, m = problem(window=window)
    periodic, along = (True,) * 3, angles()
    h = np.array(LENGTHS) / SHAPE
    here, there = (clouds.deposit(window, y, m, SHAPE, LENGTHS, periodic) for y in (x, x - h / 2))
    a, b = np.fft.fftn(here), np.fft.fftn(there) * np.exp(-0.5j * sum(along))
    nyquist = sum(np.abs(u - v) for u, v in zip(along, without_nyquist(along))) > 0
    modes = np.where(nyquist, a, (a + b) / 2)
    got = jax.jit(pm.deposit_interlaced)(p, p["m"])
    np.testing.assert_allclose(pm.decomposition.gather(got), np.fft.ifftn(modes).real, atol=1e-12)
    exact = np.exp(-1j * np.einsum("nk,kabc->nabc", x / h, along)) * m[:, None, None, None] * transform(window, along)
    error = lambda modes: np.linalg.norm((modes - exact.sum(0))[~nyquist])
    assert error(modes) < 0.6 * error(a)  # Interlacing removes the strongest images.
    fft = dops.FFT(pm.decomposition, real=True)
    sharp = particles.Deconvolution(fft, window)(got)
    expected = np.fft.ifftn(modes / transform(window, along)).real
    np.testing.assert_allclose(pm.decomposition.gather(sharp), expected, atol=1e-11)
    both = jax.jit(pm.deposit_interlaced)(p, jnp.stack([p["m"], 2 * p["m"]], axis=1).astype(complex))
    np.testing.assert_allclose(pm.decomposition.gather(both)[1], 2 * np.fft.ifftn(modes), atol=1e-12)


@pytest.mark.parametrize("matter", [1.0, 0.31, 0.05])
def test_growth_in_a_universe(matter):
    """The growth factors solve their differential equation; in a universe of matter alone, they are powers of a."""
    cosmology, a = particles.Cosmology(matter), np.linspace(0.02, 1, 9)
    rate = lambda a: np.sqrt(matter / a**3 + 1 - matter)

    def slope(a, y):
        return [y[1] / (a**3 * rate(a)), 1.5 * matter * y[0] / (a**2 * rate(a))]

    early = 1e-5
    found = solve_ivp(slope, (early, 1), [early, np.sqrt(matter) * early**1.5], "DOP853", a, rtol=1e-12, atol=1e-14).y
    functions = (cosmology.growth, cosmology.momentum_growth, cosmology.expansion)
    growth, momentum, expansion = jax.jit(lambda a: [function(a) for function in functions])(a)
    np.testing.assert_allclose(growth, found[0] / found[0, -1], rtol=2e-7)
    np.testing.assert_allclose(momentum, found[1] / found[0, -1], rtol=2e-7)
    np.testing.assert_allclose(expansion, rate(a), rtol=1e-14)
    start = jax.jit(jax.jacfwd(lambda a: jnp.stack([cosmology.growth(a), cosmology.momentum_growth(a)])))(0.0)
    np.testing.assert_allclose(start, [1 / found[0, -1], 0], rtol=1e-5)  # D is proportional to a at early times.
    assert cosmology.growth(0.0) == cosmology.momentum_growth(0.0) == 0
    if matter == 1:
        np.testing.assert_allclose(growth, a, rtol=1e-13)
        np.testing.assert_allclose(momentum, a**1.5, rtol=1e-13)
    of = jax.jit(jax.value_and_grad(lambda matter: particles.Cosmology(matter).growth(0.3)))
    difference = (of(matter + 1e-6)[0] - of(matter - 1e-6)[0]) / 2e-6
    np.testing.assert_allclose(of(matter)[1], difference, rtol=1e-6)


@pytest.mark.parametrize("matter", np.float32([0.9999, 0.31, 1e-3, 1e-6]).tolist())
def test_growth_in_the_far_future_and_without_much_matter(matter):
    """The growth factors and their derivatives, against hypergeometric functions."""

    def exact(a, matter):
        x = a**3 * (1 - matter) / matter
        growth, slope = hyp2f1(1 / 3, 1, 11 / 6, -x), -6 / 11 * x * hyp2f1(4 / 3, 2, 17 / 6, -x)
        momentum = a**1.5 * np.sqrt(matter + (1 - matter) * a**3) * (growth + slope)
        today = hyp2f1(1 / 3, 1, 11 / 6, 1 - 1 / matter)
        return np.stack([a * growth / today, momentum / today, (growth + slope) / growth])

    @jax.jit
    def found(a, matter):
        cosmology = particles.Cosmology(matter)
        return jnp.stack([cosmology.growth(a), cosmology.momentum_growth(a), cosmology.growth_rate(a)])

    a = np.array([1e-3, 0.1, 1.0, 10.0, 100.0])
    np.testing.assert_allclose(found(a, matter), exact(a, matter), rtol=1e-6)  # Digits of the exact momentum cancel.
    np.testing.assert_allclose(found(a, matter)[0], exact(a, matter)[0], rtol=1e-12)
    np.testing.assert_allclose(found(a.astype(np.float32), jnp.float32(matter)), exact(a, matter), rtol=2e-6)
    for by_a, by_matter in ((a, 0.0), (0 * a, matter * (1 - matter))):
        slope = jax.jvp(found, (a, matter), (by_a, by_matter))[1]
        up, down = (exact(a + eps * by_a, matter + eps * by_matter) for eps in (1e-5, -1e-5))
        np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-6, atol=1e-6)


def test_leapfrog_agrees_with_numpy():
    """Steps of different lengths, with observations, on 8 devices; and back again in time."""
    v = np.random.default_rng(1).normal(size=(COUNT, 3))
    pm, p, x, m = problem(velocity=v)
    times = np.array([0.0, 0.1, 0.15, 0.3, 0.4])
    step = particles.KickDriftKick(pm, particles.Gravity(pm, 0.5, mass="m"), times)
    last, seen = step.rollout(p, every=2, observe=lambda t, p: (t, jnp.sum(pm.deposit(p, p["m"]) ** 2)))
    found, y = pm.gather(last.check()), x
    of = lambda y: accelerations(y, m, "cic", strength=0.5)
    for dt in np.diff(times):
        v = v + dt / 2 * of(y)
        y = y + dt * v
        v = v + dt / 2 * of(y)
    np.testing.assert_allclose(found["positions"], y, atol=1e-11)
    np.testing.assert_allclose(found["velocity"], v, atol=1e-11)
    np.testing.assert_allclose(seen[0], times[[2, 4]])
    density = clouds.deposit("cic", y, m, SHAPE, LENGTHS, (True,) * 3)
    np.testing.assert_allclose(seen[1][-1], np.sum(density**2), rtol=1e-11)
    one = step.step(p, 0.0, 0.1)
    back = pm.gather(particles.KickDriftKick(pm, step.force, times[::-1]).rollout(last)[0].check())
    np.testing.assert_allclose(back["positions"], x, atol=1e-11)
    assert not np.allclose(pm.gather(one)["positions"], found["positions"], atol=1e-3)


@pytest.mark.parametrize("matter", [1.0, 0.3])
def test_linear_growth_in_few_steps(matter):
    """A small plane wave grows like D(a) in steps of any length, and its momentum like a³ E D'."""
    shape, length, amplitude = (16, 4, 4), 2 * np.pi, 1e-4
    dec = dops.Decomposition(make_mesh((2, 2)), shape=shape, box=dops.Box((length, 1.0, 1.0)), backend="native")
    pm, cosmology, a = particles.ParticleMesh(dec, "pcs"), particles.Cosmology(matter), jnp.array([0.1, 0.3, 1.0])
    q = pm.lattice()
    wave = amplitude * jnp.sin(q.positions) * np.array([[1.0, 0, 0]])  # The displacement at a = 1.
    p = q.replace(q.positions + cosmology.growth(a[0]) * wave, velocity=cosmology.momentum_growth(a[0]) * wave)
    last, _ = particles.KickDriftKick(pm, particles.Gravity(pm, deconvolutions=2), a, cosmology).rollout(pm.exchange(p))
    start, end = pm.gather(q.replace(wave=wave)), pm.gather(last.check())
    moved = end["positions"] - start["positions"]
    moved -= np.round(moved / dec.box_lengths) * dec.box_lengths
    np.testing.assert_allclose(moved, start["wave"], atol=0.01 * amplitude)
    momentum = float(cosmology.momentum_growth(1.0)) * start["wave"]
    np.testing.assert_allclose(end["velocity"], momentum, atol=0.01 * amplitude)


def loss_of(pm, p, keep=None):
    """Return a function of positions, velocities, masses, the strength of gravity and the times of three steps."""

    @jax.jit
    def loss(x, v, m, strength, times):
        force = particles.Gravity(pm, strength, mass="m")
        step = particles.KickDriftKick(pm, force, times, particles.Cosmology(0.4))
        observe = lambda t, p: t * jnp.sum(pm.deposit(p) ** 2)
        last, seen = step.rollout(p.replace(x, velocity=v, m=m), every=1, observe=observe, keep=keep)
        return jnp.sum(pm.deposit(last, last["m"]) ** 3) + jnp.sum(seen)

    return loss, (p.positions, p["velocity"], p["m"], jnp.float64(0.5), jnp.linspace(0.5, 1, 4))


def test_gradients_of_a_rollout_are_those_on_one_device():
    found = []
    speeds = np.random.default_rng(1).normal(size=(COUNT, 2))
    for sizes in ((4,), (1,)):
        pm, p, *_ = problem(sizes, "cic", (8, 6), (1.0, 2.0), velocity=speeds)
        loss, at = loss_of(pm, p)
        both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4)))
        value, (x, v, m, *others) = both(*at)
        by_particle = pm.gather(p.replace(x=x, v=v, gm=m))
        found.append((value, by_particle["x"], by_particle["v"], by_particle["gm"], *others))
    for got, expected in zip(*found):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-11 * np.abs(expected).max())
    bump = lambda eps: both(*at[:3], at[3] + eps, at[4])[0]
    np.testing.assert_allclose(found[1][4], (bump(1e-6) - bump(-1e-6)) / 2e-6, rtol=1e-5)


@pytest.mark.sweep
def test_gradients_within_a_given_memory():
    shape, lengths, v = (8, 6), (1.0, 2.0), np.random.default_rng(1).normal(size=(COUNT, 2))
    pm, p, *_ = problem((2,), "tsc", shape, lengths, velocity=v)
    found = []
    for keep in (None, "1 MB"):
        loss, at = loss_of(pm, p, keep)
        found.append(jax.tree.leaves(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4))(*at)))
    for got, expected in zip(*found):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-11 * np.abs(expected).max())
    with pytest.raises(ValueError, match=r"`keep` must be at least \d+ states of .* MB"):
        jax.grad(loss_of(pm, p, keep=1)[0])(*at)


def test_a_fault_stops_the_particles():
    """When a device has too few slots, the particles stand still, and the error names the capacity."""
    dec = dops.Decomposition(make_mesh((8,)), shape=(8, 4), box=dops.Box(8.0), backend="native")
    pm, x = particles.ParticleMesh(dec), np.stack([np.arange(8) + 0.5, np.ones(8)], axis=1)
    p = pm.place(
        x, capacity=2, id=np.arange(8), velocity=np.where(np.arange(8) < 3, 2.5 - x[:, 0], 0)[:, None] * [1.0, 0]
    )
    step = particles.KickDriftKick(
        pm, lambda p: 0 * p.positions * pm.read(p, pm.deposit(p))[:, None], jnp.linspace(0, 1, 9)
    )
    last, _ = step.rollout(p)
    found = pm.gather(last)
    np.testing.assert_array_equal(found["id"], np.arange(8))
    assert np.isfinite(found["positions"]).all()
    assert np.isfinite(found["velocity"]).all()
    with pytest.raises(ValueError, match=r"`capacity` must be at least 3, the number of particles on device 2; got 2"):
        last.check()
    pm.exchange(pm.grow(last, 3)).check()


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_attributes_that_are_not_on_their_devices_yet(kind):
    """`replace` takes any array with a row for each slot. The leapfrog brings it to the devices of the slots."""
    dec = dops.Decomposition(make_mesh((2, 2), kind), shape=(4, 4), axes=(("x", "y"),), box=dops.Box(1.0))
    pm = particles.ParticleMesh(dec)
    x, v = np.random.default_rng(0).uniform(size=(2, COUNT, 2))
    p = pm.place(x, velocity=v, id=np.arange(COUNT), capacity=COUNT)
    free = particles.KickDriftKick(pm, lambda p: jnp.zeros_like(p.positions), jnp.array([0.0, 0.5]))
    with jax.set_mesh(dec.mesh):
        p = p.replace(np.asarray(p.positions), tag=2 * np.asarray(p["id"]))
        for last in (free.rollout(p)[0], free.step(p, 0.0, 0.5)):
            found = pm.gather(last.check())
            np.testing.assert_array_equal(found["tag"], 2 * np.arange(COUNT))
            np.testing.assert_allclose(found["positions"] % 1, (x + v / 2) % 1, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_early_times_in_half_precision(dtype):
    """Cubes of small scale factors leave the range of half precision, so the results have single precision."""
    cosmology, a = particles.Cosmology(0.3), jnp.asarray([0.01, 0.5], dtype)
    for method in (cosmology.expansion, cosmology.growth, cosmology.growth_rate, cosmology.momentum_growth):
        assert method(a).dtype == np.float32
        assert_close(method(a), np.asarray(method(a.astype(np.float64))), 1e-5)


@pytest.mark.parametrize(("start", "step", "matter"), [(2.0**26, 0.25, None), (0.1, 0.01, 0.3)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float32])
def test_times_have_more_digits_than_positions(dtype, start, step, matter):
    """Positions and velocities keep their dtype, but their steps are those of times in double precision."""
    pm = particles.ParticleMesh(dops.Decomposition(make_mesh((1,)), shape=(8,), box=dops.Box(1.0)))
    times, x, v = start + step * np.arange(5), np.array([[0.25], [0.75]]), np.array([[0.25], [-0.125]])
    cosmology = None if matter is None else particles.Cosmology(matter)
    leapfrog = particles.KickDriftKick(pm, lambda p: p.positions, times, cosmology)

    def found(dtype):
        p = pm.place(x.astype(dtype), velocity=v.astype(dtype))
        both = leapfrog.step(p, times[0], times[1]), leapfrog.rollout(p)[0]
        assert {y.dtype for q in both for y in (q.positions, q["velocity"])} == {np.dtype(dtype)}
        return [np.asarray(q.positions[:2], np.float64) for q in both]

    np.testing.assert_allclose(found(dtype), found(np.float64), atol=16 * float(jnp.finfo(dtype).eps))


def test_errors(plain):
    particles = plain.particles
    dec = plain.Decomposition(make_mesh((2,)), shape=(8, 6), box=plain.Box(1.0))
    pm, open_mesh = particles.ParticleMesh(dec), particles.ParticleMesh(dec, "cic", (True, False))
    p = pm.place(np.zeros((3, 2)))
    with pytest.raises(TypeError, match="`mesh` must be a `ParticleMesh`; got"):
        particles.Gravity(dec)
    with pytest.raises(ValueError, match=r"`periodic` must be True along all axes here; got \(True, False\)"):
        particles.Gravity(open_mesh)
    with pytest.raises(ValueError, match=r"`gradient` must be one of \('exact', 2, 4\); got 3"):
        particles.Gravity(pm, gradient=3)
    with pytest.raises(ValueError, match="`mass` must be the name of an attribute of the particles; got 'm'"):
        particles.Gravity(pm, mass="m")(p)
    gravity = particles.Gravity(pm)
    with pytest.raises(ValueError, match="`times` must be two or more real numbers; got"):
        particles.KickDriftKick(pm, gravity, jnp.zeros(1))
    with pytest.raises(ValueError, match="`times` must be positive scale factors with a `cosmology`; got"):
        particles.KickDriftKick(pm, gravity, jnp.zeros(2), particles.Cosmology())
    with pytest.raises(ValueError, match=r"`times` must be finite; got \[ 0\. nan\]"):
        particles.KickDriftKick(pm, gravity, np.array([0.0, np.nan]))
    with pytest.raises(TypeError, match=r"`cosmology` must be a `Cosmology` or None; got 0\.3"):
        particles.KickDriftKick(pm, gravity, jnp.ones(2), 0.3)
    still = p.replace(velocity=p.positions)
    for force, error, got in (
        (lambda p: (p.positions,), TypeError, "`force` must return an array; got tuple"),
        (
            lambda p: p.positions.astype(complex),
            ValueError,
            r"`force` must return one row of real numbers .*; got .* complex128",
        ),
    ):
        with pytest.raises(error, match=got):
            particles.KickDriftKick(pm, force, jnp.arange(3.0)).rollout(still)
    step = particles.KickDriftKick(pm, gravity, jnp.arange(3.0))
    with pytest.raises(TypeError, match=r"`start` must be one real number; got Array\(\[0\., 0\.\]"):
        step.step(still, jnp.zeros(2), 1.0)
    with pytest.raises(ValueError, match=r"`end` must be a positive, finite number; got -1\.0"):
        particles.KickDriftKick(pm, gravity, jnp.ones(2), plain.particles.Cosmology()).step(still, 1.0, -1.0)
    for run in (step.rollout, lambda p: step.step(p, 0.0, 1.0)):
        with pytest.raises(ValueError, match=r"`velocity` must be an attribute .*; got no such attribute"):
            run(p)
    p = p.replace(velocity=p.positions)
    with pytest.raises(ValueError, match=r"`every` must divide the 2 steps; got 3"):
        step.rollout(p, every=3)
    with pytest.raises(
        ValueError, match=r"`force` must return one row of real numbers for each slot, of shape \(\d+, 2\); got"
    ):
        particles.KickDriftKick(pm, lambda p: p.positions[:, 0], jnp.arange(3.0)).rollout(p)
    with pytest.raises(ValueError, match=r"`matter` must be a positive, finite number; got -1\.0"):
        particles.Cosmology(-1.0)
    with pytest.raises(ValueError, match=r"`matter` must be at most 1, for a flat universe; got 1\.5"):
        plain.particles.Cosmology(1.5)
    fft = plain.FFT(dec, real=True)
    with pytest.raises(ValueError, match="`times` must be 1 or 2; got 3"):
        particles.Deconvolution(fft, "cic", 3)
    with pytest.raises(ValueError, match=r"`fft` must transform all 2 axes; got a transform of \(1,\)"):
        particles.Deconvolution(plain.FFT(dec, transformed=(1,)), "cic")
    walls = plain.Transform(dec, bases=(plain.Cosine(2), plain.Fourier()))
    with pytest.raises(ValueError, match="`fft` must be periodic along x, with the basis `Fourier`; got"):
        particles.Deconvolution(walls, "cic")
