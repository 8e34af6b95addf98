"""The example of controlled convection: a command-line run, and its gradient against a central difference."""

import re

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.pde import RayleighBenard

import example
from helpers import make_mesh


control_convection = example.load("control_convection")


def test_heat_flux_falls(tmp_path):
    output = example.run_for_gallery("control_convection", tmp_path)
    fluxes = [float(text) for text in re.findall(r"heat flux (\d\S+)", output)]
    assert len(fluxes) == 4
    assert (np.diff(fluxes) < 0).all()
    assert fluxes[-1] < 0.95 * fluxes[0]
    deviations = [float(text) for text in re.findall(r"deviation (\S+)$", output, re.MULTILINE)]
    assert max(deviations) <= 0.3


@pytest.mark.sweep
def test_gradient_against_a_central_difference():
    n, along, dt, steps = 8, 8, 0.1, 8
    bases = (dops.Chebyshev(), dops.Fourier(half=True))
    box = dops.Box((1.0, 2.0))
    transform = dops.Transform(make_mesh((1,)), shape=(n, along), bases=bases, box=box, pad=True)

    def convection(wall):
        return RayleighBenard(transform, 2e4, 1.0, bottom=wall)

    u = convection(jnp.ones(along)).state(transform.decomposition.shard(control_convection.rolls(n, along)))
    flux = jax.jit(jax.value_and_grad(lambda wall: control_convection.heat_flux(convection, wall, dt, steps, u)[0]))
    rng = np.random.default_rng(0)
    wall, direction = 1 + 0.1 * rng.standard_normal(along), rng.standard_normal(along)
    _, gradient = flux(wall)
    (above, _), (below, _) = flux(wall + 1e-5 * direction), flux(wall - 1e-5 * direction)
    assert float(gradient @ direction) == pytest.approx(float(above - below) / 2e-5, rel=1e-7)


def test_admissible_walls():
    wall = np.random.default_rng(0).standard_normal(16)
    found = control_convection.admissible(wall, 0.2)
    np.testing.assert_allclose((found.mean(), found.std()), (1, 0.2), rtol=1e-12)
    np.testing.assert_allclose(control_convection.admissible(found, 0.2), found, rtol=1e-12)


@pytest.mark.parametrize(("option", "value"), [("--n", "4"), ("--bound", "0"), ("--mesh", "2x2"), ("--out", "a.txt")])
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(control_convection, option, value, capsys)
