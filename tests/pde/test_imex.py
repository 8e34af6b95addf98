"""Tests of the coefficients, orders, stability, histories and derivatives of implicit–explicit integrators."""

import itertools
import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import FFT, Box, pde
from decompops.pde._imexrk import EXPLICIT, IMPLICIT, NODES
from decompops.pde._sbdf import METHODS
from scipy.integrate import solve_ivp

from helpers import assert_close, finite_difference, make_mesh, random_field


SOLVERS = {"IMEXRK": pde.IMEXRK, "SBDF2": pde.SBDF, "SBDF3": lambda equation, dt: pde.SBDF(equation, dt, 3)}
ORDERS = {"IMEXRK": 3, "SBDF2": 2, "SBDF3": 3}
CELLS = 6
DIFFUSION = 20 * (np.eye(CELLS, k=1) - 2 * np.eye(CELLS) + np.eye(CELLS, k=-1)) + np.diag(np.arange(CELLS - 1.0), 1)
CONSTRAINTS = random_field((2, CELLS), seed=1)


class Dense(pde.AbstractSplitEquation):
    """`∂u/∂t = L u + rate sin(3 u + t) + args - Dᵀ p` with a full matrix L, and `D u = 0` if a matrix D is given."""

    fft: Any
    matrix: Any
    constraints: Any = None
    rate: Any = 1.0

    @property
    def in_structure(self):
        return self.fft.in_structure

    def state(self, fields):
        return fields

    def fields(self, u):
        return u

    def nonlinear(self, t, u, args=None):
        return jnp.asarray(self.rate, u.dtype) * jnp.sin(3 * u + t) + (0 if args is None else args)

    def resolvent(self, u, h):
        matrix = jnp.eye(CELLS, dtype=u.dtype) - h * jnp.asarray(self.matrix, u.dtype)
        if self.constraints is not None:  # The argument need not satisfy D u = 0, but the result does.
            d = jnp.asarray(self.constraints, u.dtype)
            matrix = jnp.block([[matrix, d.T], [d, jnp.zeros((len(d), len(d)), u.dtype)]])
            u = jnp.concatenate([u, jnp.zeros((*u.shape[:-1], len(d)), u.dtype)], -1)
        return jnp.linalg.solve(matrix, u[..., None])[..., :CELLS, 0]


def dense(constraints=None, matrix=DIFFUSION, rate=1.0):
    return Dense(FFT(make_mesh((1,)), ndim=1, shape=(CELLS,), real=True), matrix, constraints, rate)


def vector():
    return jnp.asarray(random_field((CELLS,)))


def projection():
    return np.eye(CELLS) - np.linalg.pinv(CONSTRAINTS) @ CONSTRAINTS


def flame(sizes=(1,), kind="auto", shape=(16,), dtype=np.float64):
    """Return a spectral equation and a state."""
    options = {"ndim": len(shape), "shape": shape, "box": Box(9.0)}
    fft = FFT(make_mesh(sizes, kind), **options, pad=True, real=True, norm="forward")
    equation = pde.KuramotoSivashinsky(fft)
    return equation, equation.transform(fft.decomposition.shard(random_field(shape, dtype)))


@jax.jit
def run(solver, u, steps):
    """Take steps from the time 0.5. One compiled program takes any number of steps."""
    step = lambda i, carried: solver.step(0.5 + i * solver.dt, carried)
    last = jax.lax.fori_loop(0, steps, step, solver.start(u))
    return last.state if isinstance(last, pde.History) else last


def reference(rate, u):
    """Return the states at the time 0.5, when fast modes have decayed, and at the time 1.5."""
    return solve_ivp(rate, (0.0, 1.5), u, "DOP853", (0.5, 1.5), rtol=1e-12, atol=1e-13).y.T.copy()


