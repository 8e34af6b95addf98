"""The N-body example: its parts against exact solutions, and a run from the command line."""

import re

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import particles

import example
from helpers import assert_close, make_mesh, put


pytestmark = pytest.mark.promotes_ranks
lpt_nbody = example.load("lpt_nbody")


@pytest.fixture(autouse=True)
def standard_promotion():
    """Use JAX's default dtype promotion, as users do. Most tests use strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def universe_on(
    mesh, n: int, box: float, steps: int = 2, matter: float = 0.31, slots: float = 1.5
) -> lpt_nbody.Universe:
    fft = dops.FFT3D(mesh, shape=(n,) * 3, box=dops.Box(box), real=True)
    return lpt_nbody.Universe(fft, particles.Cosmology(matter), steps, slots)


def waves(n: int, *modes: tuple[int, int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each mode, return the wavevector k, in radians per cell, and the phase k·q at each grid point q."""
    vectors = [2 * np.pi * np.array(mode) / n for mode in modes]
    return [(k, np.einsum("i,ixyz->xyz", k, np.indices((n, n, n)))) for k in vectors]


def test_displacements_of_waves_are_the_analytic_ones():
    """Displacements equal the analytic solutions.

    These are of first order for a plane wave (Zel'dovich), and of second order for crossed waves.
    """
    n, mesh = 16, make_mesh((2, 4), "explicit")
    (k, phase), (kx, x), (ky, y) = waves(n, (2, 1, -3), (2, 0, 0), (0, 1, 0))
    lpt = jax.jit(universe_on(mesh, n, n).lpt)
    with jax.set_mesh(mesh):
        first, second = lpt(put(mesh, 0.3 * np.cos(phase), "x", "y", None))
        crossed, beyond = lpt(put(mesh, 0.3 * np.cos(x) + 0.2 * np.sin(y), "x", "y", None))
    zeldovich = -0.3 * np.sin(phase) * k[:, None, None, None] / (k @ k)
    assert_close(first, zeldovich, rtol=1e-13)
    assert np.abs(second).max() < 1e-15 * np.abs(zeldovich).max()

    kx, ky = kx[:, None, None, None], ky[:, None, None, None]
    squares = (kx**2).sum(), (ky**2).sum()
    assert_close(crossed, -0.3 * np.sin(x) * kx / squares[0] + 0.2 * np.cos(y) * ky / squares[1], rtol=1e-13)
    # The source is 0.06 cos(x) sin(y), and ∇·ψ₂ is minus the source.
    expected = 0.06 * (-np.sin(x) * np.sin(y) * kx + np.cos(x) * np.cos(y) * ky) / sum(squares)
    assert_close(beyond, expected, rtol=1e-12)


def test_a_plane_wave_follows_the_exact_solution_until_it_breaks():
    """In one dimension, Zel'dovich's displacements `D ψ₁` are exact.

    Two errors remain, whatever the number of steps. The cloud in cell weakens the force by 2.5%, and so the growth by
    3.4%. And where displacements change their sign, they are smaller than a cell, so the density has kinks.
    """
    n, mesh, amplitude = 16, make_mesh((2, 4), "explicit"), 0.5
    ((k, phase),) = waves(n, (1, 0, 0))
    exact = -amplitude * np.sin(phase) * k[:, None, None, None] / (k @ k)
    universe = universe_on(mesh, n, n, steps=5, matter=1.0)
    with jax.set_mesh(mesh):
        delta = put(mesh, amplitude * np.cos(phase), "x", "y", None)
        last = jax.jit(lambda delta: universe.evolve(universe.displaced(delta, lpt_nbody.START)))(delta)
    found = universe.mesh.gather(last.check())
    moved = found["positions"] - np.indices((n, n, n)).reshape(3, -1).T
    expected = exact.reshape(3, -1).T
    assert np.sum(moved * expected) == pytest.approx(np.sum(expected**2), rel=0.04)
    assert np.linalg.norm(moved - expected) < 0.13 * np.linalg.norm(expected)
    np.testing.assert_allclose(moved[:, 1:], 0, rtol=0, atol=1e-12)


