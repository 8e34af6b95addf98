"""Tests of the forces that drive turbulence: their modes, their power, and the law of the random force."""

import dataclasses

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral
from decompops.spectral import Pad

from helpers import assert_close, make_mesh, random_field


LENGTHS = (2 * np.pi, 5.0, 3.0)
SHELL = (1.0, 2.6)


def transform(shape, sizes=(1,), kind="auto", **options) -> dops.FFT:
    box = dops.Box(LENGTHS[: len(shape)])
    return dops.FFT(make_mesh(sizes, kind), shape=shape, pad=True, **({"real": True, "box": box} | options))


def waves(shape) -> np.ndarray:
    along = (2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(shape, LENGTHS))
    return np.stack(np.meshgrid(*along, indexing="ij"))


def solenoidal(shape, seed=0) -> np.ndarray:
    """Return a velocity without divergence and with a mean, computed by NumPy."""
    k, ndim = waves(shape), len(shape)
    axes = tuple(range(1, ndim + 1))
    kept = np.prod([3 * abs(q) * w / (2 * np.pi) < n for q, n, w in zip(k, shape, LENGTHS)], axis=0)
    hat = np.fft.fftn(random_field((ndim, *shape), seed=seed), axes=axes) * kept
    square = np.sum(k**2, 0)
    hat -= k * np.sum(k * hat, 0) / np.where(square == 0, 1, square)
    return np.fft.ifftn(hat, axes=axes).real


def filtered(u, keep) -> np.ndarray:
    axes = tuple(range(1, u.ndim))
    return np.fft.ifftn(np.fft.fftn(u, axes=axes) * keep, axes=axes).real


@pytest.mark.parametrize(
    ("shape", "sizes", "kind"), [((12, 9), (2,), "explicit"), ((12, 10, 9), (2, 4), "auto")]
)  # fmt: skip
def test_forces_by_the_flow_itself_are_equal_to_numpy(shape, sizes, kind):
    """A linear force and a force of constant power equal NumPy's. The power is exact, and JAX can differentiate."""
    fft = transform(shape, sizes, kind, norm="ortho")
    u = solenoidal(shape)
    k = np.sqrt(np.sum(waves(shape) ** 2, 0))
    shell = (SHELL[0] <= k) & (k <= SHELL[1])
    slow = filtered(u, shell)
    expected = 0.7 * slow / np.mean(np.sum(slow**2, 0))
    with jax.set_mesh(fft.decomposition.mesh):
        linear, power = pde.LinearForcing(fft, 0.3), pde.PowerForcing(fft, 0.7, SHELL)
        equation = pde.NavierStokes(fft, 0.1, forcing=(linear, power))
        state = equation.state(fft.decomposition.shard(u))

        @jax.jit
        def forces(state):
            found = linear(0.0, state), power(0.0, state), pde.LinearForcing(fft, 0.3, SHELL)(0.0, state)
            batch = jax.vmap(lambda u: power(0.0, u))(jnp.stack([state, 2 * state]))
            of_rest = power(0.0, 0 * state), jax.grad(lambda u: jnp.sum(abs(power(0.0, u)) ** 2).real)(0 * state)
            return [equation.fields(force) for force in found], found[1], batch, of_rest

        found, one, batch, (still, by_state) = forces(state)
        everywhere, force, of_shell = map(fft.decomposition.gather, found)
        assert_close(everywhere, 0.3 * filtered(u, k > 0), 1e-12)
        assert_close(force, expected, 1e-12)
        assert np.mean(np.sum(u * force, 0)) == pytest.approx(0.7, rel=1e-12)
        assert_close(of_shell, 0.3 * slow, 1e-12)
        assert not np.any(still)
        assert np.isfinite(by_state).all()
        assert_close(batch, np.stack([one, np.asarray(one) / 2]), 1e-12)
        with_power = lambda p: jnp.sum(
            abs(pde.NavierStokes(fft, 0.1, forcing=pde.PowerForcing(fft, p, SHELL)).nonlinear(0.0, state)) ** 2
        )
        both = jax.jit(jax.value_and_grad(with_power))
        (value, slope), (above, _), (below, _) = map(both, (0.7, 0.7 + 1e-4, 0.7 - 1e-4))
        assert slope == pytest.approx(float(above - below) / 2e-4, rel=1e-6)
        assert value > 0


