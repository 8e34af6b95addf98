"""Tests of `Window`: a user's own window in every operation that takes one, against plain NumPy code and SciPy."""

import math

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import particles
from jax.test_util import check_grads
from scipy.interpolate import BSpline

import clouds
from helpers import make_mesh


WIDTH = 5
QUARTIC = BSpline.basis_element(np.arange(WIDTH + 1) - WIDTH / 2, extrapolate=False)


def quartic() -> particles.Window:
    """Return the quartic spline. The share of cell j is its Taylor series about the distance `WIDTH/2 - 1 - j`."""
    starts = [WIDTH / 2 - 1 - j for j in range(WIDTH)]
    taylor = lambda d: tuple(float(QUARTIC(d, nu=order)) / math.factorial(order) for order in range(WIDTH))
    return particles.Window(tuple(map(taylor, starts)))


def mesh_of(sizes, shape, periodic, backend) -> particles.ParticleMesh:
    box = dops.Box((1.0, 2.0, 3.0)[: len(shape)])
    dec = dops.Decomposition(make_mesh(sizes), shape=shape, box=box, pad=True, backend=backend)
    return particles.ParticleMesh(dec, quartic(), periodic)


@pytest.mark.parametrize(
    ("sizes", "shape", "periodic", "backend"),
    [
        ((2, 4), (9, 10, 7), (True, False, True), "native"),
        ((8,), (16, 6), (True, True), "xla"),
        pytest.param((2, 4), (9, 10, 7), (True, False, True), "xla", marks=pytest.mark.sweep),
    ],
)
def test_a_users_window(request, sizes, shape, periodic, backend, monkeypatch):
    monkeypatch.setitem(clouds.WIDTHS, "quartic", WIDTH)
    pm = mesh_of(sizes, shape, periodic, backend)
    dec, rng = pm.decomposition, np.random.default_rng(0)
    x, m, field = rng.uniform(size=(100, len(shape))) * dec.box_lengths, rng.normal(size=100), rng.normal(size=shape)
    p = pm.place(x, m=m, id=np.arange(100))
    expected = clouds.deposit("quartic", x, m, shape, dec.box_lengths, periodic)
    np.testing.assert_allclose(dec.gather(pm.deposit(p, p["m"])), expected, atol=1e-12)
    values = pm.gather(p.replace(v=pm.read(p, dec.shard(field))))["v"]
    np.testing.assert_allclose(values, clouds.read("quartic", x, field, dec.box_lengths, periodic), atol=1e-12)
    if backend == "native" or request.node.get_closest_marker("sweep"):  # By XLA, the gradient compiles for seconds.
        loss = jax.jit(lambda x, m: (pm.deposit(p.replace(x), m) ** 2).sum())
        check_grads(loss, (p.positions, p["m"]), order=1, modes=["rev"], eps=1e-6, rtol=1e-5, atol=1e-5)


def test_the_statistics_of_a_users_window():
    """The contrast of a wave of many particles is this wave, since the window is divided out of it."""
    pm = mesh_of((2, 4), (8, 8, 8), True, "native")
    p = pm.lattice(4)
    wave = 0.2 * np.cos(2 * np.pi * 3 * np.arange(32) / 32)
    weights = 1 + 0.2 * np.cos(2 * np.pi * 3 * p.positions[:, 0])
    found = pm.decomposition.gather(pm.contrast(p, weights))
    np.testing.assert_allclose(found, np.broadcast_to(wave[::4, None, None], (8, 8, 8)), atol=1e-4)
    frequencies = np.linspace(0, 12, 25)
    expected = np.sinc(frequencies / (2 * np.pi)) ** WIDTH
    np.testing.assert_allclose(quartic().transform(frequencies), expected, atol=1e-13)


def test_equal_windows_are_one(plain):
    """Lists, arrays and integers make the same hashable window, so that equal windows share compiled programs."""
    window = plain.particles.Window
    linear = window(((1, -1), (0, 1)))
    assert linear == window([[1.0, -1.0], np.array([0, 1])])
    assert hash(linear) == hash(window([[1.0, -1.0], [0.0, 1.0]]))
    assert (linear.width, linear.halo()) == (2, (0, 1))


@pytest.mark.parametrize("pieces", [(), ((),), ((1.0,), ()), ((np.nan,),), 3, ((1j,),), "cic"])
def test_errors(pieces, plain):
    with pytest.raises(ValueError, match="`pieces` must be the coefficients of a polynomial for each cell, such as"):
        plain.particles.Window(pieces)