def test_runge_kutta_satisfies_all_conditions_up_to_order_3():
    """The order conditions hold for both tableaux (explicit and implicit), and for products of the two."""
    explicit, implicit = np.zeros((2, 5, 5))
    for i, (forward, backward) in enumerate(zip(EXPLICIT, IMPLICIT), 1):
        explicit[i, :i], implicit[i, 1 : i + 1] = forward, backward
    both = [(matrix, matrix[-1], matrix.sum(1)) for matrix in (explicit, implicit)]
    for _, weights, nodes in both:
        np.testing.assert_allclose(nodes, (0, *NODES), atol=1e-15)
        assert weights.sum() == pytest.approx(1)
    for (_, b, _), (a, _, c), (_, _, d) in itertools.product(both, repeat=3):
        assert b @ c == pytest.approx(1 / 2)
        assert b @ (c * d) == pytest.approx(1 / 3)
        assert b @ a @ d == pytest.approx(1 / 6)
    z = np.logspace(-2, 9, 200)[:, None] * np.exp(1j * np.linspace(np.pi / 2, np.pi, 9))
    growth = [1 + z * implicit[-1] @ np.linalg.solve(np.eye(5) - z * implicit, np.ones(5)) for z in z.ravel()]
    assert np.abs(growth).max() < 1 + 1e-12  # The method is A-stable.
    assert np.abs(growth).reshape(z.shape)[-1].max() < 1e-8  # The method is also L-stable.


@pytest.mark.parametrize("order", [2, 3])
def test_multi_step_weights_are_exact_for_polynomials(order):
    c, states, slopes = METHODS[order]
    past = -np.arange(order)  # These are the times of the last states. The new state is at the time 1.
    for power in range(order + 1):
        assert 1 - c * power == pytest.approx(states @ past**power if power else sum(states))
    for power in range(order):
        assert slopes @ past**power == pytest.approx(1)


@pytest.mark.parametrize(
    ("stiffness", "constrained", "orders"),
    [(1, False, ORDERS), (1, True, ORDERS), (50, True, {**ORDERS, "IMEXRK": 1.75})],
)
def test_order_for_a_full_matrix(stiffness, constrained, orders):
    """With a full matrix as the linear part, the errors fall at the expected order.

    SciPy computes the reference solution, with a projection that eliminates the constraint. If the linear part is very
    stiff, Runge–Kutta methods have a lower order, but BDF methods do not.
    """
    project = projection() if constrained else np.eye(CELLS)
    rate = lambda t, u: project @ (stiffness * DIFFUSION @ u + np.sin(3 * u + t))
    start = project @ vector()
    start, exact = reference(rate, start)
    equation = dense(CONSTRAINTS if constrained else None, stiffness * DIFFUSION)
    for name, make in SOLVERS.items():
        last = [run(make(equation, jnp.asarray(1 / steps)), jnp.asarray(start), steps) for steps in (80, 160)]
        errors = [np.linalg.norm(u - exact) for u in last]
        assert 1e-12 < errors[0] < 1e-4
        assert math.log2(errors[0] / errors[1]) == pytest.approx(orders[name], abs=0.25)
        assert not constrained or np.abs(CONSTRAINTS @ last[0]).max() < 1e-12


def test_order_for_a_stiff_spectral_equation():
    """The errors for the Kuramoto–Sivashinsky equation fall at the expected order.

    SciPy computes the reference solution, from a right-hand side that sums the products mode by mode, without FFTs.
    """
    equation, u = flame()
    modes = u.shape[0]
    k = 2 * np.pi / 9 * np.arange(modes)

    def rate(t, u):
        u = u.view(complex)
        slope = np.concatenate([(-1j * k[1:] * u[1:].conj())[::-1], 1j * k * u])
        return ((k**2 - k**4) * u - np.convolve(slope, slope)[2 * modes - 2 : 3 * modes - 2] / 2).view(float)

    start, exact = reference(rate, np.array(u).view(float)).view(complex)
    for name, make in SOLVERS.items():
        last = [run(make(equation, jnp.asarray(1 / steps)), jnp.asarray(start), steps) for steps in (64, 128)]
        errors = [np.linalg.norm(u - exact) for u in last]
        assert math.log2(errors[0] / errors[1]) == pytest.approx(ORDERS[name], abs=0.2)