def test_forces_on_a_vorticity_are_curls():
    fft = transform((12, 9), (4,))
    u = fft.decomposition.shard(solenoidal((12, 9)))
    key = jax.random.key(3)
    options = {"amplitude": 0.5, "time": 0.3, "shell": SHELL}

    def curls(make, u):
        flow, curl = pde.NavierStokes(fft, 0.1, forcing=make()), spectral.Curl(fft)
        force = flow.fields(make()(0.2, flow.state(u)))
        of_vorticity = pde.VorticityNavierStokes(fft, 0.1, forcing=make(of="vorticity"))
        rate = of_vorticity.fields(make(of="vorticity")(0.2, of_vorticity.state(curl(u))))
        return rate, curl(force)

    for make in (
        lambda **of: pde.PowerForcing(fft, 0.7, SHELL, **of),
        lambda **of: pde.OrnsteinUhlenbeckForcing(fft, key, **options, **of),
        lambda **of: pde.LinearForcing(fft, 0.7),
    ):
        assert_close(*jax.jit(curls, static_argnums=0)(make, u), 1e-12)


def test_the_power_of_a_run_is_constant():
    """The energy of a flow grows by the injected power, less the dissipation that the scales of the flow tell."""
    fft = transform((12, 10, 9), (2, 2))
    equation = pde.NavierStokes(fft, 0.05, forcing=pde.PowerForcing(fft, 0.4, SHELL))
    u = equation.state(fft.decomposition.shard(0.3 * solenoidal((12, 10, 9))))

    def observe(t, u):
        return spectral.turbulence_scales(fft, equation.fields(u), 0.05)

    _, scales = jax.jit(lambda u: pde.ETDRK(equation, 0.01).rollout(u, 20, every=1, observe=observe))(u)
    energy, dissipation = np.asarray(scales.energy), np.asarray(scales.dissipation)
    # Simpson's rule over pairs of steps.
    mean = (dissipation[:-2:2] + 4 * dissipation[1:-1:2] + dissipation[2::2]) / 6
    assert_close(np.diff(energy[::2][: len(mean) + 1]) / 0.02 + mean, 0.4 + 0 * mean, 1e-4)


def test_the_power_in_quasi_geostrophic_flow():
    """The total energy, `(|∇ψ|² + ψ² / L²) / 2`, grows by the power. The force is parallel to the velocity."""
    fft, radius = transform((12, 9), (2,)), 0.8
    force = pde.PowerForcing(fft, 0.7, SHELL, of="vorticity", deformation_radius=radius)
    equation = pde.QuasiGeostrophic(fft, 0.0, 1.5, radius, forcing=force)
    u = equation.state(fft.decomposition.shard(random_field((12, 9), seed=1)))
    mean = lambda a, b: fft.decomposition.mean(equation.fields(a) * equation.fields(b))
    stream = equation.stream(u)
    assert float(-mean(stream, equation(0.0, u))) == pytest.approx(0.7, rel=1e-12)
    vorticity, pushed = spectral.Laplacian(equation.transform).multiply(stream), force(0.0, u)
    curl = jnp.where(pushed == 0, 0, vorticity)
    ratio = mean(pushed, pushed) / mean(curl, pushed)
    assert_close(equation.fields(pushed), ratio * equation.fields(curl), 1e-12)
    for other, own in ((None, radius), (radius, None), (radius, 0.9)):
        force = dataclasses.replace(force, deformation_radius=other)
        with pytest.raises(ValueError, match=f"`deformation_radius` of its equation; got {other} in .* but {own} in"):
            pde.QuasiGeostrophic(fft, 0.0, 1.5, own, forcing=force)


OPTIONS = {"amplitude": 0.8, "time": 0.5, "shell": SHELL}


