"""Tests of the equations on grids of one, two and four axes, against NumPy, exact solutions and exponax."""

import decompops as dops
import exponax
import jax
import numpy as np
import pytest
from decompops import pde, spectral

from helpers import assert_close, make_mesh, random_field


def transform(shape, sizes=(1,), kind="auto", **options) -> dops.FFT:
    return dops.FFT(make_mesh(sizes, kind), shape=shape, pad=True, real=True, **options)


def after(equation, field: np.ndarray, time: float, steps: int, order: int = 4) -> np.ndarray:
    """Return the field after `steps` time steps, which end at `time`."""
    fft = equation.transform
    start = fft(fft.decomposition.shard(field))
    u, _ = pde.ETDRK(equation, time / steps, order).rollout(start, steps)
    return fft.decomposition.gather(fft.inverse(u))


@pytest.mark.parametrize(
    ("shape", "sizes", "axes"),
    [((15,), (1,), ()), ((9, 10), (2, 2), (("x", "y"),)), ((4, 6, 5, 7), (1,), None)],
)
def test_rates_are_equal_to_those_of_numpy(shape, sizes, axes):
    """Right-hand sides equal results of NumPy that keep only modes below n / 3 along an axis of n points."""
    ndim, nu = len(shape), 0.3
    fft = transform(shape, sizes, axes=axes)
    k = [
        np.fft.fftfreq(n, 1 / n).reshape([-1 if i == axis else 1 for i in range(ndim)]) for axis, n in enumerate(shape)
    ]
    square = sum(q**2 for q in k)
    kept = np.prod(np.broadcast_arrays(*(3 * abs(q) < n for q, n in zip(k, shape))), axis=0)
    axes = tuple(range(-ndim, 0))
    there, back = (lambda u: kept * np.fft.fftn(u, axes=axes)), (lambda s: np.fft.ifftn(s, axes=axes).real)
    d = lambda u, axis: back(1j * k[axis] * there(u))
    cut = lambda u: back(there(u))
    laplacian = lambda u: back(-square * there(u))

    def solenoidal(u):
        along = sum(q * part for q, part in zip(k, there(u))) / np.where(square == 0, 1, square)
        return cut(u) - back(np.stack([q * along for q in k]))

    u, s = cut(random_field((ndim, *shape))), cut(random_field(shape, seed=1))
    v = solenoidal(u)
    advected = lambda u: cut(sum(u[i] * d(u, i) for i in range(ndim)))
    cases = {
        "burgers": (pde.Burgers(fft, nu), u, nu * laplacian(u) - advected(u)),
        "front": (
            pde.KuramotoSivashinsky(fft.replace(box=dops.Box())),
            s,
            -cut(sum(d(s, i) ** 2 for i in range(ndim))) / 2 - laplacian(s) - laplacian(laplacian(s)),
        ),
        "advection": (
            pde.Advection(fft, (1.0, -2.0, 0.5, 3.0)[:ndim], nu),
            s,
            nu * laplacian(s) - sum(c * d(s, i) for i, c in enumerate((1.0, -2.0, 0.5, 3.0)[:ndim])),
        ),
        "diffusion": (pde.Diffusion(fft, nu), u, nu * laplacian(u)),
    }
    if ndim > 1:
        cases["flow"] = (pde.NavierStokes(fft, nu), v, nu * laplacian(v) - solenoidal(advected(v)))
    fields = {name: fft.decomposition.shard(field) for name, (_, field, _) in cases.items()}
    equations = {name: equation for name, (equation, _, _) in cases.items()}
    run = jax.jit(lambda fields: {name: pde.RealSpace(equations[name])(0.0, u) for name, u in fields.items()})
    for name, rate in run(fields).items():
        assert_close(fft.decomposition.gather(rate), cases[name][2])


def test_taylor_green_vortices_keep_their_shape():
    x, y = np.meshgrid(*(2 * np.pi * np.arange(n) / n for n in (9, 10)), indexing="ij")
    flow = np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)])
    fft = transform((9, 10), (2,), "explicit")
    with jax.set_mesh(fft.decomposition.mesh):
        assert_close(after(pde.NavierStokes(fft, 0.1), flow, 1.0, 4), np.exp(-0.2) * flow, 1e-12)


def test_burgers_in_two_dimensions_has_the_solution_of_cole_and_hopf():
    """If θ solves the heat equation, then u = -2ν ∇θ/θ solves Burgers' equation."""
    viscosity = 0.5
    x, y = np.meshgrid(2 * np.pi * np.arange(24) / 24, np.pi * np.arange(20) / 20, indexing="ij")

    def velocity(time: float) -> np.ndarray:
        a, b = np.exp(-5 * viscosity * time), np.exp(-viscosity * time)
        heat = 6 + a * np.cos(x) * np.cos(2 * y) + b * np.sin(x)
        slope = [-a * np.sin(x) * np.cos(2 * y) + b * np.cos(x), -2 * a * np.cos(x) * np.sin(2 * y)]
        return -2 * viscosity * np.stack(slope) / heat

    equation = pde.Burgers(transform(x.shape, (4,), box=dops.Box((2 * np.pi, np.pi))), viscosity)
    assert_close(after(equation, velocity(0), 1.0, 20), velocity(1.0), 1e-6)


@jax.numpy_dtype_promotion("standard")  # exponax mixes dtypes.
def test_exponax_takes_the_same_step_in_two_dimensions():
    """A step equals exponax's step.

    The state of exponax is minus the vorticity, which does not determine the mean velocity. So the mean velocity is
    zero in this test.
    """
    n, dt = 12, 0.05
    fft = transform((n, n))
    kept = fft.replace(modes=7)  # exponax keeps the mode n / 3, which decompops drops by default.
    vorticity = random_field((n, n))
    vorticity = kept.inverse(kept(vorticity - vorticity.mean()))
    flow = np.asarray(spectral.InverseCurl(fft)(vorticity))
    ours = spectral.Curl(fft)(after(pde.NavierStokes(fft, 0.02), flow, dt, 1, order=2))
    make = lambda: exponax.stepper.NavierStokesVorticity(2, 2 * np.pi, n, dt, diffusivity=0.02, order=2)
    assert_close(ours, -np.asarray(jax.jit(lambda u: make()(u))(-vorticity[None]))[0], 1e-10)


def test_arguments_that_do_not_fit_the_grid_are_refused(plain):
    one, two = (plain.FFT(make_mesh((1,)), shape=shape, real=True) for shape in ((8,), (8, 8)))
    for make, message in (
        (lambda: plain.pde.NavierStokes(one, 0.1), "`fft` must transform a grid of at least two axes; got FFT "),
        (
            lambda: plain.pde.Advection(two, (1, 2, 3)),
            "`velocity` must be a tuple of one number for each of x, y; got",
        ),
        (lambda: plain.pde.Burgers(two, 0.1).check(np.zeros((3, 8, 5), complex)), r"`u` must be a spectrum"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
