"""Tests of the gradients that `decompops.tools.bench.adjoints` compares."""

from functools import partial

import decompops as dops
import jax
import numpy as np
from decompops import pde
from decompops.tools.bench import adjoints

from helpers import make_mesh


def test_gradients_beside_the_gradient_of_a_rollout():
    """The gradient of Equinox's loop is right. The error of the interpolated adjoint is of fourth order in the stride.

    The reversible adjoint of a few steps has a small error.
    """
    fft = dops.FFT(make_mesh((1,)), shape=(16,), real=True, norm="forward")  # One axis compiles fastest.
    solver = pde.ETDRK(pde.KuramotoSivashinsky(fft.replace(box=dops.Box(20.0))), 0.05, order=1)
    u = solver.equation.state(3 * np.random.default_rng(0).standard_normal(16))
    ways = {
        "rollout": adjoints.by_rollout,
        "Equinox": partial(adjoints.by_equinox, checkpoints=4),
        "stride 2": partial(adjoints.by_interpolation, stride=2),
        "stride 5": partial(adjoints.by_interpolation, stride=5),
        "reversible": adjoints.by_reversal,
    }
    gradient = {name: jax.jit(adjoints.gradient_of(partial(way, solver, 20)))(u) for name, way in ways.items()}
    error = {name: adjoints.difference(found, gradient["rollout"]) for name, found in gradient.items()}
    assert error["Equinox"] < 1e-14
    assert 1e-10 < error["stride 2"] < error["stride 5"] / 2.5**4 < 1e-4
    assert 1e-10 < error["reversible"] < 0.1
