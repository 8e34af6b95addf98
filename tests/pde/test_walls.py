"""Tests of equations between free-slip walls, against mirrored fields in a periodic box of twice the height."""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import pde, spectral

from helpers import assert_close, make_mesh, random_field


N = 8
BASES = (dops.Fourier(), dops.Fourier(half=True), dops.Cosine(2))
EQUATIONS = {
    "flow": lambda fft, box: pde.NavierStokes(fft, 0.1, box),
    "burgers": lambda fft, box: pde.Burgers(fft, 0.1, box),
    "front": lambda fft, box: pde.KuramotoSivashinsky(fft, box),
    "diffusion": lambda fft, box: pde.Diffusion(fft, 0.1, box),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_walls_are_mirrors(name):
    mesh = make_mesh((2, 4))
    walls = dops.Transform(mesh, bases=BASES, shape=(N, N, N), pad=True)
    box = dops.Box((2 * np.pi, 2 * np.pi, np.pi))
    between = EQUATIONS[name](walls, box)
    periodic = EQUATIONS[name](dops.FFT3D(mesh, shape=(N, N, 2 * N), pad=True, real=True), dops.Box(2 * np.pi))
    vector = between.components == "vector"
    u = random_field((3, N, N, N) if vector else (N, N, N))
    if name == "flow":
        u = np.asarray(spectral.LerayProjection(walls, box)(walls.decomposition.shard(u)))
    sign = np.array([1, 1, -1])[:, None, None, None] if vector else 1
    mirrored = np.concatenate([u, sign * u[..., ::-1]], -1)

    def later(equation, u):
        solver = pde.ETDRK(equation, 0.01, 2)
        state, _ = solver.rollout(equation.state(equation.transform.decomposition.shard(u)), 3)
        rate = pde.RealSpace(equation)(0.0, equation.fields(state))
        return [equation.transform.decomposition.gather(field) for field in (equation.fields(state), rate)]

    for found, expected in zip(later(between, u), later(periodic, mirrored)):
        assert_close(found, expected[..., :N], 1e-12)


def test_spectra_of_cosines_are_real():
    fft = dops.Transform(make_mesh((2, 2)), bases=(dops.Cosine(2), dops.Cosine(2)), shape=(8, 8))
    equation = pde.NavierStokes(fft, 0.1)
    u = np.asarray(spectral.LerayProjection(fft)(random_field((2, 8, 8))))
    state = equation.state(u)
    assert state.dtype == np.float64
    later, energy = pde.ETDRK(equation, 0.01).rollout(
        state, 4, every=1, observe=lambda t, u: spectral.mean_square(equation.transform, u).sum()
    )
    assert energy[-1] == pytest.approx((np.asarray(equation.fields(later)) ** 2).mean((-2, -1)).sum(), rel=1e-12)
    assert jax.grad(lambda u: (equation.nonlinear(0.0, u) ** 2).sum())(state).shape == state.shape
