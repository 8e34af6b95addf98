"""Tests of the equations against exact solutions and against exponax."""

import math

import decompops as dops
import diffrax
import exponax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral

from helpers import assert_close, make_mesh, random_field


def grid(shape, lengths=(2 * np.pi,) * 3) -> list[np.ndarray]:
    return np.meshgrid(*(length * np.arange(n) / n for n, length in zip(shape, lengths)), indexing="ij")


def transform(shape, sizes=(1, 1), kind="auto", **options) -> dops.FFT:
    return dops.FFT3D(make_mesh(sizes, kind), shape=shape, pad=True, real=True, **options)


def spectrum(equation, field: np.ndarray):
    return equation.transform(equation.transform.decomposition.shard(field))


def after(equation, field: np.ndarray, time: float, steps: int, order: int = 4) -> np.ndarray:
    """Return the field after `steps` time steps, which end at `time`."""
    fft = equation.transform
    u, _ = pde.ETDRK(equation, time / steps, order).rollout(spectrum(equation, field), steps)
    return fft.decomposition.gather(fft.inverse(u))


def rate(equation, field: np.ndarray) -> np.ndarray:
    real = pde.RealSpace(equation)
    return equation.transform.decomposition.gather(jax.jit(real)(0.0, equation.transform.decomposition.shard(field)))


def test_diffusion_and_advection_are_solved_exactly_in_one_step():
    shape, lengths, velocity = (8, 10, 6), (1.0, 2.0, 3.0), (0.3, -0.7, 1.1)
    k = np.array([1, 2, 1]) * 2 * np.pi / np.array(lengths)

    def wave(time: float) -> np.ndarray:
        phases = [q * (x - c * time) for q, c, x in zip(k, velocity, grid(shape, lengths))]
        return np.exp(-0.01 * (k @ k) * time) * np.cos(sum(phases))

    advection = pde.Advection(transform(shape, (2, 4), box=dops.Box(lengths)), velocity, 0.01)
    assert_close(after(advection, wave(0), 0.5, 1), wave(0.5), 1e-12)
    diffusion = pde.Diffusion(transform(shape, box=dops.Box(lengths)), 0.01)
    decayed = math.exp(-0.01 * (k @ k) * 0.5) * wave(0)
    for order in (1, 2, 3, 4):
        assert_close(after(diffusion, np.stack([wave(0)] * 2), 0.5, 1, order), np.stack([decayed] * 2), 1e-12)


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        pytest.param((2, 4), "auto", marks=pytest.mark.sweep),
        ((2, 4), "explicit"),
        pytest.param((1, 1), "explicit", marks=pytest.mark.sweep),
    ],
)
def test_vortices_whose_nonlinear_terms_are_gradients(sizes, kind):
    """The Taylor–Green vortex in two dimensions decays as exp(-2νt), and an ABC flow decays as exp(-νt)."""
    x, y, z = grid((9, 10, 11))
    taylor_green = np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y), 0 * z])
    abc = np.stack([np.sin(z) + 0.4 * np.cos(y), 0.7 * np.sin(x) + np.cos(z), 0.4 * np.sin(y) + 0.7 * np.cos(x)])
    fft = transform((9, 10, 11), sizes, kind)
    with jax.set_mesh(fft.decomposition.mesh):
        equation = pde.NavierStokes(fft, 0.1)
        flows = np.stack([taylor_green, abc])
        factors = np.exp([-2 * 0.1, -0.1])[:, None, None, None, None]
        assert_close(after(equation, flows, 1.0, 4), factors * flows, 1e-12)


def test_forcing_balances_friction():
    x, y, z = grid((8, 8, 8))
    abc = np.stack([np.sin(z) + np.cos(y), np.sin(x) + np.cos(z), np.sin(y) + np.cos(x)])
    fft = transform((8, 8, 8))
    unforced = pde.NavierStokes(fft, 0.3)
    force = 0.3 * spectrum(unforced, abc)
    steady = pde.NavierStokes(fft, 0.3, forcing=lambda t, u, args: args * force)
    u = spectrum(steady, abc)
    rates = jax.jit(steady)
    assert abs(rates(0.0, u, 1.0)).max() < 1e-12 * abs(u).max()
    assert_close(rates(0.0, u, 3.0), 2 * force, 1e-12)  # The rate is ν∇²u + 3 force, and ν∇²u = -0.3 u = -force.


