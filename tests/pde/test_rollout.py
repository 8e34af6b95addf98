"""Tests of rollouts: many steps in one program, with all integrators."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import FFT3D, Box, pde, spectral

from helpers import assert_close, make_mesh, random_field


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


def first_order(equation, dt):
    return pde.ETDRK(equation, dt, 1)


def third_order(equation, dt):
    return pde.SBDF(equation, dt, 3)


def chaos(make=first_order, sizes=(1, 1), kind="auto", shape=(8, 4, 4)):
    """Return a cheap nonlinear solver and a state."""
    fft = FFT3D(make_mesh(sizes, kind), shape=shape, pad=True, real=True, norm="forward")
    solver = make(pde.KuramotoSivashinsky(fft, Box(12.0)), 0.1)
    fft = solver.equation.transform
    return solver, fft(fft.decomposition.shard(random_field(shape)))


@pytest.mark.parametrize(
    ("make", "steps", "every", "kind"),
    [
        (third_order, 7, 1, "explicit"),
        (first_order, 11, None, "auto"),
        (first_order, 18, 9, "explicit"),
        (first_order, 22, 2, "auto"),
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
        (first_order, 1, 256, None),
        (first_order, 1, 257, None),
        (first_order, 1, 257, 1),
        (first_order, 1, 257, 257),
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
