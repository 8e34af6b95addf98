"""The example that compares gradients through halos."""

import importlib.util
import itertools
import re
import sys
from types import SimpleNamespace

import decompops as dops
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

import example
from helpers import make_mesh


halo_gradient = example.load("halo_gradient")


def density_and_gradient(displacement: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the density of displaced particles and the gradient of its variance, computed with NumPy."""
    n = displacement.shape[-1]
    whole = np.floor(displacement).astype(int)
    part = displacement - whole
    density, gradient = np.zeros((n, n, n)), np.zeros_like(displacement)
    corners = []
    for corner in itertools.product((0, 1), repeat=3):
        shares = [part[i] if corner[i] else 1 - part[i] for i in range(3)]
        cells = tuple((np.indices((n, n, n))[i] + whole[i] + corner[i]) % n for i in range(3))
        np.add.at(density, cells, shares[0] * shares[1] * shares[2])
        corners.append((corner, cells, shares))
    for corner, cells, shares in corners:
        for i in range(3):
            others = shares[i - 2] * shares[i - 1]
            gradient[i] += 2 / n**3 * (density[cells] - 1) * (others if corner[i] else -others)
    return density, gradient


def test_one_device_beside_numpy():
    displacement = halo_gradient.displacements(8, 1.9, seed=1)
    density, gradient = density_and_gradient(displacement)
    np.testing.assert_allclose(halo_gradient.paint(displacement), density, rtol=1e-13)
    value, found = halo_gradient.clumping(halo_gradient.paint)(displacement)
    np.testing.assert_allclose(value, np.var(density), rtol=1e-13)
    np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-13 * abs(gradient).max())


@pytest.mark.parametrize("sizes", [(2, 4), (4, 1), (1, 1)])
def test_decompops_beside_numpy(sizes):
    check(halo_gradient.with_decompops, make_mesh(sizes))


def test_the_recipe_of_jaxpm_is_right_with_a_right_exchange(monkeypatch):
    """The example's gradient is right if `HaloExchange`, which has the right derivative, replaces jaxDecomp's exchange.

    So the example calls `jaxdecomp.halo_exchange` correctly.
    """
    mesh = make_mesh((2, 4))

    def exchange(x, halo_extents, halo_periods):
        assert halo_periods == (True, True)
        return dops.HaloExchange(mesh, (*halo_extents, 0)).update(x)

    monkeypatch.setitem(sys.modules, "jaxdecomp", SimpleNamespace(halo_exchange=exchange))
    check(halo_gradient.with_jaxdecomp, mesh)


def check(make, mesh: Mesh) -> None:
    displacement = halo_gradient.displacements(16, 1.99, seed=2)
    density, gradient = density_and_gradient(displacement)
    painter = make(mesh, 2)
    sharded = jax.device_put(displacement, NamedSharding(mesh, halo_gradient.VECTOR))
    np.testing.assert_allclose(jax.jit(painter)(sharded), density, rtol=1e-12)
    value, found = halo_gradient.clumping(painter)(sharded)
    np.testing.assert_allclose(value, np.var(density), rtol=1e-13)
    np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-13 * abs(gradient).max())


def test_displacements_reach_what_is_asked_for():
    displacement = halo_gradient.displacements(16, 1.5, seed=0)
    assert displacement.shape == (3, 16, 16, 16)
    assert abs(displacement).max() == pytest.approx(1.5, rel=1e-12)
    # Neighbouring particles have similar displacements.
    assert np.std(np.diff(displacement, axis=1)) < np.std(displacement) / 1.5


def test_example_as_a_user_runs_it(tmp_path):
    options = ("halo_gradient", "--n", "8", "--mesh", "2x2", "--out", "figure.png")
    result = example.run("-c", example.SHOW_PROGRESS, *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"drawing gradients: \d of [34] done", result.stderr)
    ((slope, difference),) = re.findall(r"gradient: (\S+), by finite differences (\S+)\n", result.stdout)
    slope, difference = float(slope), float(difference)
    assert abs(slope) > 1e-2
    assert slope == pytest.approx(difference, rel=1e-6)
    rows = re.findall(r"^(decompops|jaxDecomp [0-9.]+)((?: +\S+e\S+){3})$", result.stdout, re.MULTILINE)
    errors = {name.split()[0]: [float(error) for error in row.split()] for name, row in rows}
    assert max(errors["decompops"][:2]) < 1e-13
    if importlib.util.find_spec("jaxdecomp"):
        value, gradient, slope = errors["jaxDecomp"]
        assert value < 1e-13
        assert min(gradient, slope) > 1e-2
    else:
        assert "jaxDecomp is left out: it is not installed" in result.stdout
    example.assert_picture(tmp_path / "figure.png")


def test_it_runs_without_jaxdecomp(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jaxdecomp", None)  # `import jaxdecomp` then raises an ImportError.
    errors = halo_gradient.main(["--n", "8", "--mesh", "2x2", "--out", str(tmp_path / "figure.png")])
    assert list(errors) == ["decompops"]
    assert max(errors["decompops"][:2]) < 1e-13
    assert "jaxDecomp is left out: it is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"),
    [("--n", "4"), ("--n", "18"), ("--halo", "0"), ("--mesh", "2"), ("--mesh", "3x3"), ("--out", "figure.txt")],
)
def test_bad_option_is_refused_in_one_line(option, value, capsys):
    example.assert_refused(halo_gradient, option, value, capsys)
