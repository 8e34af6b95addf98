"""Tests of operators with variable coefficients and of solvers on meshes and backends of every kind.

tests/mpi runs the same under `mpiexec`.
"""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import finite_volume, solve
from jax.sharding import PartitionSpec as P

import coefficients
from helpers import assert_close, make_mesh, put, random_field, spec_of


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


@pytest.mark.parametrize(("kind", "backend"), [("auto", "xla"), ("explicit", "native")])
def test_groups_of_devices_with_different_numbers_of_steps(kind, backend):
    """XLA's permutations wait for all devices, also for those of a group that has its solution already."""
    mesh = make_mesh((2, 2, 2), kind)
    dec = dops.Decomposition(mesh, shape=(4, 6, 2), axes=("x", "y"), backend=backend)

    def solved(f):
        operator, closed = (finite_volume.Diffusion(dec, 1.0, boundary=one) for one in ("dirichlet", "neumann"))
        solvers = [method(operator, rtol=1e-9) for method in (solve.CG, solve.MINRES, solve.GMRES, solve.BiCGStab)]
        solvers += [solve.CG(closed, solve.Multigrid(closed), rtol=1e-9)]
        solutions = [solver.solve(f) for solver in solvers]
        return [(solver.operator(one.value), one.iterations) for solver, one in zip(solvers, solutions)]

    one = random_field((4, 6, 2))
    f = np.stack([one - np.mean(one), 0 * one])
    inside = jax.shard_map(solved, mesh=mesh, axis_names={"c"}, in_specs=P("c"), out_specs=P("c"))
    for found, steps in jax.jit(inside)(put(mesh, f, "c", "x", "y")):
        assert_close(found, f, 1e-8)
        steps = np.asarray(steps)
        assert steps[0] > 0 == steps[1]
