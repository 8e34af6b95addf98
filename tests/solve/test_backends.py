"""Tests of operators with variable coefficients and of solvers on meshes and backends of every kind.

tests/mpi runs the same under `mpiexec`.
"""

import decompops as dops
import pytest

import coefficients
from helpers import assert_close, make_mesh, spec_of


@pytest.mark.parametrize(
    ("backend", "sizes", "kind", "names"),
    [
        ("native", (2, 4), "auto", ("diffusion", "product", "divergence", "CG", "GMRES")),
        ("xla", (2, 2, 2), "explicit", ("laplacian", "gradient", "penalisation", "MINRES", "BiCGStab")),
        pytest.param("native", (2, 4), "auto", coefficients.NAMES, marks=pytest.mark.sweep),
        pytest.param("xla", (2, 2, 2), "explicit", coefficients.NAMES, marks=pytest.mark.sweep),
        pytest.param("xla", (2, 2, 2), "auto", coefficients.NAMES, marks=pytest.mark.sweep),
    ],
)
def test_results(backend, sizes, kind, names):
    """On a mesh ("c", "x", "y"), the axis "c" carries a batch, and results stay sharded over it."""
    lead = (2,) if len(sizes) == 3 else ()
    mesh = make_mesh(sizes, kind)
    dec = dops.Decomposition(mesh, shape=coefficients.SHAPE, pad=True)
    found, expected = coefficients.found(backend, mesh, lead, names=names), coefficients.expected(lead)
    for name in names:
        assert_close(dec.gather(found[name]), expected[name], 1e-8)
        assert not lead or spec_of(found[name])[0] == "c", name
