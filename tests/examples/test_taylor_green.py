"""The example of the Taylor–Green vortex, run in a fresh process, against the published solution and NumPy."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from decompops import io

import example


# This script runs the example's `main` and prints the result in the last line.
_MAIN = """
import json, sys
import taylor_green
print(json.dumps([list(map(float, column)) for column in taylor_green.main(sys.argv[1:])]))
"""


def taylor_green(*options: str, cwd: Path) -> str:
    result = example.run("taylor_green.py", *options, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def history(*options: str, cwd: Path, optimised: bool = False) -> np.ndarray:
    """Return time, energy, dissipation and enstrophy of a run."""
    result = example.run("-c", _MAIN, *options, "--no-plot", cwd=cwd, optimised=optimised)
    assert result.returncode == 0, result.stderr
    return np.array(json.loads(result.stdout.splitlines()[-1]))


def reference() -> np.ndarray:
    return np.loadtxt(example.EXAMPLES / "data" / "taylor_green_re1600_spectral_512.txt").T


def test_early_energy_agrees_with_the_published_solution(tmp_path):
    options = ("--n", "64", "--dt", "0.01", "--dtype", "float64", "--t-end", "0.1", "--no-plot")
    output = taylor_green(*options, cwd=tmp_path)
    energy = float(re.search(r"E\(0\.1\) = (\S+)", output)[1])
    assert energy == pytest.approx(0.124953117517, abs=5e-8)
    assert list(tmp_path.iterdir()) == []


# The first mesh has slabs. The second one has pencils with padding, because 3x2 devices divide neither the 20 cells nor
# the modes.
@pytest.mark.parametrize(
    "options", [pytest.param((), marks=pytest.mark.sweep), ("--n", "20", "--mesh", "3x2")], ids=" ".join
)
def test_history_agrees_with_the_published_solution(options, tmp_path):
    basic = ("--n", "32", "--dt", "0.02", "--dtype", "float64", "--t-end", "1")
    time, energy, dissipation, enstrophy = history(*basic, *options, cwd=tmp_path, optimised=True)
    published = reference()[:, :101:2]
    np.testing.assert_allclose(time, published[0], atol=1e-12)
    np.testing.assert_allclose(energy, published[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(dissipation[1:-1], published[2][1:-1], rtol=2e-3)
    np.testing.assert_allclose(enstrophy, published[3], rtol=2e-3)


def test_it_continues_in_its_folder(tmp_path):
    """A run in two parts on different meshes equals one run. The vorticity snapshots have the right enstrophy."""
    basic = ("--n", "16", "--dt", "0.1", "--dtype", "float64", "--folder", "run")
    history(*basic, "--t-end", "0.3", cwd=tmp_path)
    parts = history(*basic, "--t-end", "1", "--mesh", "2x1", cwd=tmp_path)
    whole = history(*basic[:-2], "--t-end", "1", "--mesh", "1x1", cwd=tmp_path)
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)
    for option, message in (
        (("--t-end", "0.5"), "`t_end` must not be before"),
        (("--n", "32"), "must have the `modes`"),
    ):
        refused = example.run("taylor_green.py", *basic, "--t-end", "1", *option, cwd=tmp_path)
        (line,) = refused.stderr.splitlines()
        assert line.startswith("The run in --folder does not continue: ")
        assert message in line
        assert refused.returncode == 1
    for number in (0, 10):
        vorticity = io.read(tmp_path / "run" / f"{number:06}.h5").arrays["vorticity"]
        np.testing.assert_allclose((vorticity**2).sum(0).mean() / 2, whole[3][number], rtol=1e-12)


def test_energy_falls_at_the_rate_of_viscous_dissipation(tmp_path):
    """The energy loss of an under-resolved flow equals its viscous dissipation: the budget holds at any resolution."""
    options = ("--n", "16", "--dt", "0.02", "--dtype", "float64", "--t-end", "8", "--re", "200", "--mesh", "1x1")
    time, energy, _, enstrophy = history(*options, cwd=tmp_path)
    assert (np.diff(energy) < 0).all()
    assert enstrophy.max() > 2 * enstrophy[0]  # The cascade has begun.
    rate = -(energy[2:] - energy[:-2]) / (time[2:] - time[:-2])
    np.testing.assert_allclose(rate, 2 / 200 * enstrophy[1:-1], rtol=1e-3)
    # Simpson's rule over the whole run avoids the errors of numerical differentiation.
    weights = np.full(len(time), 2.0)
    weights[1::2], weights[[0, -1]] = 4, 1
    lost = 2 / 200 * (weights @ enstrophy) * (time[1] - time[0]) / 3
    assert energy[0] - energy[-1] == pytest.approx(lost, rel=1e-6)


def test_flow_agrees_with_an_independent_solver(tmp_path):
    """A run agrees with a solver in NumPy, which solves the divergence form of the equations with complex FFTs.

    Both solvers are free of aliasing errors.
    """
    n, dt, viscosity = 16, 0.05, 1 / 400
    modes = np.fft.fftfreq(n, 1 / n)
    k = np.stack(np.meshgrid(modes, modes, modes, indexing="ij"))
    k2 = (k**2).sum(0)
    kept = (abs(k) < n / 3).all(0)

    def to_spectrum(field):
        return np.fft.fftn(field, axes=(-3, -2, -1))

    def to_grid(spectrum):
        return np.fft.ifftn(spectrum, axes=(-3, -2, -1)).real

    def rate(u):
        v = to_grid(u)
        force = -1j * kept * np.einsum("jxyz,ijxyz->ixyz", k, to_spectrum(v[:, None] * v))
        return force - k * (k * force).sum(0) / np.where(k2 > 0, k2, 1) - viscosity * k2 * u

    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(n) / n] * 3, indexing="ij")
    u = to_spectrum(np.stack([np.sin(x) * np.cos(y) * np.cos(z), -np.cos(x) * np.sin(y) * np.cos(z), 0 * x]))
    energies, enstrophies = [], []
    for _ in range(51):
        energies.append((to_grid(u) ** 2).sum(0).mean() / 2)
        enstrophies.append((to_grid(1j * np.cross(k, u, axis=0)) ** 2).sum(0).mean() / 2)
        a = rate(u)
        b = rate(u + dt / 2 * a)
        c = rate(u + dt / 2 * b)
        u = u + dt / 6 * (a + 2 * b + 2 * c + rate(u + dt * c))

    options = ("--n", "16", "--dt", "0.05", "--dtype", "float64", "--t-end", "2.5", "--re", "400", "--mesh", "2x1")
    _, energy, _, enstrophy = history(*options, cwd=tmp_path)
    # The tolerances are larger than rounding errors, because the solvers use different fourth-order time steps.
    np.testing.assert_allclose(energy, energies, rtol=1e-8)
    np.testing.assert_allclose(enstrophy, enstrophies, rtol=1e-7)


def test_default_precision_and_figures(tmp_path):
    output = example.run_for_gallery("taylor_green", tmp_path)
    energy = float(re.search(r"E\(0\.1\) = (\S+)", output)[1])
    assert energy == pytest.approx(0.124953117517, rel=1e-6)
    example.assert_picture(tmp_path / "vortex.png")
    picture = (tmp_path / "vortex.png").read_bytes()
    width, height = (int.from_bytes(picture[start : start + 4], "big") for start in (16, 20))
    assert width >= height > 700


@pytest.mark.sweep
def test_gradients_fulfil_an_identity(tmp_path):
    """The gradients with respect to amplitude and viscosity fulfil an identity of the energy.

    The flow with amplitude a, viscosity ν and time T is a times the flow with amplitude 1, viscosity ν/a and time aT.
    So E = a² E₁(ν/a, aT), where dE/dT = -2ν·enstrophy.
    """
    result = example.run("-c", example.SHOW_PROGRESS, "taylor_green", "--gradient", "--mesh", "2x1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "checking the gradient: 0 of 3 done" in result.stderr
    pattern = r"(viscosity|amplitude)\D+?(-?[\d.]+)\D+?(-?[\d.]+)"
    found = re.findall(pattern, result.stdout)
    rows = {name: (float(gradient), float(difference)) for name, gradient, difference in found}
    for gradient, difference in rows.values():
        assert gradient == pytest.approx(difference, rel=1e-6)
    options = ("--n", "16", "--dt", "0.05", "--dtype", "float64", "--t-end", "1", "--mesh", "1x1")
    _, energy, _, enstrophy = history(*options, cwd=tmp_path)
    expected = 2 * energy[-1] - rows["viscosity"][0] / 1600 - 2 / 1600 * enstrophy[-1]
    assert rows["amplitude"][0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--n", "4"),
        ("--n", "64.5"),
        ("--dt", "-0.1"),
        ("--dt", "nan"),
        ("--dt", "20"),
        ("--t-end", "inf"),
        ("--re", "0"),
        ("--dtype", "float16"),
        ("--mesh", "2by4"),
        ("--mesh", "0x4"),
        ("--out", "missing/figure.png"),
        ("--out", "figure.txt"),
        ("--vortex", "figure.txt"),
        ("--folder", "file/below"),
    ],
)
def test_bad_option_is_refused_in_one_line(option, value, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    example.assert_refused(example.load("taylor_green"), option, value, capsys)


def test_without_a_figure_its_folder_may_be_missing(tmp_path):
    options = ("--n", "8", "--dt", "0.1", "--t-end", "0.1", "--no-plot", "--out", "missing/figure.png")
    assert "E(0.1)" in taylor_green(*options, cwd=tmp_path)


def test_an_error_names_a_missing_matplotlib_before_the_run(tmp_path):
    path = str(example.EXAMPLES / "taylor_green.py")
    without = (
        "import importlib.util, runpy, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'matplotlib' else find(name)\n"
        f"sys.argv = [{path!r}]\n"
        f"runpy.run_path({path!r}, run_name='__main__')\n"
    )
    result = example.run("-c", without, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "matplotlib" in line
    assert "--no-plot" in line


def test_a_grid_that_exceeds_the_memory_is_refused_in_one_line(tmp_path):
    result = example.run("taylor_green.py", "--n", "100000", "--mesh", "1x1", "--no-plot", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "There is not enough memory for this size; use a smaller --n.\n"


def test_unstable_run_says_so(tmp_path):
    result = example.run("taylor_green.py", "--n", "32", "--dt", "1", cwd=tmp_path)
    assert result.returncode == 1
    line = result.stderr.splitlines()[-1]  # Lines of progress may come first.
    assert "unstable" in line
    assert "--dt" in line
