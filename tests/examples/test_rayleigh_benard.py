"""The example of convection: the Nusselt number against the literature, and each formula for it against NumPy."""

import re

import decompops as dops
import numpy as np
import pytest
from decompops.pde import RayleighBenard
from numpy.polynomial import chebyshev

import example
from helpers import make_mesh


rayleigh_benard = example.load("rayleigh_benard")


def test_steady_rolls_carry_the_heat_of_clever_and_busse(tmp_path):
    output = example.run_for_gallery("rayleigh_benard", tmp_path)
    bottom, top, *volume = map(float, re.findall(r"^ +40\.00 (.*)$", output, re.MULTILINE)[0].split())
    np.testing.assert_allclose(volume, 1.660, atol=1e-3)
    np.testing.assert_allclose((bottom, top), 1.660, rtol=1e-2)  # Slopes at walls are less exact on this grid.


@pytest.mark.sweep
def test_three_dimensions(tmp_path):
    options = ("--ndim", "3", "--n", "8", "--t-end", "1", "--dt", "0.02", "--mesh", "2x1", "--rayleigh", "3000")
    result = example.run("rayleigh_benard.py", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    rows = np.array([line.split() for line in re.findall(r"^ +[\d.]+ +[\d. ]+$", result.stdout, re.MULTILINE)], float)
    assert rows[-1, 0] == 1
    assert (np.diff(rows[:, 3]) > 0).all()  # The rolls grow above the critical Rayleigh number.


def test_five_formulas_against_numpy():
    n, along, length, rayleigh, prandtl = 24, 32, 3.0, 1e4, 0.5
    bases = (dops.Chebyshev(), dops.Fourier(half=True))
    transform = dops.Transform(make_mesh((4,)), shape=(n, along), bases=bases, box=dops.Box((1.0, length)))
    equation = RayleighBenard(transform, rayleigh, prandtl)
    x, q = bases[0].points(n)[:, None], 2 * np.pi / length
    y = length * np.arange(along) / along
    u = (x * (1 - x)) ** 2 * np.cos(q * y)
    v = -2 * x * (1 - x) * (1 - 2 * x) * np.sin(q * y) / q
    heat = 1 - x + (x - x**3) * (0.3 + np.cos(q * y))
    found = rayleigh_benard.nusselt(equation, equation.state(transform.decomposition.shard(np.stack([u, v, heat]))))

    # These sums run over a finer grid, with derivatives by NumPy.
    nodes, weights = np.polynomial.legendre.leggauss(40)

    def mean(values):
        return weights @ values.mean(1) / 2

    def at(field):
        return chebyshev.chebval(nodes, chebyshev.chebfit(1 - 2 * x[:, 0], field, n - 1)).T

    def squared_gradient(field):
        across = chebyshev.chebder(chebyshev.chebfit(1 - 2 * x[:, 0], field, n - 1)) * -2
        beside = np.fft.irfft(1j * q * np.arange(along // 2 + 1) * np.fft.rfft(at(field), axis=1), along, axis=1)
        return mean(chebyshev.chebval(nodes, across).T ** 2) + mean(beside**2)

    diffusivity, viscosity = 1 / np.sqrt(rayleigh * prandtl), np.sqrt(prandtl / rayleigh)
    expected = {
        "bottom": 1 - 0.3,
        "top": 1 + 2 * 0.3,
        "volume": 1 + mean(at(u) * at(heat)) / diffusivity,
        "thermal": squared_gradient(heat),
        "viscous": 1 + viscosity * (squared_gradient(u) + squared_gradient(v)) / diffusivity,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("option", "value"), [("--n", "4"), ("--rayleigh", "-1"), ("--mesh", "2x2"), ("--out", "figure.txt")]
)
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(rayleigh_benard, option, value, capsys)