def test_the_random_force_is_the_same_on_every_mesh():
    """The force is a function of key and time: on every mesh, for batches, and for any dealiasing that keeps it."""
    shape, key = (12, 11, 9), jax.random.key(5)
    found = []
    for sizes, kind, rule in (((1,), "auto", None), ((2, 4), "auto", Pad()), ((4, 2), "explicit", None)):
        fft = transform(shape, sizes, kind, backend="xla")  # Only its programs show what they communicate.
        with jax.set_mesh(fft.decomposition.mesh):
            force = pde.OrnsteinUhlenbeckForcing(fft, key, **OPTIONS, dealiasing=rule)
            equation = pde.NavierStokes(fft, 0.1, forcing=force, dealiasing=rule)
            still = equation.state(fft.decomposition.shard(np.zeros((2, 3, *shape))))
            program = jax.jit(lambda u, equation=equation: equation.fields(equation(0.77, u))).lower(still).compile()
            found.append(fft.decomposition.gather(program(still)))
            assert "all-gather" not in program.as_text()
    for each in found:
        assert_close(each, found[0], 1e-12)
        assert_close(each[0], each[1], 1e-15)
    k, hat = waves(shape), np.fft.fftn(found[0][0], axes=(1, 2, 3))
    size = np.sqrt(np.sum(k**2, 0))
    assert abs(hat[:, (size < SHELL[0]) | (size > SHELL[1])]).max() < 1e-10
    assert np.sum(abs(hat[:, (size >= SHELL[0]) & (size <= SHELL[1])]) ** 2, 0).min() > 1e-3
    assert abs(np.sum(k * hat, 0)).max() < 1e-9


def test_the_law_of_the_random_force():
    """Mean squares and correlations in time, over many keys, agree with the closed forms within five deviations."""
    fft, keys, samples = transform((8, 8)), jax.random.split(jax.random.key(1), 400), 400
    times = np.array([0.0, 0.25, 0.5, 1.5, 15.9, 16.1, -0.25])  # A span ends at 16.

    @jax.jit
    @jax.vmap
    def modes(key):
        force = pde.OrnsteinUhlenbeckForcing(fft, key, **(OPTIONS | {"shell": (1.0, 1.3)}))
        still = jnp.zeros((2, *force.transform.out_layout.shape), complex)
        return jax.vmap(lambda t: force.transform.inverse(force(t, still)))(jnp.asarray(times))

    f = np.asarray(modes(keys))
    squares = np.mean(np.sum(f**2, 2), (-2, -1))  # For each key and each time.
    deviation = 0.8**2 / np.sqrt(2 * samples)  # There are four independent modes.
    assert abs(squares.mean(0) - 0.64).max() < 5 * deviation
    for one, other in ((0, 1), (0, 2), (0, 3), (4, 5), (0, 6), (6, 1), (0, 4)):
        products = np.mean(np.sum(f[:, one] * f[:, other], 1), (-2, -1))
        expected = 0.64 * np.exp(-abs(times[one] - times[other]) / 0.5)
        assert abs(products.mean() - expected) < 5 * deviation
    # The squares of one key vary like a chi-squared variable of four real modes: the values are Gaussian.
    point = f[:, :, 0, 0, 0]
    assert abs(np.mean(point**4, 0) / np.mean(point**2, 0) ** 2 - 3).max() < 5 * np.sqrt(96 / samples)


def test_a_path_has_the_covariance_of_its_process():
    """A long path has the closed-form covariance. It is the same in pieces, and its increments are those of a path."""
    fft = transform((8, 8))
    force = pde.OrnsteinUhlenbeckForcing(fft, jax.random.key(2), **OPTIONS)
    still = jnp.zeros((2, *force.transform.out_layout.shape), complex)
    step = 0.5 / 16
    times = step * np.arange(16 * 300)
    path = np.asarray(jax.jit(lambda: jax.lax.map(lambda t: force(t, still), jnp.asarray(times)))())
    kept = path[:, np.abs(path[0]) > 0]
    again = jax.jit(force)(times[777], still)
    assert_close(np.asarray(again)[np.abs(path[0]) > 0], kept[777], 1e-12)
    variance = np.mean(abs(kept) ** 2)
    for lag in (1, 4, 16, 32):
        covariance = np.mean((kept[lag:] * np.conj(kept[:-lag])).real)
        # The mean over 300 correlation times and a dozen modes has a deviation of about two percent.
        assert covariance / variance == pytest.approx(np.exp(-lag / 16), abs=0.1)


