"""The speeds that `CFL` gets are those of waves, for every equation whose state has a velocity."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde

from helpers import assert_close, make_mesh


SHAPE, LENGTHS = (8, 9), (2.0, 3.0)


def equations(fft: dops.FFT) -> dict[str, pde.AbstractEquation]:
    """Return equations without viscosity or dispersion, in which waves neither grow nor decay."""
    flow, still = pde.NavierStokes(fft, 0.0, dealiasing=None), {"dealiasing": None}
    fast, slow = (pde.Burgers(fft, 0.0, scale=scale, **still) for scale in (-6.0, 0.2))
    growth = {"second_order": 0.0, "fourth_order": 0.0, **still}
    return {
        "NavierStokes": flow,
        "Burgers": pde.Burgers(fft, 0.0, **still),
        "Burgers of scale -6": fast,
        "Burgers of scale 0.2": slow,
        "Burgers, conservative": pde.Burgers(fft, 0.0, scale=3.0, conservative=True, **still),
        "KortewegDeVries": pde.KortewegDeVries(fft, dispersivity=0.0, components="vector", **still),
        "KuramotoSivashinskyConservative": pde.KuramotoSivashinskyConservative(fft, scale=2.0, **growth),
        "PassiveScalar": pde.PassiveScalar(flow, 0.0),
        "PassiveScalar of Burgers of scale -6": pde.PassiveScalar(fast, 0.0),
        "PassiveScalar of PassiveScalar of Burgers of scale 0.2": pde.PassiveScalar(pde.PassiveScalar(slow, 0.0), 0.0),
        "Magnetohydrodynamics": pde.Magnetohydrodynamics(flow, 0.0),
        "ShallowWater": pde.ShallowWater(fft, 3.0, 2.0, **still),
    }


NAMES = tuple(equations(dops.FFT(make_mesh((1,)), shape=SHAPE, real=True, box=dops.Box(LENGTHS))))


@pytest.mark.parametrize("name", NAMES)
def test_speeds_are_those_of_waves(name):
    """On a uniform state, the rate of a wave along an axis has the eigenvalues -iωt, and |ω| / k is at most the speed.

    The matrix of the linear rate has one row and one column for each component of the state.
    """
    fft = dops.FFT(make_mesh((2,)), shape=SHAPE, pad=True, real=True, box=dops.Box(LENGTHS))
    equation = equations(fft)[name]
    count = len(SHAPE) if equation.components == "vector" else equation.components
    values = np.array([0.7, -1.3, 0.4, 0.9][:count])
    uniform = equation.state(fft.decomposition.shard(values[:, None, None] * np.ones((count, *SHAPE))))
    speeds = np.abs(fft.decomposition.gather(equation.speeds(uniform)))[: len(SHAPE)]
    rate = jax.jit(lambda u, du: jax.jvp(lambda u: equation(0.0, u), (u,), (du,))[1])
    for axis, length in enumerate(LENGTHS):
        x = (length * np.arange(SHAPE[axis]) / SHAPE[axis]).reshape([-1 if i == axis else 1 for i in range(2)])
        k = 2 * np.pi / length
        waves = [part(k * x) * np.ones(SHAPE) for part in (np.cos, np.sin)]
        matrix = np.zeros((2 * count, 2 * count))
        for column in range(2 * count):
            wave = np.zeros((count, *SHAPE))
            wave[column // 2] = waves[column % 2]
            found = equation.fields(rate(uniform, equation.state(fft.decomposition.shard(wave))))
            found = fft.decomposition.gather(found)
            matrix[:, column] = [2 * np.mean(found[i // 2] * waves[i % 2]) for i in range(2 * count)]
        fastest = np.abs(np.linalg.eigvals(matrix).imag).max() / k
        assert_close(jnp.asarray(speeds[axis].max()), fastest, 1e-8)