@pytest.mark.parametrize("order", [2, 3])
def test_multi_step_is_the_textbook_formula(order):
    equation, h = dense(), 0.1
    starter = eqx.filter_jit(pde.IMEXRK(equation, h).step)
    states = [vector()]
    c, a, b = {
        2: (2 / 3, (4 / 3, -1 / 3), (2, -1)),
        3: (6 / 11, (18 / 11, -9 / 11, 2 / 11), (3, -3, 1)),
    }[order]
    for i in range(5):
        if i < order - 1:
            states.append(starter(h * i, states[-1]))
            continue
        slopes = [np.sin(3 * u + h * n) for n, u in enumerate(states)]
        rest = sum(w * u for w, u in zip(a, states[::-1])) + c * h * sum(w * n for w, n in zip(b, slopes[::-1]))
        states.append(np.linalg.solve(np.eye(CELLS) - c * h * DIFFUSION, rest))
    _, seen = pde.SBDF(equation, h, order).rollout(states[0], 5, every=1, observe=lambda t, u: u)
    assert_close(seen, states[1:])


@pytest.mark.parametrize("name", SOLVERS)
def test_a_steady_state_stays(name):
    equation = dense(rate=0.0)
    u = vector()
    last, _ = SOLVERS[name](equation, 10.0).rollout(u, 4, args=-DIFFUSION @ u)
    assert_close(last, u)


@pytest.mark.parametrize("name", SOLVERS)
def test_infinitely_fast_decay_is_damped(name):
    """The integrators damp modes with huge decay rates, even with the large rounding errors of single precision."""
    u = jnp.ones(CELLS, np.float32)
    for size in (1e9, 1e30):
        solver = SOLVERS[name](dense(matrix=size * DIFFUSION, rate=0.0), jnp.asarray(1.0))
        for steps in (1, 4):
            last = run(solver, u, steps)
            assert last.dtype == np.float32
            assert np.abs(last).max() < 1e-6


@pytest.mark.parametrize("name", SOLVERS)
def test_a_history_continues_exactly(name):
    """Several rollouts of a history equal one longer rollout, and JAX compiles them only once."""
    solver, u = SOLVERS[name](dense(), 0.1), vector()
    whole, seen = solver.rollout(u, 6, t=3.0, every=1, observe=lambda t, u: (t, u))
    observe, parts, carried, traced = lambda t, u: traced.append(1) or (t, u), [], solver.start(u), []
    for i in range(3):
        carried, part = solver.rollout(carried, 2, t=3.0 + 0.2 * i, every=1, observe=observe)
        parts.append(part)
    counts = len(traced)
    carried, _ = solver.rollout(carried, 2, t=3.6, every=1, observe=observe)
    assert len(traced) == counts
    for i in range(2):
        assert_close(np.concatenate([part[i] for part in parts]), seen[i])
    assert_close(parts[-1][1][-1], whole)
    assert isinstance(carried, pde.History) == name.startswith("SBDF")


@pytest.mark.parametrize("name", ["IMEXRK", "SBDF3"])
def test_derivatives_are_those_of_finite_differences(name):
    """First and second derivatives equal finite differences.

    The derivatives are with respect to both parts of the equation, the time step and the initial state.
    """
    equation, u = dense(CONSTRAINTS), projection() @ vector()

    def loss(parameters):
        stiffness, rate, dt, amplitude = parameters
        changed = replace(equation, matrix=stiffness * DIFFUSION, rate=rate)
        return jnp.sum(SOLVERS[name](changed, dt).rollout(amplitude * u, 5)[0] ** 3)

    at, direction = np.array([0.2, 1.5, 0.1, 2.0]), random_field((4,))
    both = jax.jit(lambda at: jax.jvp(jax.value_and_grad(loss), (at,), (direction,)))
    value, gradient = (lambda at: both(at)[0][0]), (lambda at: both(at)[0][1])
    for axis in np.eye(4):
        assert gradient(at) @ axis == pytest.approx(finite_difference(value, at, axis, 1e-5), rel=1e-6)
    _, (_, second) = both(at)
    assert_close(second, (gradient(at + 1e-5 * direction) - gradient(at - 1e-5 * direction)) / 2e-5, 1e-6)


@pytest.mark.promotes_ranks
@pytest.mark.parametrize("name", ["IMEXRK", "SBDF3"])
def test_batches(name):
    """A batch has the same results with leading batch axes, under `vmap` of states, and under `vmap` of histories."""
    solver, u = SOLVERS[name](dense(), 0.1), jnp.asarray(random_field((3, CELLS)))
    together, _ = solver.rollout(u, 4)
    mapped, _ = jax.vmap(lambda u: solver.rollout(u, 4))(u)
    assert_close(mapped, together)
    if name.startswith("SBDF"):
        history = jax.vmap(solver.start)(u)
        history, _ = jax.vmap(lambda history: solver.rollout(history, 4))(history)
        assert_close(history.state, together)


