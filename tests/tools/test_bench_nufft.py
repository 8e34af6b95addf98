"""Tests of the benchmark of non-uniform Fourier transforms: its answers and its counts of bytes."""

import importlib.util

import jax
import pytest
from decompops import XLA
from decompops.tools.bench import run as bench


@pytest.mark.parametrize(
    ("operator", "shape", "mesh"),
    [("nufft-type1", (9, 10, 8), (2, 2)), ("nufft-type2", (9, 10), (3,)), ("nufft-type2", (9, 10, 8), (1, 1))],
)
def test_answers_and_figures(operator, shape, mesh):
    assert operator in bench.NUFFTS
    case = bench.Case(operator, shape, mesh, "float64", None)
    result = bench.measure(case, jax.devices(), XLA(), repeats=1)
    rows = {row["name"]: row for row in result["contestants"]}
    assert list(rows) == ["decompops", "finufft", "memory alone"]
    if importlib.util.find_spec("finufft") is None:
        assert rows.pop("finufft")["failure"] == "not installed"
    for row in rows.values():
        assert row["failure"] is None
        assert row["relative_error"] <= 1e-5
    program, divided = result["program"], sum(parts > 1 for parts in mesh)
    assert sum(c["count"] for c in program["collectives"] if c["kind"] == "all-to-all") == divided
    assert not any(c["kind"] == "all-gather" for c in program["collectives"])
    assert 0 <= program["least_communicated_bytes"] <= program["communicated_bytes"]


def test_on_paper():
    case = bench.Case("nufft-type1", (16, 16, 16), (2, 2), "float32", None)
    program = bench.on_paper(case, jax.devices(), XLA())["program"]
    assert program["temporary_bytes"] > 0