def test_burgers_has_the_solution_of_cole_and_hopf():
    """If θ solves the heat equation, then u = -2ν ∇θ/θ solves Burgers' equation."""
    viscosity, lengths = 0.5, (2 * np.pi, np.pi, 4 * np.pi)
    x, y, z = grid((24, 20, 20), lengths)

    def velocity(time: float) -> np.ndarray:
        a, b = np.exp(-5 * viscosity * time), np.exp(-viscosity * time / 4)
        heat = 6 + a * np.cos(x) * np.cos(2 * y) + b * np.sin(z / 2)
        slope = [-a * np.sin(x) * np.cos(2 * y), -2 * a * np.cos(x) * np.sin(2 * y), b * np.cos(z / 2) / 2]
        return -2 * viscosity * np.stack(slope) / heat

    equation = pde.Burgers(transform(x.shape, (8, 1), box=dops.Box(lengths)), viscosity)
    assert_close(after(equation, velocity(0), 1.0, 20), velocity(1.0), 1e-6)


def test_kuramoto_sivashinsky_term_by_term():
    lengths = (2 * np.pi, 6 * np.pi, 4 * np.pi)
    x, y, z = grid((12, 12, 12), lengths)
    u = np.cos(x) + np.sin(y / 3) * np.cos(z / 2)
    k = 1 / 9 + 1 / 4
    slope = [-np.sin(x), np.cos(y / 3) * np.cos(z / 2) / 3, -np.sin(y / 3) * np.sin(z / 2) / 2]
    linear = (k - k**2) * np.sin(y / 3) * np.cos(z / 2)  # The linear part of cos x is zero.
    equation = pde.KuramotoSivashinsky(transform(x.shape, box=dops.Box(lengths)))
    assert_close(rate(equation, u), linear - sum(s**2 for s in slope) / 2)


@pytest.mark.sweep  # By default, test_exponax.py compares steps of all orders with exponax's steps.
@pytest.mark.promotes_ranks
@jax.numpy_dtype_promotion("standard")  # exponax mixes dtypes.
def test_exponax_takes_the_same_steps():
    """Steps of the equations equal exponax's steps.

    In exponax, the Kuramoto–Sivashinsky equation has ∂⁴/∂x⁴ + ∂⁴/∂y⁴ + ∂⁴/∂z⁴ instead of ∇⁴, and the mean of u stays
    constant. So the test uses a front that varies only along z, and does not compare means.
    """
    n, dt = 12, 0.05
    fft = transform((n, n, n))
    kept = fft.replace(modes=7)  # exponax keeps the mode n / 3, which decompops drops by default.
    u = np.asarray(kept.inverse(kept(random_field((3, n, n, n)))))
    solenoidal = np.asarray(spectral.LerayProjection(fft)(u))
    front = np.broadcast_to(u[0].mean((0, 1)), u[0].shape)  # `front` varies only along z.
    ns, burgers = pde.NavierStokes(fft, 0.02), pde.Burgers(fft, 0.1)
    ks = pde.KuramotoSivashinsky(fft.replace(box=dops.Box(9.0)))
    steppers = exponax.stepper
    for equation, field, order, make in (
        (ns, solenoidal, 2, lambda: steppers.NavierStokesVelocity(3, 2 * np.pi, n, dt, diffusivity=0.02, order=2)),
        (ns, solenoidal, 4, lambda: steppers.NavierStokesVelocity(3, 2 * np.pi, n, dt, diffusivity=0.02, order=4)),
        (burgers, u, 3, lambda: steppers.Burgers(3, 2 * np.pi, n, dt, diffusivity=0.1, order=3)),
        (ks, front, 1, lambda: steppers.KuramotoSivashinsky(3, 9.0, n, dt, order=1)),
    ):
        ours = after(equation, field, dt, 1, order)
        theirs = jax.jit(lambda u, make=make: make()(u))(field.reshape(-1, n, n, n))
        theirs = np.asarray(theirs).reshape(field.shape)
        if equation is ks:
            ours = ours - ours.mean() + theirs.mean()
        assert_close(ours, theirs, 1e-10)


def test_same_rate_on_every_mesh_and_in_a_batch():
    field = random_field((2, 3, 9, 10, 11))
    expected = None
    for sizes in ((1, 1), (8, 1), (8,), (2, 2, 2)):
        equation = pde.NavierStokes(transform((9, 10, 11), sizes), 0.1)
        if expected is None:
            expected = np.stack([rate(equation, f) for f in field])
        else:
            assert_close(rate(equation, field), expected)
    mapped = jax.jit(jax.vmap(equation, (None, 0)))(0.0, spectrum(equation, field))
    assert_close(equation.transform.decomposition.gather(equation.transform.inverse(mapped)), expected)