def test_large_modes_grow_as_in_linear_theory():
    """In a large box, the modes with the largest wavelengths grow like D(a).

    On 32³ cells, the cloud in cell damps these modes by 1.6%, in the force and in the final density. On 64³ cells, the
    modes with the same wavenumbers grow right to 1%.
    """
    mesh = make_mesh((2, 4), "explicit")
    universe = universe_on(mesh, 32, 2048.0, steps=3)
    field = dops.spectral.GaussianRandomField(universe.fft, lpt_nbody.MatterPower())
    with jax.set_mesh(mesh):

        @jax.jit
        def run(key):
            delta = field(key)
            last = universe.evolve(universe.displaced(delta, lpt_nbody.START))
            return lpt_nbody.growth(universe.fft, delta, universe.mesh.deposit(last)), last.overflows

        grown, overflows = run(jax.random.key(0))
    assert not overflows
    assert float(grown) == pytest.approx(0.985, abs=0.01)


@pytest.mark.sweep
def test_result_does_not_depend_on_the_mesh():
    n, results = 8, []
    for sizes in [(1, 1), (2, 4)]:
        mesh = make_mesh(sizes, "explicit")
        universe = universe_on(mesh, n, 40.0, slots=4.0)
        field = dops.spectral.GaussianRandomField(universe.fft, lpt_nbody.MatterPower())
        with jax.set_mesh(mesh):
            densities, last = jax.jit(lambda key, u=universe, f=field: lpt_nbody.simulate(u, f(key)))(jax.random.key(3))
        last.check()
        results.append(np.asarray(densities))
    assert np.std(results[0][-1]) > 0.3
    assert_close(*results, rtol=1e-9)


def test_power_spectrum_has_the_given_variance():
    k = np.geomspace(1e-5, 1e3, 20_001)
    x = 8 * k
    sphere = np.where(x < 0.01, 1 - x**2 / 10, 3 * (np.sin(x) - x * np.cos(x)) / x**3)
    power = np.asarray(jax.jit(lambda k: lpt_nbody.MatterPower(sigma8=0.7)(k))(k))
    variance = np.trapezoid(power * (sphere * k) ** 2 / (2 * np.pi**2) * k, np.log(k))
    assert variance**0.5 == pytest.approx(0.7, rel=1e-4)
    np.testing.assert_allclose(np.diff(np.log(power[:2])) / np.diff(np.log(k[:2])), 0.96, atol=0.01)


def test_run_of_a_user(tmp_path):
    output = example.run_for_gallery("lpt_nbody", tmp_path)
    assert "16³ particles on 2x2 cpu devices" in output
    assert float(re.search(r"mass is at most (\S+)\.\n", output)[1]) < 1e-12
    ratio, scatter = map(float, re.search(r"field: (\S+) ± (\S+) times", output).groups())
    assert abs(ratio - 1) < 4 * scatter < 0.2
    assert 1 <= float(re.search(r"device has (\S+) times", output)[1]) < 3
    gradient, difference = map(float, re.search(r"direction: (\S+), by differences (\S+) ", output).groups())
    assert abs(gradient) > 1e-4
    assert gradient == pytest.approx(difference, rel=1e-5)


@pytest.mark.sweep
def test_too_few_slots_are_said_in_one_line(tmp_path):
    options = ["--n", "8", "--box", "20", "--steps", "1", "--slots", "1", "--mesh", "2x2"]
    with pytest.raises(SystemExit, match=r"^`capacity` must be at least \d+, .*; got 128\. .* --slots\.$"):
        lpt_nbody.main([*options, "--out", str(tmp_path / "figure.png")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--n", "4"),
        ("--n", "18"),  # This is not a multiple of the mesh size 4.
        ("--box", "nan"),
        ("--box", "inf"),
        ("--steps", "0"),
        ("--steps", "2.5"),
        ("--slots", "0.5"),
        ("--matter", "0"),
        ("--mesh", "2by4"),
        ("--mesh", "0x4"),
        ("--mesh", "2"),
        ("--mesh", "3x3"),
        ("--out", "missing/figure.png"),
        ("--out", "figure.txt"),
    ],
)
def test_bad_option_is_refused_in_one_line(option, value, capsys):
    example.assert_refused(lpt_nbody, option, value, capsys)
