"""The integrators: their coefficients, orders, rollouts and derivatives."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import FFT3D, Box, pde, spectral
from decompops.pde._etdrk import doubled, phi

from helpers import assert_close, finite_difference, make_mesh, random_field


def flow(sizes=(1, 1), viscosity=0.05):
    """An equation and a state that is far from linear."""
    equation = pde.NavierStokes(FFT3D(make_mesh(sizes), shape=(8, 8, 8), real=True, norm="forward"), viscosity)
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(8) / 8] * 3, indexing="ij")
    u = np.stack([np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), np.sin(x + y)])
    return equation, equation.transform(equation.fft.decomposition.shard(u))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_coefficients_are_those_of_contour_integrals(dtype):
    radii = np.concatenate([np.logspace(-8, 3, 60), [0.999, 1.0, 1.001]])
    z = radii * np.exp(1j * np.linspace(np.pi / 2, np.pi, 63)) if dtype == np.complex128 else -radii
    contour = z[:, None] + 2 * np.exp(2j * np.pi * (np.arange(128) + 0.5) / 128)
    rest = np.exp(contour)
    whole = jnp.asarray(z, dtype)
    values = phi(whole, jnp.exp(whole))
    half = jnp.exp(whole / 2)
    for n, (value, other) in enumerate(zip(values, doubled(half, *phi(whole / 2, half)))):
        rest = (rest - 1 / math.factorial(n)) / contour
        np.testing.assert_allclose(value, rest.mean(1), rtol=100 * np.finfo(dtype).eps)
        np.testing.assert_allclose(other, rest.mean(1), rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_error_falls_with_the_order(order):
    equation, u = flow()
    exact, _ = pde.ETDRK(equation, 1 / 64).rollout(u, 64)
    errors = []
    for steps in (8, 16):
        later, _ = pde.ETDRK(equation, jnp.asarray(1 / steps), order).rollout(u, steps, every=4)
        errors.append(float(jnp.linalg.norm(later - exact)))
    assert errors[0] > 1e-9
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.25)


def test_rollout_is_step_after_step(capfd):
    equation, u = flow((2, 4))
    solver = pde.ETDRK(equation, 0.1, 2)
    reports = []
    last, (times, energies) = solver.rollout(
        u,
        6,
        t=3.0,
        every=2,
        observe=lambda t, u: (t, spectral.mean_square(equation.transform, u).sum()),
        progress=lambda done, steps: reports.append((int(done), int(steps))),
    )
    jax.effects_barrier()
    step = jax.jit(solver.step)
    expected = []
    for i in range(6):
        u = step(3.0 + 0.1 * i, u)
        expected.append(
            np.sum(np.mean(equation.fft.decomposition.gather(equation.transform.inverse(u)) ** 2, (1, 2, 3)))
        )
    assert_close(last, u)
    assert_close(energies, expected[1::2])
    assert_close(times, [3.2, 3.4, 3.6])
    assert last.sharding.spec == u.sharding.spec
    assert sorted(reports) == [(2, 6), (4, 6), (6, 6)]
    solver.rollout(u, 1, progress=True)
    jax.effects_barrier()
    assert capfd.readouterr().err.endswith("1 of 1 steps\n")


def chaos(sizes=(1, 1), kind="auto", shape=(8, 4, 4)):
    """A cheap nonlinear solver, and a state."""
    fft = FFT3D(make_mesh(sizes, kind), shape=shape, pad=True, real=True, norm="forward")
    solver = pde.ETDRK(pde.KuramotoSivashinsky(fft, Box(12.0)), 0.1, 1)
    fft = solver.equation.transform
    return solver, fft(fft.decomposition.shard(random_field(shape)))


@pytest.mark.parametrize(
    ("steps", "every", "kind"), [(7, 1, "explicit"), (11, None, "auto"), (18, 9, "explicit"), (22, 2, "auto")]
)
def test_any_number_of_steps_is_step_after_step(steps, every, kind):
    """Values, what is observed and reported, and gradients: with chunks that divide the steps and with others."""
    solver, u = chaos((2, 1), kind)
    reports = []

    def loss(u, rollout):
        last, seen = rollout(u)
        weights = jnp.arange(1.0, seen.shape[0] + 1)[:, None, None, None]
        return jnp.sum(jnp.abs(last) ** 2) + jnp.sum(weights * seen**2), (last, seen)

    def at_once(u):
        options = {"every": every, "observe": lambda t, u: solver.equation.transform.inverse(u) + t}
        return solver.rollout(u, steps, progress=lambda done, steps: reports.append(int(done)), **options)

    def one_by_one(u):
        def step(u, i):
            u = solver.step(0.1 * i, u)
            return u, solver.equation.transform.inverse(u) + 0.1 * (i + 1)

        last, seen = jax.lax.scan(step, u, jnp.arange(float(steps)))
        return last, seen[(every or 1) - 1 :: every or 1]

    with jax.set_mesh(u.sharding.mesh):
        derivatives = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
        (_, results), gradient = derivatives(u, at_once)
        (_, expected), expected_gradient = derivatives(u, one_by_one)
        jax.effects_barrier()
    assert_close(results[0], expected[0])
    assert_close(results[1], expected[1])
    assert_close(gradient, expected_gradient)
    assert set(reports) == set(range(every or 1, steps + 1, every or 1))


@pytest.mark.parametrize(("steps", "every"), [(256, None), (257, None), (257, 1), (257, 257), (502, 251)])
def test_a_gradient_keeps_about_twice_the_root_of_the_steps(steps, every):
    solver, u = chaos(shape=(24, 24, 24))
    observe = None if every is None else lambda t, u: jnp.sum(u.real**2)

    def loss(u):
        last, _ = solver.rollout(u, steps, every=every, observe=observe)
        return jnp.sum(last.real**2)

    memory = jax.jit(jax.grad(loss)).lower(u).compile().memory_analysis().temp_size_in_bytes
    one = jax.jit(jax.grad(lambda u: jnp.sum(solver.step(0.0, u).real ** 2))).lower(u).compile().memory_analysis()
    assert (memory - one.temp_size_in_bytes) / u.nbytes < 3 * math.sqrt(steps)


def test_numbers_of_other_types_and_forcings_of_other_precisions():
    """NumPy's integers, and a forcing that is computed in another precision than the state has."""
    fft = FFT3D(make_mesh((2, 1)), shape=(4, 4, 4), real=True)
    u = pde.NavierStokes(fft, 0.1).transform(random_field((3, 4, 4, 4), np.float32))
    push = random_field(u.shape, np.complex128)
    results = []
    for dtype in (np.complex64, np.complex128):
        forced = pde.NavierStokes(fft, 0.1, forcing=lambda t, u, args, dtype=dtype: jnp.asarray(push, dtype))
        last, _ = pde.ETDRK(forced, 0.1, 1).rollout(u, np.int64(6), every=np.int32(2))
        assert last.dtype == np.complex64
        results.append(last)
    assert_close(*results)


