"""Tests of a viscosity that depends on a scalar, against NumPy and an exact solution."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from decompops import pde, spectral

from helpers import assert_close, make_mesh, random_field


LENGTHS = (2 * np.pi, 4.0, 3.0)


class Law(eqx.Module):
    """A viscosity that grows with the scalar."""

    slope: float | jax.Array

    def __call__(self, c):
        return jnp.exp(self.slope * c)


def transform(shape, sizes, kind="auto", **options) -> dops.FFT:
    box = dops.Box(LENGTHS[: len(shape)])
    return dops.FFT(make_mesh(sizes, kind), shape=shape, pad=True, real=True, box=box, **options)


@pytest.mark.parametrize(
    ("shape", "sizes", "kind"), [((9, 10), (2,), "auto"), ((8, 6, 9), (2, 2), "explicit"), ((8, 6, 9), (1,), "auto")]
)
def test_the_force_is_equal_to_numpy(shape, sizes, kind):
    """The force of the second of two scalars, for a batch of states."""
    ndim, fft = len(shape), transform(shape, sizes, kind)
    model = pde.VariableViscosity(fft, Law(0.7), scalar=1, dealiasing=None)
    batch = random_field((2, ndim + 2, *shape))
    spectrum = model.transform(fft.decomposition.shard(batch))
    with jax.set_mesh(fft.decomposition.mesh):
        found = jax.jit(lambda u: model.transform.inverse(model(0.0, u)))(spectrum)
    assert_close(fft.decomposition.gather(found), np.array([force(fields, LENGTHS) for fields in batch]), 1e-10)


def force(fields, lengths):
    """The force in a periodic box for the viscosity `exp(0.7 c)`, and zero for the scalars; the last one is c."""
    ndim, shape, c = fields[0].ndim, fields[0].shape, fields[-1]
    k = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, w / n) for n, w in zip(shape, lengths)), indexing="ij")
    slopes = [np.where(2 * abs(q) * w >= 2 * np.pi * n, 0, q) for q, n, w in zip(k, shape, lengths)]
    d = lambda f, axis: np.fft.ifftn(1j * slopes[axis] * np.fft.fftn(f)).real
    stress = lambda i, j: np.exp(0.7 * c) * (d(fields[i], j) + d(fields[j], i))
    return [sum(d(stress(i, j), j) for j in range(ndim)) for i in range(ndim)] + [0 * c] * (len(fields) - ndim)


@pytest.mark.parametrize("kind", [pytest.param("auto", marks=pytest.mark.sweep), "explicit"])
def test_free_slip_walls_are_mirrors(kind):
    """Between free-slip walls, the force is that of mirrored fields in a periodic box of twice the height."""
    shape, box = (8, 6, 9), dops.Box((2 * np.pi, 4.0, 1.5))
    bases = dops.Fourier(half=True), dops.Fourier(), dops.Cosine(2)
    walls = dops.Transform(make_mesh((2, 2), kind), bases=bases, shape=shape, box=box, pad=True)
    model = pde.VariableViscosity(walls, Law(0.7), dealiasing=None)
    equation = pde.PassiveScalar(pde.NavierStokes(walls, 0.0, dealiasing=None), 0.0, forcing=model)
    flow = walls.decomposition.gather(
        spectral.LerayProjection(walls)(walls.decomposition.shard(random_field((3, *shape))))
    )
    u = np.concatenate([flow, random_field((1, *shape), seed=1)])
    sign = np.array([1, 1, -1, 1])[:, None, None, None]
    mirrored = np.concatenate([u, sign * u[..., ::-1]], -1)
    with jax.set_mesh(walls.decomposition.mesh):
        found = jax.jit(lambda u: equation.fields(model(0.0, equation.state(u))))(walls.decomposition.shard(u))
    expected = np.array(force(mirrored, (2 * np.pi, 4.0, 3.0)))[..., :9]
    # The slope of a sum of cosines has no Nyquist mode, so the component across the walls has none.
    nyquist = (-1.0) ** np.arange(9)
    expected[2] -= (expected[2] * nyquist).mean(-1, keepdims=True) * nyquist
    assert_close(walls.decomposition.gather(found), expected, 1e-10)


@pytest.mark.parametrize(
    ("constant", "law"),
    [pytest.param(0.0, lambda c: c, marks=pytest.mark.sweep), (0.9, lambda c: c - 0.9)],
)
def test_a_shear_flow_decays(constant, law):
    """The flow `(u(y), 0)` obeys `∂u/∂t = ∂/∂y (ν(y) ∂u/∂y)`, and a scalar that depends on y stays as it is.

    The exact solution is the exponential of a dense matrix. The flow has a constant viscosity, or none.
    """
    n, t, shape = 24, 0.4, (4, 24)
    fft = transform(shape, (2, 2))
    y = LENGTHS[1] * np.arange(n) / n
    viscosity = 0.5 + 0.4 * np.sin(2 * np.pi * y / LENGTHS[1])
    flow = pde.NavierStokes(fft, constant, dealiasing=None)
    equation = pde.PassiveScalar(flow, 0.0, forcing=pde.VariableViscosity(fft, law, dealiasing=None))
    slope = np.fft.fft(np.eye(n), axis=0)
    slope *= 2j * np.pi * np.fft.fftfreq(n, LENGTHS[1] / n)[:, None] * (np.arange(n) != n // 2)[:, None]
    slope = np.fft.ifft(slope, axis=0).real
    u = np.cos(2 * np.pi * y / LENGTHS[1]) + 0.3 * np.sin(4 * np.pi * y / LENGTHS[1])
    expected = scipy.linalg.expm(t * slope @ np.diag(viscosity) @ slope) @ u
    everywhere = lambda *parts: np.stack([np.broadcast_to(part, shape) for part in parts])
    start = equation.state(fft.decomposition.shard(everywhere(u, 0 * u, viscosity)))
    last, _ = pde.ETDRK(equation, t / 100).rollout(start, 100)
    assert_close(fft.decomposition.gather(equation.fields(last)), everywhere(expected, 0 * u, viscosity), 1e-6)


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.sweep), 4])
def test_a_negative_addition_does_not_limit_the_step(order):
    """The shear flow decays in steps of 1, where ν k² is up to 1,024. The viscosity is between 0.05 and 1."""
    shape = (4, 64)
    fft = dops.FFT(make_mesh((2,)), shape=shape, pad=True, real=True)
    law = lambda c: 0.05 * jnp.exp(1.49 * (1 + c)) - 1
    equation = pde.PassiveScalar(pde.NavierStokes(fft, 1.0), 0.0, forcing=pde.VariableViscosity(fft, law))
    c = np.sin(2 * np.pi * np.arange(64) / 64) * np.ones(shape)
    u = random_field((64,)) * np.ones(shape)
    start = equation.state(fft.decomposition.shard(np.stack([u, 0 * u, c])))
    last, _ = pde.ETDRK(equation, 1.0, order).rollout(start, 60)
    assert np.abs(fft.decomposition.gather(equation.fields(last))[0] - u.mean()).max() < 0.2 * np.abs(u).max()


def test_the_law_can_be_differentiated():
    """The derivative of a loss by a parameter of the law, against a central difference."""
    fft = transform((8, 10), (2, 2))
    u = pde.state_transform(fft)(fft.decomposition.shard(random_field((3, 8, 10))))

    @jax.jit
    @jax.value_and_grad
    def loss(slope):
        force = pde.VariableViscosity(fft, Law(slope))
        equation = pde.PassiveScalar(pde.NavierStokes(fft, 0.1), 0.1, forcing=force)
        return fft.decomposition.norm(equation.fields(equation(0.0, u))[0])

    difference = (loss(0.5 + 1e-5)[0] - loss(0.5 - 1e-5)[0]) / 2e-5
    assert_close(loss(0.5)[1], difference, 1e-6)


def test_errors(plain):
    pde, law = plain.pde, lambda c: c
    fft = plain.FFT(make_mesh((2, 2)), shape=(8, 10), pad=True, real=True)
    with pytest.raises(TypeError, match=r"`viscosity` must be a function of the scalar's field; got 0\.1"):
        pde.VariableViscosity(fft, 0.1)
    with pytest.raises(ValueError, match="`scalar` must be the number of a scalar, from zero; got -1"):
        pde.VariableViscosity(fft, law, scalar=-1)
    state = pde.state_transform(fft)(jnp.zeros((2, 8, 10)))
    with pytest.raises(
        ValueError, match=r"`VariableViscosity` must be the `forcing` of a `PassiveScalar`.*2 components"
    ):
        pde.VariableViscosity(fft, law)(0.0, state)
    state = pde.state_transform(fft)(jnp.zeros((3, 8, 10)))
    for wrong in (jnp.sum, lambda c: c.astype(complex), lambda c: None):
        with pytest.raises(ValueError, match="`viscosity` must return a real field with the shape of the scalar, "):
            pde.VariableViscosity(fft, wrong)(0.0, state)
