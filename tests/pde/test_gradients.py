"""Tests of derivatives of rollouts that may store only `keep` states, `rollout(keep=...)`."""

import functools
import random

import equinox as eqx
import exponax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import FFT, FFT3D, Box, pde, spectral
from decompops._rollout.binomial import binomial_schedule, count_moves
from decompops._rollout.checkpointing import Chain, Plan, checkpointed
from decompops._rollout.memory import scratch_bytes

from helpers import assert_close, make_mesh, random_field, thinned


@functools.cache
def fewest_moves(length: int, checkpoints: int) -> float:
    """Return the fewest moves of any schedule, found by trying all positions of the next checkpoint.

    A move computes the state at the end of a block from the state at its start.
    """
    if length == 1:
        return 0
    if checkpoints == 0:
        return float("inf")
    at = range(1, length)
    return min(n + fewest_moves(length - n, checkpoints - 1) + fewest_moves(n, checkpoints) for n in at)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 31])
@pytest.mark.parametrize("places", [2, 3, 5, 8, 40])
def test_a_schedule_has_the_fewest_moves(length, places):
    """A binomial schedule is valid and has the fewest moves of all schedules.

    The test executes the schedule: a block must be reversed from the state at its start, and a move must read a stored
    state.
    """
    schedule = binomial_schedule(length, places)
    stored = [-1] * places
    for block in range(length):
        stored[schedule.first[block]] = block
    made = 0
    for block in reversed(range(length)):
        while made < schedule.ends[block]:
            assert stored[schedule.sources[made]] == schedule.blocks[made]
            stored[schedule.targets[made]] = schedule.blocks[made] + 1
            made += 1
        assert stored[schedule.tops[block]] == block
    assert made == len(schedule.blocks)
    assert made + length - 1 == count_moves(length, places - 1) == fewest_moves(length, places - 1)


def test_as_many_steps_are_taken_as_the_formula_says():
    """A gradient takes as many steps as the formula of binomial checkpointing says.

    The 30 steps are 15 blocks of two steps. Four of the five places hold stored states. For C(4 + 2, 4) = 15 blocks,
    the formula of Griewank & Walther has r = 2 and gives 2 * 15 - C(6, 1) = 24 moves.
    """
    calls = []

    def step(state, i):
        jax.debug.callback(lambda i: calls.append(int(i)), i)
        return jnp.sin(state) + i.astype(state.dtype)

    def loss(state):
        chain = Chain(step, lambda state, n: None, lambda n: None, 30, 30)
        return checkpointed(chain, state, lambda *_: Plan(2, 5))[0].sum()

    jax.block_until_ready(jax.jit(jax.grad(loss))(jnp.arange(3.0)))
    jax.effects_barrier()
    # The forward run also takes the steps of the last block. The reversal of a block takes its steps twice. The second
    # time repeats everything except transforms, and the step of this test has no transforms.
    assert len(calls) == 2 * (24 + 1 + 2 * 15)


def kuramoto(order, kind="auto", sizes=(1,), shape=(8, 6)):
    fft = FFT(make_mesh(sizes, kind), shape=shape, box=Box(12.0), pad=True, real=True, norm="forward")

    def make(speed=1.0, dt=0.1):
        equation = pde.KuramotoSivashinsky(fft, scale=speed)
        return pde.SBDF(equation, dt, 2) if order is None else pde.ETDRK(equation, dt, order)

    transform = make().equation.transform  # pyright: ignore[reportAttributeAccessIssue]
    return make, transform(transform.decomposition.shard(random_field(shape)))


def random_cases(count):
    rng = random.Random(0)
    for _ in range(count):
        every = rng.choice([1, 2, 3, 4, 6])
        yield rng.choice([None, 1, 4]), every, every * rng.randint(1, 5), rng.choice(["auto", "explicit"])


# By default, one case is tested: a multi-step method on Explicit axes that observes the state three times.
@pytest.mark.parametrize(
    ("order", "every", "steps", "kind"), [(None, 6, 18, "explicit"), *thinned(random_cases(4), lambda *_: False)]
)
def test_gradients_are_those_of_steps_one_by_one(order, every, steps, kind):
    """Derivatives with `keep` equal derivatives of a loop of single steps.

    The derivatives are with respect to the state, a parameter, `dt`, the time and a variable in `observe`.
    """
    make, u = kuramoto(order, kind, (2,))
    transform = make().equation.transform  # pyright: ignore[reportAttributeAccessIssue]

    def at_once(solver, u, t, weight):
        observe = lambda t, u: (weight * transform.inverse(u) + t, jnp.int32(3))
        last, seen = solver.rollout(u, steps, t=t, every=every, observe=observe, keep=300)
        return last, seen[0]

    def one_by_one(solver, u, t, weight):
        def step(carried, i):
            carried = solver.step(t + solver.dt * i, carried)
            state = carried.state if order is None else carried
            return carried, weight * transform.inverse(state) + t + solver.dt * (i + 1)

        last, seen = jax.lax.scan(step, solver.start(u), jnp.arange(float(steps)))
        return (last.state if order is None else last), seen[every - 1 :: every]

    def loss(inputs, run):
        u, speed, dt, t, weight = inputs
        last, seen = run(make(speed, dt), u, t, weight)
        scales = jnp.arange(1.0, seen.shape[0] + 1)[:, None, None]
        return jnp.sum(jnp.abs(last) ** 2) + jnp.sum(scales * seen**2)

    with jax.set_mesh(u.sharding.mesh):  # pyright: ignore[reportAttributeAccessIssue]
        derivative = jax.jit(jax.value_and_grad(loss), static_argnums=1)
        inputs = u, 0.7, 0.1, 0.3, 1.5
        value, gradients = derivative(inputs, at_once)
        expected, expected_gradients = derivative(inputs, one_by_one)
    assert_close(value, expected)
    for got, wanted in zip(gradients, expected_gradients):
        assert_close(got, wanted)
    assert gradients[0].sharding.is_equivalent_to(u.sharding, u.ndim)


