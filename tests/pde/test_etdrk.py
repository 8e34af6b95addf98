"""Tests of the coefficients, orders and derivatives of exponential integrators."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import FFT3D, pde, spectral
from decompops.pde._etdrk import doubled, phi

from helpers import assert_close, finite_difference, make_mesh, random_field


def flow(sizes=(1, 1), viscosity=0.05):
    """Return an equation, and a state for which the nonlinear part is large."""
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

    @jax.jit
    def run(u, dt):
        """Return the states after 8 and 16 steps."""
        return pde.ETDRK(equation, dt, order).rollout(u, 16, every=8, observe=lambda t, u: u)[1]

    errors = [np.linalg.norm(np.asarray(run(u, 1 / steps)[steps // 8 - 1]) - exact) for steps in (8, 16)]
    assert errors[0] > 1e-9
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.25)


def test_numbers_of_other_types_and_forcings_of_other_precisions():
    """Parameters may be NumPy integers. The precision of a forcing may differ from the precision of the state."""
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


@pytest.mark.parametrize("factor", [-1, np.int32(-1), np.float16(-0.3), np.float32(-0.3), np.complex64(-0.3j)])
def test_linear_factors_of_other_types(factor):
    """Integrators use the factor of an equation in the precision of its state, also inside of a `PassiveScalar`."""

    class Scaled(pde.Advection):
        components = "vector"

        def linear(self, u):
            return factor

    flow = Scaled(FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True), (0.0, 0.0, 0.0))
    u = flow.state(np.ones((3, 4, 4, 4)))
    exact = np.exp(0.2 * complex(factor))
    for integrator, error in ((pde.ETDRK, 1e-12), (pde.IMEXRK, 1e-4), (pde.SBDF, 1e-2)):
        last, _ = integrator(flow, 0.1).rollout(u, 2)
        np.testing.assert_allclose(last[0, 0, 0, 0], exact * u[0, 0, 0, 0], rtol=error)
    np.testing.assert_allclose(flow(0.0, u)[0, 0, 0, 0], complex(factor) * u[0, 0, 0, 0])
    carrying = pde.PassiveScalar(flow, 0.5)
    x = np.arange(4)[:, None, None] * np.pi / 2
    wave = carrying.state(np.concatenate([np.zeros((3, 4, 4, 4)), np.broadcast_to(np.cos(x), (1, 4, 4, 4))]))
    last, _ = pde.ETDRK(carrying, 0.1).rollout(wave, 2)
    assert_close(last[3], math.exp(-0.5 * 0.2) * wave[3])


def test_derivatives_of_a_rollout_are_those_of_finite_differences():
    """Derivatives with respect to viscosity, time step and initial state equal finite differences."""
    equation, u = flow((2, 1))

    @jax.jit
    @jax.value_and_grad
    def energy(parameters):
        viscosity, dt, amplitude = parameters
        solver = pde.ETDRK(pde.NavierStokes(equation.fft, viscosity), dt)
        later, _ = solver.rollout(jax.lax.complex(amplitude * u.real, amplitude * u.imag), 2)
        return spectral.mean_square(equation.transform, later).sum()

    at = np.array([0.05, 0.1, 1.0])
    _, gradient = energy(at)
    for direction in np.eye(3):
        difference = finite_difference(lambda x: energy(x)[0], at, direction, 1e-5)
        assert gradient @ direction == pytest.approx(difference, rel=1e-6)


def test_time_reaches_the_forcing():
    fft = FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True, norm="forward")
    wind = jnp.zeros((3, *fft.out_layout.shape), complex).at[0, 0, 0, 0].set(1)  # A uniform force along x.
    wind = spectral.dealiased(fft)(fft.inverse(wind))
    forced = pde.NavierStokes(fft, 0.0, forcing=lambda t, u, args: args * t.astype(complex) ** 3 * wind)
    later, _ = pde.ETDRK(forced, 0.5).rollout(0 * wind, 4, t=1.0, args=2)
    assert later[0].sum() == pytest.approx(2 * (3**4 - 1) / 4)  # ETDRK4 is Simpson's rule here, and exact for a cubic.


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

    def with_factor(factor):
        class Other(type(equation)):
            def linear(self, u):
                return factor

        return Other(fft, 1.0)

    for make, message in (
        (lambda: plain.pde.ETDRK(fft, 0.1), r"`equation` must be an `AbstractEquation`, .*; got FFT3D"),
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
        (
            lambda: pushed(lambda t, u, args: u[0]),
            r"`forcing` must return .* shape of u, \(3, 3, 3, 2\); got \(3, 3, 2\)",
        ),
        (lambda: doubled.rollout(u, 2), r"`equation.nonlinear` must return .*, complex128 .*; got complex64"),
        (lambda: doubled.equation(0.0, u), r"`equation.nonlinear` must return .*, complex128 .*; got complex64"),
        (lambda: with_factor(None)(0.0, u), r"`Other.linear` must return an array of factors; got None"),
        (
            lambda: plain.pde.ETDRK(with_factor(np.ones(2)), 0.1).rollout(u, 2),
            r"`Other.linear` must return factors that broadcast against the spectrum \(4, 4, 3\); got \(2,\)",
        ),
        (
            lambda: plain.pde.IMEXRK(with_factor(np.ones((2, 1, 1, 1))), 0.1).rollout(u, 2),
            r"`Other.linear` must return factors that broadcast against the spectrum .*; got \(2, 1, 1, 1\)",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
