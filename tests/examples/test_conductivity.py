"""The example of the conductivity: its gradient, and short runs in two and three dimensions."""

import re

import decompops as dops
import jax
import numpy as np
import pytest

import example


conductivity = example.load("conductivity")


def test_the_gradient_of_the_misfit_is_its_slope():
    n = 9
    dec = dops.Decomposition(jax.make_mesh((2,), ("x",)), shape=(n, n), pad=True, box=dops.Box(2.0))
    x, y = conductivity.centres(n, 2)
    truth, log_a, way = map(dec.shard, (np.sin(3 * x + y), 0.5 * np.cos(2 * x - y), np.exp(x) * np.cos(5 * y)))
    measured = conductivity.chosen(dec, 0.5, jax.random.key(0))
    seen = jax.jit(conductivity.measure, static_argnums=2)(dec, truth, 0.01, measured, jax.random.key(1))
    misfit = jax.jit(lambda log_a: seen.misfit(log_a))
    slope = float(dec.sum(jax.jit(jax.grad(seen.misfit))(log_a) * way))
    step = 1e-3
    difference = (float(misfit(log_a + step * way)) - float(misfit(log_a - step * way))) / (2 * step)
    assert slope == pytest.approx(difference, rel=1e-3)


def test_potentials_of_a_uniform_conductivity_are_the_drives():
    dec = dops.Decomposition(jax.make_mesh((2,), ("x",)), shape=(6, 6), box=dops.Box(2.0))
    u = jax.jit(conductivity.potentials)(dec, dec.shard(np.full((6, 6), 0.7)))
    np.testing.assert_allclose(dec.gather(u), conductivity.drives(conductivity.centres(6, 2)), atol=1e-5)


def test_the_bodies_in_a_square_are_found(tmp_path):
    output = example.run_for_gallery("conductivity", tmp_path)
    first, last = map(float, re.search(r"fell from (\S+) to (\S+);", output).groups())
    assert last < first / 4
    error, before = map(float, re.search(r"conductivity: (\S+) \(first guess: (\S+)\)", output).groups())
    assert error < 0.8 * before
    assert float(re.search(r"in the bodies: (\S+)", output)[1]) > 2.5


@pytest.mark.sweep
def test_a_cube_runs(tmp_path):
    file = tmp_path / "cube.png"
    with jax.numpy_dtype_promotion("standard"):  # The schedule of optax needs this.
        found, misfits = conductivity.main(["--cube", "--n", "8", "--iterations", "2", "--out", str(file)])
    assert found.shape == (8, 8, 8)
    assert misfits[1] < misfits[0]
    example.assert_picture(file)


@pytest.mark.parametrize(
    ("option", "value"), [("--n", "4"), ("--noise", "0"), ("--share", "1.5"), ("--share", "0.0001"), ("--mesh", "2x2")]
)
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(conductivity, option, value, capsys)
