"""Tests of the command `bench`: its counts of bytes, its tables and its errors. Times are not checked."""

import importlib.util
import json
import math
import re
import time

import jax
import numpy as np
import pytest
from decompops import XLA
from decompops.tools import cli as cli
from decompops.tools.bench import run as bench, targets
from decompops.tools.bench.program import Contestant
from decompops.tools.bench.tables import LEGEND, program_lines
from decompops.tools.bench.task import HALO_WIDTH

from commands import assert_fits, run, run_json


SHAPE = (16, 8, 24)
MESHES = ((2, 4), (8, 1), (1, 1), (8,))


def text(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


@pytest.fixture(scope="module")
def measured() -> dict:
    meshes = map(text, MESHES)
    return run_json("--shape", text(SHAPE), "--mesh", *meshes, "--operator", "fft", "rfft", "--repeats", "1")


def case(results: dict, **fields) -> dict:
    (found,) = (c for c in results["cases"] if all(c[name] == value for name, value in fields.items()))
    return found


def kinds(program: dict) -> dict[str, int]:
    counts: dict[str, int] = {}
    for collective in program["collectives"]:
        counts[collective["kind"]] = counts.get(collective["kind"], 0) + collective["count"]
    return counts


def sent_by_fft(shape, mesh, *, real: bool, itemsize: int = 8) -> int:
    """Return the bytes that one device sends. Each exchange sends the padded block, except the device's own part."""
    (nx, ny, nz), (rows, columns) = shape, (*mesh, 1)[:2]
    modes = nz // 2 + 1 if real else nz
    modes = -(-modes // columns) * columns
    y = -(-ny // rows) * rows
    first = (nx // rows) * ny * modes // columns
    second = nx * y * modes // columns // rows
    return itemsize * (first * (columns - 1) // columns + second * (rows - 1) // rows)


def test_default_of_the_commands():
    """Without `--backend`, one process uses the compiled kernels and compares them with the XLA backend."""
    environment = {"DECOMPOPS_BACKEND": ""}
    done = run("bench", "--shape", "8", "--operator", "fft", "--mesh", "2x1", "--repeats", "1", "--json", **environment)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["cases"]
    assert found["program"]["collectives"] == []
    assert found["program"]["kernel_messages"] == 2
    assert "our XLA backend" in {row["name"] for row in found["contestants"]}
    done = run("bench", "--shape", "8", "--operator", "fft", "--mesh", "2x1", "--on-paper", "--json", **environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("operator", ["fft", "rfft"])
@pytest.mark.parametrize(("mesh", "count"), list(zip(MESHES, (2, 1, 0, 1))))
def test_program_of_a_transform(measured, operator, mesh, count):
    program = case(measured, operator=operator, mesh=list(mesh))["program"]
    assert kinds(program) == ({"all-to-all": count} if count else {})
    assert program["communicated_bytes"] == sent_by_fft(SHAPE, mesh, real=operator == "rfft")
    assert program["least_communicated_bytes"] <= program["communicated_bytes"]
    assert len(program["least_bytes_per_fft_pass"]) == 1 + count
    block = math.prod(SHAPE) * 8 // math.prod(mesh)
    if operator == "fft":
        assert program["block_bytes"] == block
        assert program["least_communicated_bytes"] == program["communicated_bytes"]
        assert program["least_bytes_per_fft_pass"] == [2 * block] * (1 + count)
    assert program["temporary_blocks"] == program["temporary_bytes"] / program["block_bytes"]


def test_contestants_are_right_and_timed(measured):
    for one in measured["cases"]:
        rows = {row["name"]: row for row in one["contestants"]}
        assert set(rows) == {"decompops", "SciPy", "FFTW", "MKL", "jnp.fft", "jaxDecomp", "memory alone"}
        for name, package in (("jaxDecomp", "jaxdecomp"), ("FFTW", "pyfftw"), ("MKL", "mkl")):
            if importlib.util.find_spec(package) is None:
                assert rows.pop(name)["failure"] == "not installed"
            elif (name, one["mesh"]) == ("jaxDecomp", [1, 1]):  # jaxDecomp does not run on one device.
                rows.pop(name)
        for row in rows.values():
            assert row["failure"] is None
            assert row["relative_error"] <= 1e-5
            assert 0 < row["min_s"] <= row["median_s"]
            assert row["ratio"] == pytest.approx(rows["decompops"]["median_s"] / row["median_s"])
    assert measured["devices"] == 8
    assert measured["versions"]["jax"] == jax.__version__


def test_every_operator_in_tables():
    options = ("--shape", "8", "--dtype", "float64", "--repeats", "1", "--axis-contiguous", "both")
    operators = (
        *bench.OPERATORS,
        "gradient",
        *bench.PARTICLES,
        "reshard",
    )  # test_bench_solvers.py tests the other solvers.
    done = run("bench", *options, "--operator", *operators)
    assert done.returncode == 0, done.stderr
    assert "wrong" not in done.stdout
    assert_fits(done.stdout)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0] == "XLA(overlap=1, wire=None) on 8 x cpu"
    tables = 0
    for operator in operators:
        fields = "complex128" if operator.startswith("fft") else "float64"
        orders = (
            [""]
            if operator in ("halo", "gradient", *bench.PARTICLES, "reshard")
            else [", natural order", ", axis-contiguous order"]
        )
        tables += len(orders)
        for order in orders:
            assert f"{operator} 8x8x8 {fields}, mesh 2x4{order}" in lines
    text = " ".join(lines)
    assert text.count(LEGEND) == tables
    assert "1 all-to-all (groups of 4), 1 all-to-all (groups of 2)" in text
    assert "2 all-to-all (groups of 4), 2 all-to-all (groups of 2)" in text
    assert "collective-permute" in text
    assert re.search(r"extra memory  [+-]\d+\.\d\d blocks over its FFTs", text)


def test_reasons_are_printed_below_the_table(monkeypatch, capsys):
    """The table marks a failed library with "failed", and a line below the table gives the reason.

    The command exits with 1 if decompops itself fails.
    """
    monkeypatch.setenv("COLUMNS", "80")
    reason = "ValueError: a grid of 8 cells along every axis is too small for this library; choose a larger grid"
    nothing = dict.fromkeys(("note", "relative_error", "median_s", "min_s", "ratio"))
    rows = [{"name": name, **nothing, "failure": reason} for name in ("decompops", "SciPy")]
    program = bench.on_paper(bench.Case("fft", (8, 8, 8), (2, 4), "float32", False), jax.devices(), XLA())["program"]
    case = {"operator": "fft", "shape": (8, 8, 8), "mesh": (2, 4), "field_dtype": "complex64", "axis_contiguous": None}
    monkeypatch.setattr(cli.bench, "measure", lambda *_: {**case, "contestants": rows, "program": program})
    assert cli.main(["bench", "--shape", "8", "--operator", "fft", "--backend", "xla"]) == 1
    printed = capsys.readouterr().out
    assert_fits(printed)
    assert f"SciPy failed: {reason}" in " ".join(printed.split())
    assert re.search(r"^SciPy +failed *$", printed, re.MULTILINE)


def test_grids_of_one_two_and_four_axes():
    operators = ("rfft-gradient", "halo")
    options = ("--ndim", "1", "--shape", "16", "16x8", "4x8x4x6", "--repeats", "1", "--operator", *operators)
    results = run_json(*options, "--dtype", "float64")
    assert [one["mesh"] for one in results["cases"]] == [[1]] * 2 + [[8]] * 2 + [[2, 4]] * 2
    for one in results["cases"]:
        for row in one["contestants"]:
            assert row["failure"] is None or "axes" in row["failure"] or row["failure"] == "not installed"


def test_on_paper():
    results = run_json("--on-paper", "--shape", "256", "--mesh", "4x4", "--operator", "fft", "rfft")
    assert len(results["cases"]) == 4  # Both operators run in both storage orders.
    for one in results["cases"]:
        assert one["compile_s"] > 0
        real = one["operator"] == "rfft"
        (collective,) = one["program"]["collectives"]
        assert (collective["kind"], collective["count"], collective["group_size"]) == ("all-to-all", 2, 4)
        assert one["program"]["communicated_bytes"] == sent_by_fft((256,) * 3, (4, 4), real=real)


# Some of these commands fail before they set the number of devices. The others ask for the eight devices of the tests.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "0"], "--shape: must be positive integers"),
        (["--shape", "8", "--ndim", "0"], "--ndim: must be a positive integer; got '0'"),
        (["--shape", "8x8", "--mesh", "2x4"], "the mesh must have fewer axes than the grid; got (2, 4) for (8, 8)"),
        (
            ["--shape", "8", "--ndim", "1", "--devices", "8", "--operator", "transpose"],
            "needs a grid of two axes or more",
        ),
        (["--shape", "٣"], "--shape: must be positive integers separated by x; got '٣'"),
        (["--repeats", "٣"], "--repeats: must be a positive integer; got '٣'"),
        (["--shape", "100000000000"], "--shape: must be at most 72057594037927936 cells; got 100000000000x"),
        (["--mesh", "2x2x2"], "the mesh must have fewer axes than the grid; got (2, 2, 2)"),
        (["--mesh", "1000x1000"], "--mesh: must be at most 4096 devices; got '1000x1000'"),
        (["--devices", "100000000"], "--devices: must be at most 4096 devices; got '100000000'"),
        (["--mesh", "4x4", "--devices", "8", "--json"], "4x4 needs 16 devices; JAX has 8"),
        (["--operator", "curl"], "--operator: must be one of fft, rfft,"),
        (["--dtype", "int32"], "--dtype: must be one of float32, float64; got 'int32'"),
        (["--operator", "rffft"], "; got 'rffft'; did you mean rfft?"),
        (["--repeats", "0"], "--repeats: must be a positive integer"),
        (["--devices", "-1"], "--devices: must be a positive integer"),
        (["--backend", "smoke", "--json"], "--backend: must be one of xla, native, mpi, cudecomp; got 'smoke'"),
        (["--backend", "cudecomp", "--json"], "`backend=CuDecomp()` does not work here"),
        (["--operator", "halo", "--shape", "9", "--json"], "the mesh must divide the shape"),
        (["--target", "h200"], "--target: add --on-paper"),
        (["--on-paper", "--backend", "native"], "--on-paper counts the collectives of XLA; add --backend xla"),
        (["--on-paper", "--target", "smoke"], "--target: must be one of h100, h200; got 'smoke'"),
    ],
)
def test_bad_options(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", *arguments])
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_compiling_for_gpus_without_what_it_needs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install --no-deps jax-cuda13-plugin==" in str(targets.problem())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)

    def devices(*_):
        raise NotImplementedError

    monkeypatch.setattr(targets, "devices", devices)
    assert "set JAX_PLATFORMS=cpu" in str(targets.problem())


def test_wrong_contestants_are_not_timed():
    answer = np.ones((2, 3))
    wrong = lambda: Contestant(lambda: answer + 1e-4)
    contestant, row = bench._tried(wrong, answer, 1e-5, may_fail=True)
    assert contestant is None
    assert row["failure"] == "wrong: relative error 1.0e-04, allowed 1e-05"
    misshapen = lambda: Contestant(lambda: answer.T)
    contestant, row = bench._tried(misshapen, answer, 1e-5, may_fail=True)
    assert contestant is None
    assert row["failure"] == "ValueError: result of shape (3, 2), expected (2, 3)"
    with pytest.raises(ValueError, match="result of shape"):
        bench._tried(misshapen, answer, 1e-5, may_fail=False)
    contestant, row = bench._tried(lambda: Contestant(lambda: answer), answer, 1e-5, may_fail=True)
    assert contestant is not None
    assert row["failure"] is None


@pytest.mark.parametrize(("mesh", "axis", "cells"), [((8, 1), 0, 2), ((1, 8), 1, 1), ((4, 2), 0, 4)])
def test_limits_of_the_halo_exchange(mesh, axis, cells):
    shape = (16, 8, 4)
    result = bench.on_paper(bench.Case("halo", shape, mesh, "float32", None), jax.devices(), XLA())
    program = result["program"]
    assert set(kinds(program)) == {"collective-permute"}
    assert program["least_communicated_bytes"] <= program["communicated_bytes"]
    if 1 in mesh:
        layers = 2 * HALO_WIDTH
        block = math.prod(shape) * 4 // 8
        assert program["least_communicated_bytes"] == layers * block // cells
        assert program["block_bytes"] == block // cells * (cells + layers)


def test_a_slow_contestant_is_timed_once(monkeypatch):
    monkeypatch.setattr(bench, "_SLOW_SECONDS", 0.05)
    calls = []

    def contestant(seconds: float) -> Contestant:
        def compute():
            calls.append(seconds)
            time.sleep(seconds)
            return np.ones(1)

        return Contestant(compute, note="a note")

    entrants = [("decompops", lambda: contestant(0), np.ones(1)), ("a peer", lambda: contestant(0.3), np.ones(1))]
    ours, peer = bench.compare(iter(entrants), 0.0, 5)
    assert calls.count(0.3) == 3  # One call checks its answer, one call shows that it is slow, and one call is timed.
    assert peer["median_s"] == peer["min_s"] >= 0.3
    assert (ours["note"], peer["note"]) == ("a note", "a note; timed once")


def test_bytes_that_nobody_counts_are_not_shown_as_none():
    """cuDecomp does not say what it sends."""
    program = {"collectives": [], "kernel_messages": 0, "communicated_bytes": None, "least_communicated_bytes": 2048}
    program |= {"temporary_bytes": None, "kernel_workspace_bytes": 0, "least_bytes_per_fft_pass": []}
    assert dict(program_lines(program))["communicated"] == "not counted, at least 2 KiB needed"
    alone = dict(program_lines({**program, "communicated_bytes": 0, "least_communicated_bytes": 0}))
    assert alone["communicated"] == "0 B per device, at least 0 B needed"
