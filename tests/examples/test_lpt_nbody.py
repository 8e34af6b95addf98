"""The particle-mesh example: its parts against NumPy and exact solutions, and a run from the command line."""

import re

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import example
from helpers import assert_close, make_mesh, put, random_field


pytestmark = pytest.mark.promotes_ranks
lpt_nbody = example.load("lpt_nbody")


MESHES = [(1, 1), (2, 2), (2, 4)]


@pytest.fixture(autouse=True)
def standard_promotion():
    """Use JAX's default dtype promotion, as users do. Most tests use strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def particle_mesh(mesh, n: int, halo: int = 3) -> lpt_nbody.ParticleMesh:
    return lpt_nbody.ParticleMesh(dops.FFT3D(mesh, shape=(n,) * 3, box=dops.Box(n), real=True), halo)


def clouds(displacement: np.ndarray):
    """Yield cells that the particles touch, and the share of its mass that each particle has in its cell."""
    n = displacement.shape[-1]
    for corner in np.ndindex(2, 2, 2):
        cells, share = [], 1.0
        for i, start, moved in zip(corner, np.indices((n, n, n)), displacement):
            place = start + moved
            cells.append((np.floor(place).astype(int) + i) % n)
            share = share * (1 - abs(place - np.floor(place) - i))
        yield tuple(cells), share


@pytest.mark.parametrize("sizes", MESHES)
def test_deposit_and_read_agree_with_numpy_on_the_whole_grid(sizes):
    """`deposit` and `read` equal NumPy's results on the whole grid.

    Blocks have 8x8, 4x4 and 4x2 cells, and a halo of 3. Some particles are in end cells, or move far along z.
    """
    n, mesh = 8, make_mesh(sizes, "explicit")
    displacement = np.random.default_rng(0).uniform(-2.999, 2.999, (3, n, n, n))
    displacement[2] *= 7
    displacement[:, 0, 0, 0], displacement[:, -1, -1, -1], displacement[:, 2, 2, 2] = -2.999, 2.999, -1
    force = random_field((3, n, n, n), seed=1)
    density, read = np.zeros((n, n, n)), np.zeros((3, n, n, n))
    for cells, share in clouds(displacement):
        np.add.at(density, cells, share)
        read += share * force[:, *cells]

    pm = particle_mesh(mesh, n)
    sharded = put(mesh, displacement, None, "x", "y", None)
    with jax.set_mesh(mesh):
        deposited = jax.jit(pm.deposit)(sharded)
        interpolated = jax.jit(pm.read)(put(mesh, force, None, "x", "y", None), sharded)
    assert_close(deposited, density, rtol=1e-13)
    assert_close(interpolated, read, rtol=1e-13)
    assert np.sum(deposited) == pytest.approx(n**3, rel=1e-12)


def test_a_particle_beyond_the_halo_makes_the_density_nan():
    n, mesh = 8, make_mesh((2, 2), "explicit")
    displacement = np.zeros((3, n, n, n))
    displacement[1, 3, 4, 5] = 3.0
    with jax.set_mesh(mesh):
        density = jax.jit(particle_mesh(mesh, n).deposit)(put(mesh, displacement, None, "x", "y", None))
    assert np.isnan(density).all()


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
    lpt = jax.jit(particle_mesh(mesh, n).lpt)
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


def test_a_plane_wave_grows_as_in_the_exact_solution():
    """A simulated plane wave follows Zel'dovich's solution until the wave breaks.

    Two errors remain. The cloud-in-cell deposit weakens the force by 2.5%. Near the crest, errors are of first order,
    because the density peak is as wide as a cell.
    """
    n, mesh, amplitude = 16, make_mesh((2, 2), "explicit"), 0.5
    ((k, phase),) = waves(n, (1, 0, 0))
    exact = -amplitude * np.sin(phase) * k[:, None, None, None] / (k @ k)
    pm, start = particle_mesh(mesh, n), 0.2
    first = put(mesh, exact, None, "x", "y", None)
    with jax.set_mesh(mesh):
        evolve, times = jax.jit(pm.evolve), jnp.linspace(start, 1, 5)
        moved, reach = evolve(start * first, start**1.5 * first, times)
        lost, too_far = evolve(3 * start * first, 3 * start**1.5 * first, times)
    moved = np.asarray(moved)
    assert np.sum(moved * exact) == pytest.approx(np.sum(exact**2), rel=0.025)
    assert np.linalg.norm(moved - exact) < 0.06 * np.linalg.norm(exact)
    np.testing.assert_allclose(moved[1:], 0, rtol=0, atol=1e-13)
    assert np.isnan(lost).any()  # With a displacement three times as large, particles leave the halo.
    assert 3 <= float(too_far) < 3 * 1.3
    assert float(reach) == pytest.approx(np.abs(moved[0]).max(), rel=1e-12)


def test_result_does_not_depend_on_the_mesh():
    n, results = 8, []
    for sizes in [(1, 1), (2, 4)]:
        mesh = make_mesh(sizes, "explicit")
        pm = particle_mesh(mesh, n, halo=4)
        fft = pm.fft.replace(box=dops.Box(40.0))
        field = dops.spectral.GaussianRandomField(fft, lpt_nbody.MatterPower())
        with jax.set_mesh(mesh):
            densities, reach = jax.jit(lambda key, pm=pm, field=field: lpt_nbody.simulate(pm, field(key), 2))(
                jax.random.key(3)
            )
        assert 0.5 < float(reach) < 4
        results.append(np.asarray(densities))
    assert np.std(results[0][-1]) > 0.3
    assert_close(*results, rtol=1e-11)


def test_power_spectrum_has_the_given_variance():
    k = np.geomspace(1e-5, 1e3, 20_001)
    x = 8 * k
    sphere = np.where(x < 0.01, 1 - x**2 / 10, 3 * (np.sin(x) - x * np.cos(x)) / x**3)
    power = np.asarray(jax.jit(lambda k: lpt_nbody.MatterPower(sigma8=0.7)(k))(k))
    variance = np.trapezoid(power * (sphere * k) ** 2 / (2 * np.pi**2) * k, np.log(k))
    assert variance**0.5 == pytest.approx(0.7, rel=1e-4)
    np.testing.assert_allclose(np.diff(np.log(power[:2])) / np.diff(np.log(k[:2])), 0.96, atol=0.01)


def test_run_of_a_user(tmp_path):
    options = ("--n", "16", "--box", "100", "--steps", "2", "--halo", "4", "--mesh", "2x2", "--out", "figure.png")
    result = example.run("lpt_nbody.py", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    output = result.stdout
    assert "16³ particles on 2x2 cpu devices" in output
    assert float(re.search(r"mass is at most (\S+)\.\n", output)[1]) < 1e-12
    ratio, scatter = map(float, re.search(r"field: (\S+) ± (\S+) times", output).groups())
    assert abs(ratio - 1) < 4 * scatter < 0.2
    gradient, difference = map(float, re.search(r"direction: (\S+), by differences (\S+) ", output).groups())
    assert abs(gradient) > 1e-4
    assert gradient == pytest.approx(difference, rel=1e-6)
    picture = (tmp_path / "figure.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 20_000


def test_leaving_the_halo_is_said_in_one_line(tmp_path):
    options = ["--n", "8", "--box", "20", "--steps", "1", "--halo", "1", "--mesh", "1x1"]
    with pytest.raises(
        SystemExit, match=r"^A particle moved \d+\.\d+ cells, but the halo has 1; use a larger --halo\.$"
    ):
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
        ("--halo", "0"),
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
