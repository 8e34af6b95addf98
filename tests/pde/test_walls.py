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
    "flow": lambda fft: pde.NavierStokes(fft, 0.1),
    "burgers": lambda fft: pde.Burgers(fft, 0.1),
    "front": pde.KuramotoSivashinsky,
    "diffusion": lambda fft: pde.Diffusion(fft, 0.1),
}


# By default, test_nyquist.py tests diffusion between walls.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sweep) if name == "diffusion" else name for name in EQUATIONS]
)
def test_walls_are_mirrors(name):
    mesh = make_mesh((2, 4))
    box = dops.Box((2 * np.pi, 2 * np.pi, np.pi))
    walls = dops.Transform(mesh, bases=BASES, shape=(N, N, N), box=box, pad=True)
    between = EQUATIONS[name](walls)
    fft = dops.FFT3D(mesh, shape=(N, N, 2 * N), box=dops.Box(2 * np.pi), pad=True, real=True)
    periodic = EQUATIONS[name](fft)
    vector = between.components == "vector"
    u = random_field((3, N, N, N) if vector else (N, N, N))
    if name == "flow":
        u = np.asarray(spectral.LerayProjection(walls)(walls.decomposition.shard(u)))
    sign = np.array([1, 1, -1])[:, None, None, None] if vector else 1
    mirrored = np.concatenate([u, sign * u[..., ::-1]], -1)

    def later(equation, u):
        @jax.jit
        def run(u):
            state, _ = pde.ETDRK(equation, 0.01, 1).rollout(equation.state(u), 3)
            fields = equation.fields(state)
            return fields, pde.RealSpace(equation)(0.0, fields)

        decomposition = equation.transform.decomposition
        return map(decomposition.gather, run(decomposition.shard(u)))

    for found, expected in zip(later(between, u), later(periodic, mirrored)):
        assert_close(found, expected[..., :N], 1e-12)


@pytest.mark.parametrize("name", EQUATIONS)
def test_walls_need_a_box(name):
    walls = dops.Transform(make_mesh((2, 4)), bases=BASES, shape=(N, N, N), pad=True)
    with pytest.raises(ValueError, match=r"`box`"):
        EQUATIONS[name](walls)
    EQUATIONS[name](walls.replace(box=dops.Box((1.0, 2.0, 3.0))))


def test_velocities_across_walls_are_never_lost():
    """On a grid with points on the walls, `state` refuses a velocity across the walls, and keeps one along them."""
    bases = dops.Fourier(half=True), dops.Cosine(1)
    fft = dops.Transform(make_mesh((2,)), bases=bases, shape=(8, 9), axes="x", box=dops.Box(1.0), pad=True)
    along, across = np.zeros((2, 2, 8, 9))
    along[0], across[1] = 1.0, np.cos(np.linspace(0, np.pi, 9))
    for equation in (pde.NavierStokes(fft, 0.1), pde.Burgers(fft, 0.1)):
        for place in (np.asarray, fft.decomposition.shard):
            assert_close(fft.decomposition.gather(equation.fields(equation.state(place(along)))), along, 1e-12)
            with pytest.raises(ValueError, match="must have no velocity across walls; got 1 at a wall"):
                equation.state(place(across))


def test_spectra_of_cosines_are_real():
    fft = dops.Transform(make_mesh((2, 2)), bases=(dops.Cosine(2), dops.Cosine(2)), shape=(8, 8), box=dops.Box())
    equation = pde.NavierStokes(fft, 0.1)

    @jax.jit
    def run(fields):
        state = equation.state(spectral.LerayProjection(fft)(fields))
        later, energy = pde.ETDRK(equation, 0.01).rollout(
            state, 4, every=1, observe=lambda t, u: spectral.mean_square(equation.transform, u).sum()
        )
        gradient = jax.grad(lambda u: (equation.nonlinear(0.0, u) ** 2).sum())(state)
        return state, equation.fields(later), energy, gradient

    state, later, energy, gradient = run(random_field((2, 8, 8)))
    assert state.dtype == np.float64
    assert energy[-1] == pytest.approx((np.asarray(later) ** 2).mean((-2, -1)).sum(), rel=1e-12)
    assert gradient.shape == state.shape