def test_single_precision_stays_single():
    equation = pde.NavierStokes(transform((8, 8, 8)), jnp.asarray(0.1, jnp.float64))
    u = jax.eval_shape(equation.transform, jax.ShapeDtypeStruct((3, 8, 8, 8), np.float32))
    rate, later = (jax.eval_shape(f, 0.0, u) for f in (equation, pde.ETDRK(equation, 0.1).step))
    assert u.dtype == rate.dtype == later.dtype == np.complex64


def test_diffrax_integrates_fields():
    equation = pde.NavierStokes(transform((8, 8, 8), (2, 4)), 0.05)
    x, y, z = grid((8, 8, 8))
    field = np.stack([np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), 0 * z])
    term = diffrax.ODETerm(pde.RealSpace(equation))
    controller = diffrax.PIDController(rtol=1e-8, atol=1e-8)
    start = equation.transform.decomposition.shard(field)
    solution = diffrax.diffeqsolve(
        term, diffrax.Tsit5(), 0.0, 0.5, 0.05, start, stepsize_controller=controller, throw=False
    )
    assert_close(equation.transform.decomposition.gather(solution.ys[0]), after(equation, field, 0.5, 20), 1e-6)


def test_diffrax_integrates_fields_on_an_explicit_mesh():
    """diffrax needs `auto_axes` on Explicit meshes. Its default `throw=True` adds a callback to the program."""
    equation = pde.Diffusion(transform((8, 8, 8), (2, 4), "explicit"), 0.05)
    x, y, z = grid((8, 8, 8))
    start = equation.transform.decomposition.shard(np.sin(x) * np.cos(2 * y) * np.cos(z))

    def solve(u):
        term = diffrax.ODETerm(pde.RealSpace(equation))
        return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 0.5, 0.1, u).ys[-1]

    end = jax.jit(jax.sharding.auto_axes(solve, out_sharding=start.sharding))(start)
    assert end.sharding == start.sharding
    assert_close(end, np.exp(-0.05 * 6 * 0.5) * np.asarray(start), 1e-8)


def test_bad_input_is_refused(plain):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(8, 8, 8), real=True)
    for make, message in (
        (lambda: plain.pde.Diffusion(fft, -1.0), r"`diffusivity` must be a finite number of at least 0; got -1.0"),
        (lambda: plain.pde.NavierStokes(fft, math.nan), r"`viscosity` must be a finite number.*got nan"),
        (lambda: plain.pde.Burgers(fft, "thick"), r"`viscosity` must be one real number; got 'thick'"),
        (
            lambda: plain.pde.Advection(fft, (1.0, 2.0)),
            r"`velocity` must be a tuple of one number for each of x, y, z",
        ),
        (lambda: fft.replace(box=(1, 2, 3)), r"`box` must be a `Box`.*got \(1, 2, 3\)"),
        (lambda: fft.replace(box=plain.Box((1.0, 2.0))), r"`box` has 2 lengths, but the grid has 3 axes"),
        *(
            (lambda make=make: make(fft), r"`fft` must be built with a `box`.*got no box")
            for make in (
                plain.pde.KuramotoSivashinsky,
                plain.pde.KuramotoSivashinskyConservative,
                plain.pde.KortewegDeVries,
            )
        ),
        (lambda: plain.pde.NavierStokes(fft, 1.0, forcing=3), r"`forcing` must be a function.*got 3"),
        (lambda: plain.pde.NavierStokes(plain.FFT3D(make_mesh((1, 1))), 1.0), r"`fft` must be built with a `shape`"),
        (lambda: plain.pde.NavierStokes(None, 1.0), r"`fft` must be an `FFT` or a `Transform`; got None"),
        *(
            (
                lambda make=make: make(plain.FFT3D(fft.decomposition)),
                r"`fft` must be built with `real=True`; got a complex",
            )
            for make in (
                lambda f: plain.pde.NavierStokes(f, 1.0),
                lambda f: plain.pde.Burgers(f, 1.0),
                lambda f: plain.pde.KuramotoSivashinsky(f.replace(box=plain.Box())),
            )
        ),
        (lambda: plain.pde.RealSpace(fft), r"`equation` must be an `AbstractEquation`, .*; got FFT3D"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