@functools.cache
def vortices(n=8, order=2):
    fft = FFT3D(make_mesh((1, 1)), shape=(n, n, n), real=True, norm="forward")
    solver = pde.ETDRK(pde.NavierStokes(fft, 0.02), 0.05, order)
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(n) / n] * 3, indexing="ij")
    velocity = np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), np.sin(x + y)
    return solver, solver.equation.state(np.stack(velocity))


def energy(solver, steps, **options):
    return lambda u: jnp.sum(jnp.abs(solver.rollout(u, steps, **options)[0]) ** 2)


@pytest.mark.parametrize(
    ("steps", "keep", "every"),
    [pytest.param(50, 45, None, marks=pytest.mark.sweep), (700, "2.5 MB", None), (96, 90, 8)],
)
def test_no_more_memory_is_taken_than_asked_for(steps, keep, every):
    solver, u = vortices(16, order=1)
    options = {} if every is None else {"every": every, "observe": lambda t, u: jnp.sum(u.real**2)}

    def loss(u):
        last, seen = solver.rollout(u, steps, keep=keep, **options)
        return jnp.sum(jnp.abs(last) ** 2) + sum(map(jnp.sum, jax.tree.leaves(seen)))

    taken = scratch_bytes(jax.jit(jax.grad(loss)).lower(u).compile())
    budget = 2.5e6 if isinstance(keep, str) else keep * u.nbytes
    assert 0.7 * budget < taken <= budget


def test_bad_values_of_keep_are_refused(plain):
    solver, u = vortices()
    with pytest.raises(ValueError, match=r"`keep` must be at least \d+ states of .* MB, .*; got 5"):
        jax.grad(energy(solver, 50, keep=5))(u)
    for keep, error in [(0, "an integer of at least one"), ("3 apples", "bytes with one of the units kB")]:
        with pytest.raises(ValueError, match=error):
            solver.rollout(u, 2, keep=keep)


def test_derivatives_of_batches_and_second_derivatives():
    make, u = kuramoto(1)
    solver = make()
    v = solver.equation.state(0.1 * random_field((8, 6), seed=1))
    plain, kept = (jax.grad(energy(solver, 9, **options)) for options in ({}, {"keep": 100}))
    batch, directions = jnp.stack([u, 0.5 * u + v]), jnp.stack([v, u])
    both = lambda f: jax.jit(jax.vmap(lambda u, v: jax.jvp(f, (u,), (v,))))(batch, directions)
    for got, expected in zip(both(kept), both(plain)):
        assert_close(got, expected)


def test_a_derivative_is_the_limit_of_differences():
    solver, u = vortices(order=4)
    v, h = solver.equation.state(0.1 * random_field((3, 8, 8, 8))), 1e-4
    both = jax.jit(jax.value_and_grad(energy(solver, 40, keep=60)))
    loss, gradient = lambda u: both(u)[0], both(u)[1]
    difference = (8 * (loss(u + h * v) - loss(u - h * v)) - (loss(u + 2 * h * v) - loss(u - 2 * h * v))) / (12 * h)
    assert_close(jnp.sum((gradient * v).real), difference, 1e-9)


@jax.numpy_dtype_promotion("standard")  # exponax mixes dtypes.
@pytest.mark.promotes_ranks
def test_gradients_are_those_of_exponax():
    n, dt, steps = 8, 0.05, 10
    fft = FFT3D(make_mesh((1, 1)), shape=(n, n, n), real=True)
    equation = pde.Burgers(fft, 0.05, dealiasing=spectral.Mask(2 / 3))
    solver = pde.ETDRK(equation, dt, 2)
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(n) / n] * 3, indexing="ij")
    u = jnp.asarray(np.stack([np.sin(x) * np.cos(y), np.cos(y + z), np.sin(z) + np.cos(x)]))

    def ours(u):
        return jnp.sum(equation.fields(solver.rollout(equation.state(u), steps, keep=80)[0]) ** 3)

    def theirs(u):
        stepper = exponax.stepper.Burgers(3, 2 * np.pi, n, dt, diffusivity=0.05, order=2)
        return jnp.sum(exponax.repeat(stepper, steps)(u) ** 3)  # pyright: ignore[reportCallIssue]

    got, expected = (eqx.filter_jit(jax.grad(loss))(u) for loss in (ours, theirs))
    assert_close(got, expected)


def test_states_stored_on_the_host_change_no_gradient(plain):
    make, u = kuramoto(1)
    solver = make()
    expected = jax.jit(jax.grad(energy(solver, 40)))(u)
    for options in ({"keep_on_host": 6}, {"keep_on_host": "1 MB", "keep": 60}):
        assert_close(jax.jit(jax.grad(energy(solver, 40, **options)))(u), expected)
    with pytest.raises(ValueError, match=r"`keep_on_host` must be at least 2 states of .* MB; got 1"):
        jax.grad(energy(solver, 40, keep_on_host=1))(u)
    multistep = pde.SBDF(solver.equation, solver.dt, 3)  # Its history is three states.
    with pytest.raises(ValueError, match=r"`keep_on_host` must be at least 6 states of .* MB; got 5"):
        jax.grad(energy(multistep, 40, keep_on_host=5))(u)
    assert_close(jax.jit(jax.grad(energy(multistep, 40, keep_on_host=6)))(u), jax.grad(energy(multistep, 40))(u))
    with pytest.raises(ValueError, match="`keep_on_host` must be a number of states, or a number of bytes with one"):
        solver.rollout(u, 2, keep_on_host="3 apples")
