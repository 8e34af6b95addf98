"""Tests of rollouts: many steps in one program, with all integrators."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import FFT, FFT3D, Box, pde, spectral
from decompops.extend import Number

from helpers import assert_close, make_mesh, random_field, thinned


def test_rollout_is_step_after_step(capfd):
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(8) / 8] * 3, indexing="ij")
    field = np.stack([np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), np.sin(x + y)])
    equation = pde.NavierStokes(FFT3D(make_mesh((2, 4)), shape=(8, 8, 8), real=True, norm="forward"), 0.05)
    u = equation.transform(equation.fft.decomposition.shard(field))
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


@pytest.mark.parametrize("error", [KeyError, SystemExit])
@pytest.mark.parametrize("options", [{}, {"keep": 60}])
def test_an_error_of_progress_does_not_stop_the_devices(caplog, error, options):
    """An error inside the program would leave the other devices waiting for the exchange of one device."""

    def fail(done, steps):
        raise error(f"at {done} of {steps}")

    solver, u = chaos(sizes=(2, 2))
    last, _ = solver.rollout(u, 4, every=2, progress=fail, **options)
    jax.effects_barrier()
    assert_close(last, solver.rollout(u, 4)[0])
    logged = [(record.getMessage(), str(record.exc_info[1])) for record in caplog.records]
    text = "`progress` has raised an error. The rollout goes on."
    assert sorted(logged) == [(text, str(error(f"at {n} of 4"))) for n in (2, 4)]


def first_order(equation, dt):
    return pde.ETDRK(equation, dt, 1)


def third_order(equation, dt):
    return pde.SBDF(equation, dt, 3)


def chaos(make=first_order, sizes=(1, 1), kind="auto", shape=(8, 4, 4)):
    """Return a cheap nonlinear solver and a state."""
    fft = FFT3D(make_mesh(sizes, kind), shape=shape, box=Box(12.0), pad=True, real=True, norm="forward")
    solver = make(pde.KuramotoSivashinsky(fft), 0.1)
    fft = solver.equation.transform
    return solver, fft(fft.decomposition.shard(random_field(shape)))


@pytest.mark.parametrize(
    ("make", "steps", "every", "kind"),
    [
        (third_order, 7, 1, "explicit"),
        (first_order, 22, 11, "auto"),
        pytest.param(first_order, 11, None, "auto", marks=pytest.mark.sweep),
        pytest.param(first_order, 18, 9, "explicit", marks=pytest.mark.sweep),
        pytest.param(first_order, 22, 2, "auto", marks=pytest.mark.sweep),
    ],
)
def test_any_number_of_steps_is_step_after_step(make, steps, every, kind):
    """A rollout of any number of steps equals a loop of single steps: states, observations, reports and gradients.

    A rollout is computed in chunks of steps. The length of a chunk need not divide the number of steps.
    """
    solver, u = chaos(make, (2, 1), kind)
    reports = []

    def state(carried):
        return carried.state if isinstance(carried, pde.History) else carried

    def loss(u, rollout):
        last, seen = rollout(u)
        weights = jnp.arange(1.0, seen.shape[0] + 1)[:, None, None, None]
        return jnp.sum(jnp.abs(last) ** 2) + jnp.sum(weights * seen**2), (last, seen)

    def at_once(u):
        options = {"every": every, "observe": lambda t, u: solver.equation.transform.inverse(u) + t}
        return solver.rollout(u, steps, progress=lambda done, steps: reports.append(int(done)), **options)

    def one_by_one(u):
        def step(carried, i):
            carried = solver.step(0.1 * i, carried)
            return carried, solver.equation.transform.inverse(state(carried)) + 0.1 * (i + 1)

        last, seen = jax.lax.scan(step, solver.start(u), jnp.arange(float(steps)))
        return state(last), seen[(every or 1) - 1 :: every or 1]

    with jax.set_mesh(u.sharding.mesh):
        derivatives = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
        (_, results), gradient = derivatives(u, at_once)
        (_, expected), expected_gradient = derivatives(u, one_by_one)
        jax.effects_barrier()
    assert_close(results[0], expected[0])
    assert_close(results[1], expected[1])
    assert_close(gradient, expected_gradient)
    assert set(reports) == set(range(every or 1, steps + 1, every or 1))


@pytest.mark.parametrize(
    ("make", "arrays", "steps", "every"),
    [
        pytest.param(first_order, 1, 256, None, marks=pytest.mark.sweep),
        (first_order, 1, 257, None),
        pytest.param(first_order, 1, 257, 1, marks=pytest.mark.sweep),
        pytest.param(first_order, 1, 257, 257, marks=pytest.mark.sweep),
        (first_order, 1, 502, 251),
        (third_order, 3, 257, 1),
    ],
)
def test_a_gradient_keeps_about_twice_the_root_of_the_steps(make, arrays, steps, every):
    """A gradient of n steps stores about 2 √n states.

    The rollout starts from a state or from a history. A stored history of k states counts as k states.
    """
    solver, u = chaos(make, shape=(24, 24, 24))
    observe = None if every is None else lambda t, u: jnp.sum(u.real**2)

    def loss(u):
        last, _ = solver.rollout(u, steps, every=every, observe=observe)
        return jnp.sum(last.real**2)

    memory = jax.jit(jax.grad(loss)).lower(u).compile().memory_analysis().temp_size_in_bytes
    one = jax.jit(jax.grad(lambda u: jnp.sum(solver.rollout(u, 1)[0].real ** 2))).lower(u).compile().memory_analysis()
    assert (memory - one.temp_size_in_bytes) / u.nbytes < 3 * arrays * math.sqrt(steps)


class Heun(pde.AbstractIntegrator):
    """An integrator of a user, after the documentation of `AbstractIntegrator`."""

    equation: pde.AbstractEquation
    dt: Number
    order: ClassVar[int] = 2

    def start(self, u):
        return u

    def step(self, t, u, args=None):
        h = jnp.asarray(self.dt, u.dtype)
        first = self.equation(t, u, args)
        return u + h / 2 * (first + self.equation(t, u + h * first, args))


def test_an_own_integrator_with_error_control():
    """The error of adaptive steps follows the tolerance. An integrator without an order cannot be built."""
    fft = FFT(make_mesh((1,)), shape=(8,), real=True)
    equation = pde.Diffusion(fft, 1.0)
    u = equation.state(np.cos(2 * np.pi * np.arange(8) / 8))
    errors = []
    for rtol in (1e-4, 1e-7):
        result = pde.simulate(Heun(equation, 0.1), u, 1.0, control=pde.ErrorControl(rtol), progress=False)
        errors.append(abs(np.asarray(result.u)[1] / 4 - np.exp(-1)))
    assert errors[1] < 1e-5 < errors[0] < 1e-2

    class WithoutOrder(pde.AbstractIntegrator):
        equation: pde.AbstractEquation
        dt: Number
        start = Heun.start
        step = Heun.step

    with pytest.raises(TypeError, match="order"):
        WithoutOrder(equation, 0.1)


def test_multi_step_methods_take_no_control(plain):
    """The error names the one-step methods that take the equation."""
    pde = plain.pde
    fft = plain.FFT(make_mesh((1,)), shape=(8,), real=True)
    bases = (plain.Chebyshev(), plain.Fourier(half=True))
    walls = plain.Transform(make_mesh((1,)), shape=(9, 8), bases=bases, box=plain.Box(1.0))
    for equation, shape, methods in (
        (pde.Diffusion(fft, 1.0), (8,), "`ETDRK` or `IMEXRK`"),
        (pde.Channel(walls, 1.0), (2, 9, 8), "`IMEXRK`"),
    ):
        solver = pde.SBDF(equation, 0.1)
        with pytest.raises(TypeError, match=rf"For `{type(equation).__name__}`, the one-step methods are {methods}\."):
            pde.simulate(solver, equation.state(np.zeros(shape)), 1.0, control=pde.CFL(0.5))


def test_states_of_another_transform_are_refused(plain):
    """Resolvents and forces say which state they want. Raw errors of JAX name only two shapes."""
    pde, spectral = plain.pde, plain.spectral
    fft = plain.FFT2D(make_mesh((1,)), shape=(8, 8), real=True)
    equation = pde.NavierStokes(fft, 0.1)
    u = pde.NavierStokes(fft, 0.1, dealiasing=spectral.Pad(3 / 2)).state(np.zeros((2, 8, 8)))
    wanted = r"`u` must be a spectrum c\[\*, 2, 5, 3\] .*, of shape \(\*batch, 2, 5, 3\); got \(2, 8, 5\)"
    with pytest.raises(ValueError, match=wanted):
        equation.resolvent(u, 0.1)
    for force in (pde.Smagorinsky(fft, 0.1), pde.KolmogorovForcing(fft, 1)):
        with pytest.raises(ValueError, match=rf"`{type(force).__name__}` and the state u must have .*: {wanted}"):
            force(0.0, u)


def one_step(equation):
    return pde.ETDRK(equation, 1.0)


def two_steps(equation):
    return pde.SBDF(equation, 1.0, 2)


@pytest.mark.parametrize(
    ("make", "kind"),
    thinned(
        [(make, kind) for make in (one_step, two_steps) for kind in ("auto", "explicit")],
        lambda make, kind: (make is one_step) == (kind == "explicit"),
    ),
)
def test_a_rollout_that_ends_in_nan_warns(make, kind):
    """Where u is negative, nothing limits u' = r u (1 - u) + (diffusion): it overflows."""
    fft = FFT(make_mesh((2, 4), kind), shape=(8, 8), real=True)
    equation = pde.FisherKPP(fft, 0.01, 1.0)
    solver, u = make(equation), equation.state(-100 - np.abs(random_field((8, 8))))
    with pytest.warns(RuntimeWarning, match=r"rollout of 40 steps has ended with infinities or NaNs: `dt` may be too"):
        last, _ = solver.rollout(u, 40)
    assert not np.isfinite(np.asarray(last)).all()
    jax.jit(lambda u: solver.rollout(u, 40)[0])(u)  # Traced code cannot warn. A warning would be an error here.
    solver.rollout(0 * u, 40)


def test_bad_times_and_progress(plain):
    fft = plain.FFT(make_mesh((1,)), shape=(8,), real=True)
    solver = plain.pde.ETDRK(plain.pde.Diffusion(fft, 0.1), 0.1)
    with pytest.raises(TypeError, match=r"`progress` must be True, False or a function of \(done, steps\); got 3"):
        solver.rollout(solver.equation.state(np.ones(8)), 2, progress=3)
    for wrong in (None, 1j, np.ones(3)):
        with pytest.raises(TypeError, match="`t` must be one real number"):
            solver.rollout(solver.equation.state(np.ones(8)), 2, t=wrong)