def test_derivatives_of_a_rollout_are_those_of_finite_differences():
    """By viscosity, time step, and initial state."""
    equation, u = flow((2, 1))

    @jax.jit
    def energy(parameters):
        viscosity, dt, amplitude = parameters
        solver = pde.ETDRK(pde.NavierStokes(equation.fft, viscosity), dt)
        later, _ = solver.rollout(jax.lax.complex(amplitude * u.real, amplitude * u.imag), 2)
        return spectral.mean_square(equation.transform, later).sum()

    at = np.array([0.05, 0.1, 1.0])
    gradient = jax.grad(energy)(at)
    for direction in np.eye(3):
        assert gradient @ direction == pytest.approx(finite_difference(energy, at, direction, 1e-5), rel=1e-6)


def test_time_reaches_the_forcing():
    fft = FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True, norm="forward")
    wind = jnp.zeros((3, *fft.out_layout.shape), complex).at[0, 0, 0, 0].set(1)  # a uniform push along x
    wind = spectral.dealiased(fft)(fft.inverse(wind))
    forced = pde.NavierStokes(fft, 0.0, forcing=lambda t, u, args: args * t.astype(complex) ** 3 * wind)
    later, _ = pde.ETDRK(forced, 0.5).rollout(0 * wind, 4, t=1.0, args=2)
    assert later[0].sum() == pytest.approx(2 * (3**4 - 1) / 4)  # exact: Simpson's rule for a cubic


def test_bad_input_is_refused(plain):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True)
    equation = plain.pde.Diffusion(fft, 1.0)
    solver = plain.pde.ETDRK(equation, 0.1)
    u = fft(random_field((4, 4, 4)))

    def pushed(forcing):
        state = jnp.zeros((3, 3, 3, 2), complex)
        return plain.pde.ETDRK(plain.pde.NavierStokes(fft, 1.0, forcing=forcing), 0.1).rollout(state, 2)

    class InSingle(type(equation)):
        def nonlinear(self, t, u, args=None):
            return u.astype(np.complex64)

    doubled = plain.pde.ETDRK(InSingle(fft, 1.0), 0.1)

    for make, message in (
        (lambda: plain.pde.ETDRK(fft, 0.1), r"`equation` must be an `AbstractEquation`; got FFT3D"),
        (lambda: plain.pde.ETDRK(equation, 0.1, 5), r"`order` must be one of \(1, 2, 3, 4\); got 5"),
        (lambda: plain.pde.ETDRK(equation, math.inf), r"`dt` must be finite; got inf"),
        (lambda: solver.step(0.0, u.real), r"`u` must be a spectrum.*got float64"),
        (lambda: solver.step(0.0, u[:2]), r"`u` must be .*, of shape \(\*batch, 4, 4, 3\); got \(2, 4, 3\)"),
        (lambda: plain.pde.NavierStokes(fft, 1.0)(0.0, u), r"`u` must be .*, of shape \(\*batch, 3, 3, 3, 2\); got"),
        (lambda: solver.rollout(u, 2, observe=3), r"`observe` must be a function of \(t, u\) or None; got 3"),
        (lambda: solver.rollout(u, 0), r"`steps` must be an integer of at least one; got 0"),
        (lambda: solver.rollout(u, 6, every=4), r"`every` must divide the 6 steps; got 4"),
        (lambda: solver.rollout(u, 6.0), r"`steps` must be an integer of at least one; got 6.0"),
        (lambda: jax.jit(solver.rollout)(u, 6), r"`steps` must be an integer of at least one; got .*Tracer"),
        (lambda: pushed(lambda t, u, args: u[0]), r"`forcing` must return .* shape \(3, 3, 3, 2\); got \(3, 3, 2\)"),
        (lambda: doubled.rollout(u, 2), r"`equation.nonlinear` must return .*, complex128 .*; got complex64"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