def test_the_random_force_is_continuous():
    """Times with rounding errors around the ends of the spans of its drawing, such as zero, have the same force."""
    force = pde.OrnsteinUhlenbeckForcing(transform((8, 8)), jax.random.key(2), **OPTIONS)
    still = jnp.zeros((2, *force.transform.out_layout.shape), complex)
    times = np.array([-1e-9, -1e-17, -1e-30, 0.0, 1e-30, 1e-9]) + 32 * OPTIONS["time"] * np.arange(-1, 2)[:, None]
    near = np.asarray(jax.jit(lambda: jax.lax.map(lambda t: force(t, still), jnp.asarray(times.ravel())))())
    near = near.reshape(*times.shape, -1)
    assert np.linalg.norm(near - near[:, 3:4]) < 1e-6 * np.linalg.norm(near)


def test_derivatives_of_the_random_force():
    """JAX differentiates steps by the amplitude and by the correlation time, and maps over keys."""
    fft = transform((8, 9), (2,))

    def loss(key, p):
        force = pde.OrnsteinUhlenbeckForcing(fft, key, amplitude=p[0], time=p[1], shell=SHELL)
        solver = pde.ETDRK(pde.NavierStokes(fft, 0.1, forcing=force), 0.05, 1)
        u, _ = solver.rollout(jnp.zeros((2, *force.transform.out_layout.shape), complex), 2, t=0.6)
        return jnp.sum(abs(u) ** 2)

    run = jax.jit(jax.vmap(jax.value_and_grad(loss, 1), (0, None)))
    keys, p = jax.random.split(jax.random.key(4), 2), np.array([0.8, 0.47])
    _, slopes = run(keys, p)
    for i, direction in enumerate(np.eye(2)):
        above, below = (run(keys, p + sign * 1e-6 * direction)[0] for sign in (1, -1))
        assert_close(slopes[:, i], (above - below) / 2e-6, 1e-6)


def test_an_interrupted_run_continues_with_the_random_force(tmp_path):
    """A run in two parts equals a run in one part. A run with another key warns."""
    fft = transform((8, 9), (2,))
    make = lambda seed: pde.OrnsteinUhlenbeckForcing(fft, jax.random.key(seed), **OPTIONS)
    force = make(4)
    solver = pde.ETDRK(pde.NavierStokes(fft, 0.1, forcing=force), 0.05, 1)
    u = jnp.zeros((2, *force.transform.out_layout.shape), complex)
    run = lambda solver, end: pde.simulate(solver, u, end, interval=0.1, checkpoint=tmp_path, progress=False)
    run(solver, 0.1)
    assert_close(run(solver, 0.2).u, solver.rollout(u, 4)[0], 1e-12)
    with pytest.warns(UserWarning, match=r"forcing.key\[1\] was 4, and is 5"):
        run(pde.ETDRK(pde.NavierStokes(fft, 0.1, forcing=make(5)), 0.05, 1), 0.3)
    single = jax.jit(force)(0.3, u.astype(np.complex64))
    assert single.dtype == np.complex64
    assert np.abs(single).max() > 0


