"""Tests of operators with variable coefficients and of solvers on meshes and backends of every kind.

tests/mpi runs the same under `mpiexec`.
"""

import decompops as dops
import pytest

import coefficients
from helpers import assert_close, make_mesh, spec_of


@pytest.mark.parametrize(
    ("backend", "sizes", "kind"),
    [
        ("native", (2, 4), "auto"),
        ("xla", (2, 2, 2), "explicit"),
        pytest.param("xla", (2, 2, 2), "auto", marks=pytest.mark.sweep),
    ],
)
def test_results(backend, sizes, kind):
    """On a mesh ("c", "x", "y"), the axis "c" carries a batch, and results stay sharded over it."""
    lead = (2,) if len(sizes) == 3 else ()
    mesh = make_mesh(sizes, kind)
    found, dec = coefficients.found(backend, mesh, lead), dops.Decomposition(mesh, shape=coefficients.SHAPE, pad=True)
    for name, expected in coefficients.expected(lead).items():
        assert_close(dec.gather(found[name]), expected, 1e-8)
        assert not lead or spec_of(found[name])[0] == "c", name
