"""Tests of the buoyancy of scalars, against an exact wave, a growth rate, and NumPy."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral

from helpers import assert_close, make_mesh, random_field


LENGTHS = (2 * np.pi, 4.0, 3.0)


def transform(shape, sizes, kind="auto") -> dops.FFT:
    return dops.FFT(make_mesh(sizes, kind), shape=shape, pad=True, real=True, box=dops.Box(LENGTHS[: len(shape)]))


def boussinesq(fft, square, viscosity=0.0, dealiasing=None, **options) -> pde.PassiveScalar:
    """Return a stratified flow with gravity along the last axis, whose scalar is the buoyancy."""
    up = (0.0,) * (fft.decomposition.ndim - 1)
    flow = pde.NavierStokes(fft, viscosity, dealiasing=dealiasing)
    force = pde.Buoyancy(fft, (*up, 1.0), dealiasing=dealiasing)
    return pde.PassiveScalar(flow, viscosity, mean_gradient=(*up, square), forcing=force, **options)


@pytest.mark.parametrize(
    ("square", "shape", "sizes", "kind"),
    [
        (2.25, (9, 9, 10), (2, 2), "explicit"),
        pytest.param(2.25, (9, 10), (4,), "auto", marks=pytest.mark.sweep),
        (-2.25, (9, 10), (2,), "auto"),
    ],
)
def test_an_internal_gravity_wave(square, shape, sizes, kind):
    """A plane wave of any amplitude has the frequency `N k_h / k`. If N² is negative, it grows at this rate.

    The velocity is orthogonal to k, so the wave does not carry itself, and is an exact solution. Viscosity and equal
    diffusivity damp it.
    """
    ndim, viscosity, t = len(shape), 0.05, 1.2
    fft = transform(shape, sizes, kind)
    equation = boussinesq(fft, square, viscosity)
    k = 2 * np.pi * np.array([1.0, -2.0, 1.0][3 - ndim :]) / np.array(LENGTHS[:ndim])
    x = np.meshgrid(*(length * np.arange(n) / n for n, length in zip(shape, LENGTHS)), indexing="ij")
    phase, across = sum(a * b for a, b in zip(k, x)), np.linalg.norm(k[:-1])
    direction = np.eye(ndim)[-1] - k * k[-1] / (k @ k)  # Upwards, without the part along k.
    rate = np.sqrt(abs(square)) * across / np.linalg.norm(k)
    # On direction, buoyancy pushes by k_h² / k² times b along z: w' = k_h² / k² b, and b' = -N² w.
    speed, lift = (np.cos, lambda s: -np.sin(s)) if square > 0 else (np.cosh, np.sinh)
    amplitude = direction / direction[-1]

    def state(t):
        w = speed(rate * t) * np.cos(phase)
        b = rate / direction[-1] * lift(rate * t) * np.cos(phase)
        return np.exp(-viscosity * (k @ k) * t) * np.stack([*(a * w for a in amplitude), b])

    dec = fft.decomposition
    with jax.set_mesh(dec.mesh):
        start = equation.state(dec.shard(state(0.0)))
        u, _ = pde.ETDRK(equation, t / 20).rollout(start, 20)
        assert_close(dec.gather(equation.fields(u)), state(t), 1e-6)


@pytest.mark.parametrize(("shape", "sizes"), [((9, 10), (2,)), ((8, 6, 9), (2, 2))])
def test_the_rate_is_equal_to_numpy(shape, sizes):
    """The rate with two scalars, of which the second pushes the flow as well, along another axis."""
    ndim, lengths = len(shape), LENGTHS[: len(shape)]
    fft = transform(shape, sizes)
    pushes = (0.3, -1.2, 0.7)[:ndim], (-0.4, 0.0, 2.0)[:ndim]
    forces = tuple(pde.Buoyancy(fft, a, scalar=i, dealiasing=None) for i, a in enumerate(pushes))
    flow = pde.NavierStokes(fft, 0.1, dealiasing=None)
    heat = pde.PassiveScalar(flow, 0.2, mean_gradient=(0.5, 0.0, -1.5)[:ndim])
    equation = pde.PassiveScalar(heat, 0.3, forcing=forces)
    k = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, w / n) for n, w in zip(shape, lengths)), indexing="ij")
    square = sum(q**2 for q in k)
    slopes = [np.where(2 * abs(q) * w >= 2 * np.pi * n, 0, q) for q, n, w in zip(k, shape, lengths)]
    hat, back = np.fft.fftn, lambda f: np.fft.ifftn(f).real
    d = lambda f, axis: back(1j * slopes[axis] * hat(f))
    laplacian = lambda f: back(-square * hat(f))
    fields = random_field((2, ndim + 2, *shape))
    solenoidal = spectral.LerayProjection(fft)(fft.decomposition.shard(fields[:, :ndim]))
    fields[:, :ndim] = fft.decomposition.gather(solenoidal)

    def rate(parts):
        u, scalars = parts[:ndim], parts[ndim:]
        # With aliased products, `∇·(u u)` and `u·∇u` differ, so the forms are those of the equations.
        force = [
            sum(push[i] * c for push, c in zip(pushes, scalars)) - sum(d(u[i] * u[j], j) for j in range(ndim))
            for i in range(ndim)
        ]
        pressure = sum(slopes[i] * hat(force[i]) for i in range(ndim)) / np.where(denominator == 0, 1, denominator)
        force = [f - back(q * pressure) for f, q in zip(force, slopes)]
        velocity = [f + 0.1 * laplacian(v) for f, v in zip(force, u)]
        carried = [
            0.2 * laplacian(scalars[0]) - sum(u[i] * (d(scalars[0], i) + (0.5, 0.0, -1.5)[i]) for i in range(ndim)),
            0.3 * laplacian(scalars[1]) - sum(u[i] * d(scalars[1], i) for i in range(ndim)),
        ]
        return np.stack(velocity + carried)

    denominator = sum(q**2 for q in slopes)
    expected = np.stack([rate(parts) for parts in fields])
    dec = fft.decomposition
    got = jax.jit(lambda f: equation.fields(equation(0.0, equation.state(f))))(dec.shard(fields))
    assert_close(dec.gather(got), expected, 1e-12)


def test_precision_derivatives_and_restarts(tmp_path):
    fft = transform((8, 9), (2,))
    equation = boussinesq(fft, 1.0, 0.1, dealiasing=spectral.Truncate())
    fields = random_field((3, 8, 9))
    u = equation.state(fft.decomposition.shard(fields.astype(np.float32)))
    assert jax.eval_shape(lambda u: equation(0.0, u), u).dtype == np.complex64
    u = equation.state(fft.decomposition.shard(fields))

    @jax.jit
    @jax.value_and_grad
    def loss(push):
        force = pde.Buoyancy(fft, (0.5, push))
        rate = pde.PassiveScalar(equation.equation, 0.1, forcing=force)(0.0, u)
        return jnp.sum(jnp.abs(rate) ** 2)

    slope, step = loss(0.7)[1], 1e-3  # The loss is a quadratic function, so this difference is exact.
    assert float(slope) == pytest.approx(float(loss(0.7 + step)[0] - loss(0.7 - step)[0]) / (2 * step), rel=1e-8)
    run = lambda t_end, folder=None: pde.simulate(
        pde.ETDRK(equation, 0.05, 2), u, t_end, interval=0.1, checkpoint=folder, progress=False
    )
    run(0.1, tmp_path)
    assert_close(run(0.2, tmp_path).u, run(0.2).u, 0)


def test_bad_input_is_refused(plain):
    fft = plain.FFT2D(make_mesh((1,)), shape=(8, 8), real=True)
    bases = plain.Fourier(half=True), plain.Cosine(2)
    walls = plain.Transform(make_mesh((1,)), bases=bases, shape=(8, 8), axes="x", box=plain.Box(1.0))
    flow = plain.pde.NavierStokes(fft, 0.1)
    plain.pde.Buoyancy(walls, (1.0, 0.0))
    for make, message in (
        (lambda: plain.pde.Buoyancy(fft, (1.0,)), r"`acceleration` must be a tuple of one number for each of x, y"),
        (lambda: plain.pde.Buoyancy(fft, (0.0, np.inf)), "`acceleration` must be finite"),
        (lambda: plain.pde.Buoyancy(fft, (0.0, 1.0), scalar=-1), "`scalar` must be the number of a scalar.*got -1"),
        (lambda: plain.pde.Buoyancy(walls, (0.0, 1.0)), "`acceleration` must be zero along y, where.*Cosine"),
        (
            lambda: plain.pde.PassiveScalar(flow, 0.1, forcing=plain.pde.Buoyancy(fft, (0.0, 1.0), dealiasing=None)),
            "`forcing` must have the `fft` and the `dealiasing` of its equation",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
    alone = plain.pde.NavierStokes(fft, 0.1, forcing=plain.pde.Buoyancy(fft, (0.0, 1.0)))
    second = plain.pde.PassiveScalar(flow, 0.1, forcing=plain.pde.Buoyancy(fft, (0.0, 1.0), scalar=1))
    for equation, count in ((alone, 2), (second, 3)):
        with pytest.raises(ValueError, match=r"`Buoyancy` must be the `forcing` of a `PassiveScalar` whose state has"):
            equation.nonlinear(0.0, equation.state(np.zeros((count, 8, 8))))
