"""Tests of the benchmark of solvers: its results against SciPy, and its counts of bytes. Times are not checked."""

import importlib.util
import sys
from types import ModuleType

import jax
import numpy as np
import pytest
from decompops import XLA, Decomposition
from decompops.tools.bench import run as bench
from decompops.tools.bench.operators import operator_problem
from decompops.tools.bench.program import over_memory
from decompops.tools.bench.task import Task

from helpers import make_mesh


UNEVEN = (9, 10, 11)  # No mesh divides this shape.
# Each case has a grid, a mesh, a number of transforms, and the names of the programs to compare with.
CASES = {
    "gradient": (UNEVEN, (2, 2), 2, ["its FFTs"]),
    "navier-stokes": ((9, 10), (3,), 2, ["its FFTs", "its FFTs with all modes"]),
    "etdrk2": ((12, 12, 12), (1, 1), 4, ["exponax"]),
    "etdrk4": (UNEVEN, (2,), 8, ["exponax"]),
    "fno": ((8, 12), (1,), 2, ["its FFTs"]),
    "fno-gradient": (UNEVEN, (4,), 4, ["its FFTs"]),
    "fno-step": ((8, 8, 8), (2, 2), 16, ["jnp.fft.rfftn", "jnp.fft by axis"]),
    "poisson-centres": (UNEVEN, (2, 2), 2, ["the periodic one"]),
    "poisson-nodes": (UNEVEN, (2,), 2, ["the periodic one"]),
    "poisson-cells": ((9, 10), (3,), 2, ["the periodic one"]),
    "poisson-chebyshev": ((28, 9), (2,), 2, ["the periodic one"]),
    "rayleigh-benard": ((40, 6, 7), (2,), 8, ["its transforms"]),
}
PEERS = ("exponax", "jnp.fft.rfftn", "jnp.fft by axis")


@pytest.mark.parametrize("operator", bench.SOLVERS)
def test_answers_and_figures(operator):
    shape, mesh, transforms, compared = CASES[operator]
    case = bench.Case(operator, shape, mesh, "float64", None)
    with jax.numpy_dtype_promotion("standard"):  # exponax needs standard promotion.
        result = bench.measure(case, jax.devices(), XLA(), repeats=1)
    rows = {row["name"]: row for row in result["contestants"]}
    assert list(rows) == ["decompops", *compared, "memory alone"]
    if shape == UNEVEN or importlib.util.find_spec("exponax") is None:
        rows.pop("exponax", None)
    for row in rows.values():
        assert row["failure"] is None
        assert row["relative_error"] <= 1e-12
        assert row["ratio"] == pytest.approx(rows["decompops"]["median_s"] / row["median_s"])
    program, divided = result["program"], sum(parts > 1 for parts in mesh)
    passes = 1 + divided - (operator in ("poisson-cells", "poisson-chebyshev"))  # The axis between walls stays.
    assert len(program["least_bytes_per_fft_pass"]) == transforms * passes
    # Four devices do not divide the nine modes of the weights, so the weights and their gradient are exchanged.
    # Two devices do not divide the seven modes of each of the four layers.
    exchanges = transforms * divided + {"fno-gradient": 2, "fno-step": 8}.get(operator, 0)
    assert sum(c["count"] for c in program["collectives"] if c["kind"] == "all-to-all") == exchanges
    assert (program["least_communicated_bytes"] > 0) == (divided > 0)
    assert program["least_communicated_bytes"] <= program["communicated_bytes"]
    assert program["temporary_bytes"] > 0
    assert list(program["temporary_bytes_of_parts"]) == [name for name in compared if name not in PEERS]


def test_memory_is_read_and_written_once_for_each_axis():
    nx, ny, nz = shape = (8, 12, 10)
    mesh = make_mesh((2, 2))
    task = Task("rfft", shape, mesh, np.dtype(np.float32), axis_contiguous=False)
    memory = over_memory(operator_problem(task, Decomposition(mesh, shape=shape, pad=True)).ours)
    field, spectrum = nx * ny * nz * 4, nx * ny * (nz // 2 + 1) * 8
    moved = memory.run()
    assert moved.dtype == np.float32
    assert np.unique(moved) == 3  # Each of three passes adds 1 to every value.
    assert 3 * 2 * moved.nbytes == pytest.approx((field + spectrum) + 2 * 2 * spectrum, rel=0.01)


def test_on_paper_all_fields_count():
    nx, ny, nz = shape = (8, 12, 10)
    result = bench.on_paper(bench.Case("gradient", shape, (1, 1), "float64", None), jax.devices(), XLA())
    program, field, spectrum = result["program"], nx * ny * nz * 8, nx * ny * (nz // 2 + 1) * 16
    assert program["block_bytes"] == 3 * field
    assert program["least_bytes_per_fft_pass"] == [field + spectrum, 3 * (field + spectrum)]
    assert list(program["temporary_bytes_of_parts"]) == ["its FFTs"]


@pytest.mark.parametrize(
    ("package", "failure"),
    [(None, "not installed"), (ModuleType("exponax"), "ValueError: exponax needs a cubic grid; got (9, 10, 11)")],
)
def test_exponax_where_it_cannot_run(package, failure, monkeypatch):
    monkeypatch.setitem(sys.modules, "exponax", package)
    problem = bench.SOLVERS["etdrk2"](Decomposition(make_mesh((1, 1)), shape=UNEVEN), np.dtype("float32"))
    _, row = bench._tried(problem.peers(None)["exponax"], None, 1e-5, may_fail=True)
    assert row["failure"] == failure


def test_of_several_results_the_worst_counts():
    answer = [np.ones(3), np.ones((2, 3))]
    assert bench.relative_error([answer[0], answer[1] + 0.5], answer) == 0.5
    with pytest.raises(ValueError, match="result of shape"):
        bench.relative_error(answer[::-1], answer)
    with pytest.raises(ValueError, match="shorter"):
        bench.relative_error(answer, answer[:1])