@pytest.mark.parametrize("dealiasing", [spectral.Truncate(2 / 3), None])
def test_a_shell_has_a_mode(dealiasing):
    """Shells of the size of each mode are accepted, and shells between all modes are refused.

    The bounds may be numbers of NumPy.
    """
    fft = transform((9, 5))
    k = pde.state_transform(fft, dealiasing).wavenumbers()
    sizes = np.unique(np.round(np.sqrt(np.asarray(k[0]) ** 2 + np.asarray(k[1]) ** 2), 9))
    for size, following in zip(sizes[1:], [*sizes[2:], 1e3]):
        pde.PowerForcing(fft, 1.0, (np.float32(0.999 * size), size), dealiasing=dealiasing)
        between = [0.9 * size + 0.1 * following, 0.1 * size + 0.9 * following]
        with pytest.raises(ValueError, match="`shell` must contain a mode of the box"):
            pde.PowerForcing(fft, 1.0, between, dealiasing=dealiasing)


def test_shells_of_a_large_grid():
    """Its wavenumbers would not fit into memory."""
    lengths = np.array([1.0, 1.37, 2.9])
    fft = dops.FFT3D(make_mesh((1, 1)), shape=(4096,) * 3, box=dops.Box(lengths), real=True)
    size = float(np.linalg.norm(2 * np.pi * np.array([700, 800, 900]) / lengths))
    pde.PowerForcing(fft, 1.0, (size, size))
    with pytest.raises(ValueError, match="`shell` must contain a mode of the box"):
        pde.PowerForcing(fft, 1.0, (1e5, 2e5))


def test_bad_input_is_refused(plain):
    pde = plain.pde
    fft = plain.FFT2D(make_mesh((1,)), shape=(8, 8), real=True)
    make = lambda **options: pde.OrnsteinUhlenbeckForcing(
        fft, **({"key": jax.random.key(0), "amplitude": 1.0, "time": 1.0, "shell": (1.0, 1.5)} | options)
    )
    for call, message in (
        (lambda: pde.LinearForcing(fft, "much"), "`rate` must be one real number; got 'much'"),
        (lambda: pde.PowerForcing(fft, 1.0, (2.0, 1.0)), r"`shell` must be a pair of numbers .*; got \(2.0, 1.0\)"),
        (lambda: pde.PowerForcing(fft, 1.0, 2.0), r"`shell` must be a pair of numbers .*; got 2.0"),
        (lambda: pde.PowerForcing(fft, 1.0, (1.0, 2.0), of="curl"), "`of` must be .*got 'curl' on a grid"),
        (
            lambda: pde.PowerForcing(fft.replace(box=plain.Box(1.0)), 1.0, (1.0, 2.5)),
            r"`shell` must contain a mode of the box; got \(1.0, 2.5\), but \|k\| of a mode is at least 6.28, and",
        ),
        (
            lambda: pde.PowerForcing(fft, 1.0, (1.0, 2.0), of="vorticity", deformation_radius=0.0),
            "`deformation_radius` must be a positive, finite number; got 0.0",
        ),
        (lambda: pde.LinearForcing(fft, 1.0, (9, 10)), r"`shell` must contain .*; got \(9, 10\), but .* at most 2.83"),
        (lambda: make(key=3), r"`key` must be a key of JAX, such as `jax.random.key\(3\)`; got 3"),
        (lambda: make(time=0.0), "`time` must be a positive, finite number; got 0.0"),
        (lambda: make(shell=(1.0, 3.0)), r"`shell` must have less than half of the 5 modes along x; got .* up to 3"),
        (lambda: make(shell=(0.1, 0.9)), r"`shell` must contain a mode of the box; got \(0.1, 0.9\)"),
        (
            lambda: pde.LinearForcing(plain.FFT2D(make_mesh((1,)), shape=(8, 8)), 1.0),
            "`fft` must be built with `real=True`",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()


def test_one_option_of_a_random_force_is_replaced():
    """The force is proportional to its amplitude. The key stays the same."""
    forcing = pde.OrnsteinUhlenbeckForcing(
        transform((10, 12)), jax.random.key(1), amplitude=0.5, time=0.4, shell=(0.9, 2.3)
    )
    u = forcing.transform(np.zeros((2, 10, 12)))
    force, twice = forcing(0.3, u), dataclasses.replace(forcing, amplitude=1.0)(0.3, u)
    assert np.abs(force).max() > 0
    assert_close(twice, 2 * np.asarray(force), 1e-12)
