"""The example of Darcy flow: its solutions against a direct solver, its permeability, and a short run."""

import re

import decompops as dops
import jax
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from decompops import io

import example


darcy = example.load("darcy")


def direct_solution(a: np.ndarray) -> np.ndarray:
    """Return the solution of SciPy. The fluxes between cells are assembled one by one."""
    n = len(a)
    matrix, h = scipy.sparse.lil_matrix((n * n, n * n)), 1 / n
    for i, j in np.ndindex(n, n):
        for k, m in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            if 0 <= k < n and 0 <= m < n:
                conductance = 2 * a[i, j] * a[k, m] / (a[i, j] + a[k, m])
                matrix[i * n + j, k * n + m] = -conductance / h**2
            else:
                conductance = 2 * a[i, j]  # The wall is half a cell away.
            matrix[i * n + j, i * n + j] += conductance / h**2
    return scipy.sparse.linalg.spsolve(matrix.tocsc(), np.ones(n * n)).reshape(n, n)


def test_it_learns_the_solutions_in_its_files(tmp_path):
    output = example.run_for_gallery("darcy", tmp_path)
    assert float(re.search(r"residuals up to (\S+)", output)[1]) < 1.1e-8
    first, last = map(float, re.search(r"from (\S+) to (\S+) in 40 steps", output).groups())
    assert last < 0.9 * first
    assert "prediction of the mean" in output
    data = io.read(tmp_path / "rock" / "training.h5").arrays
    assert data["u"].shape == (8, 17, 17)
    assert set(np.unique(data["a"])) == {3, 12}
    expected = direct_solution(np.asarray(data["a"][3], float))
    np.testing.assert_allclose(data["u"][3], expected, atol=1e-6 * expected.max())


def test_permeability_has_the_covariance_of_the_paper():
    """The sign of a Gaussian field has the correlation 2/π arcsin(ρ), with ρ from a sum over cosines in NumPy."""
    n, count = 8, 4096
    mesh = jax.make_mesh((2, 2), ("data", "x"), devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        walls = dops.Transform(mesh, shape=(n, n), axes="x", bases=(dops.Cosine(2),) * 2, box=dops.Box(1.0))
        a = jax.jit(darcy.permeability, static_argnums=0)(walls, jax.random.split(jax.random.key(0), count))
    sign = (np.asarray(a).reshape(count, -1) - 7.5) / 4.5
    assert set(np.unique(sign)) == {-1, 1}
    k, x = np.arange(n), (np.arange(n) + 0.5) / n
    cosines = np.where(k[:, None] == 0, 1, np.sqrt(2)) * np.cos(np.pi * k[:, None] * x)
    variance = (np.pi**2 * (k[:, None] ** 2 + k**2) + 9) ** -2.0
    variance[0, 0] = 0
    covariance = np.einsum("kl,ki,lj,km,ln->ijmn", variance, cosines, cosines, cosines, cosines).reshape(n * n, n * n)
    deviation = np.sqrt(np.diag(covariance))
    expected = 2 / np.pi * np.arcsin(np.clip(covariance / np.outer(deviation, deviation), -1, 1))
    assert abs(sign.T @ sign / count - expected).max() < 6 / np.sqrt(count)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--n", "4"),
        ("--samples", "7"),
        ("--mesh", "2x2x2"),
        ("--steps", "0"),
        ("--out", "a.txt"),
        ("--data", "/dev/null/data"),
    ],
)
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(darcy, option, value, capsys)