def test_meshes():
    """A rollout of a multi-step method gives the same result on all meshes.

    The first two steps are Runge–Kutta steps, and the next two are BDF steps.
    """
    expected = None
    for sizes, kind in (((1, 1), "auto"), ((2, 4), "auto"), ((2, 2), "explicit")):
        equation, u = flame(sizes, kind, (8, 8, 8))
        solver = pde.SBDF(equation, 0.02, 3)
        with jax.set_mesh(u.sharding.mesh):
            history = jax.jit(lambda u, solver=solver: solver.rollout(solver.start(u), 4)[0])(u)
        assert all(array.sharding.spec == u.sharding.spec for array in (history.state, *history.ahead))
        later = equation.fft.decomposition.gather(equation.transform.inverse(history.state))
        expected = later if expected is None else expected
        assert_close(later, expected)


@pytest.mark.parametrize("name", SOLVERS)
def test_single_precision_stays_single(name):
    equation, u = flame(shape=(8,), dtype=np.float32)
    solver = SOLVERS[name](equation, 0.1)
    later = jax.eval_shape(lambda u: solver.step(0.0, solver.start(u)), u)
    assert {leaf.dtype for leaf in jax.tree.leaves(later)} <= {np.dtype(np.complex64), np.dtype(np.int32)}


def test_bad_input_is_refused(plain):
    class Wrong(plain.pde.KuramotoSivashinsky):
        part: str = "nonlinear"

        def nonlinear(self, t, u, args=None):
            return u.real if self.part == "nonlinear" else u

        def resolvent(self, u, h):
            return u[1:] if self.part == "resolvent" else u

    fft = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), box=plain.Box(1.0), real=True)
    equation = plain.pde.KuramotoSivashinsky(fft)
    u = equation.transform(random_field((4, 4, 4)))
    solvers = plain.pde.IMEXRK(equation, 0.1), plain.pde.SBDF(equation, 0.1), plain.pde.SBDF(equation, 0.1, 3)
    one, two, three = solvers
    history = two.start(u)
    for make, message in (
        (lambda: plain.pde.IMEXRK(fft, 0.1), r"`equation` must be an `AbstractSplitEquation`, .*; got FFT3D"),
        (lambda: plain.pde.SBDF(fft, 0.1), r"`equation` must be an `AbstractSplitEquation`, .*; got FFT3D"),
        (lambda: plain.pde.SBDF(equation, 0.1, 4), r"`order` must be one of \(2, 3\); got 4"),
        (lambda: plain.pde.IMEXRK(equation, -0.1), r"`dt` must be a finite number of at least 0; got -0.1"),
        (lambda: plain.pde.SBDF(equation, "1"), r"`dt` must be one real number; got '1'"),
        (lambda: one.step(0.0, u.real), r"`u` must be a spectrum.*got float64"),
        (lambda: one.rollout(u[1:], 2), r"`u` must be .*, of shape \(\*batch, 3, 3, 2\); got \(2, 3, 2\)"),
        (lambda: two.start(u[1:]), r"`u` must be .*, of shape \(\*batch, 3, 3, 2\); got \(2, 3, 2\)"),
        (lambda: two.rollout(u, 0), r"`steps` must be an integer of at least one; got 0"),
        (lambda: two.step(0.0, u), r"`u` must be a `History`, such as `solver.start\(u\)`; got"),
        (lambda: one.step(0.0, history), r"`u` must be a state.*got a `History`. Pass `history.state`"),
        (lambda: plain.pde.ETDRK(equation, 0.1).rollout(history, 2), r"`u` must be a state.*got a `History`"),
        (lambda: three.rollout(history, 2), r"`u` must be a `History` of an `SBDF` of order 3; got one of order 2"),
        *(
            (
                lambda make=make, part=part: make(Wrong(fft, part=part), 0.1).rollout(u, 2),
                rf"`equation.{part}` must return an array with .* of the state, complex128 \(3, 3, 2\); got",
            )
            for make in (plain.pde.IMEXRK, plain.pde.SBDF)
            for part in ("nonlinear", "resolvent")
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
