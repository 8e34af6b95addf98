"""The command line, and the benchmark's figures (never its times)."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from decompops import MPI, XLA, CuDecomp, Native, _selftest, cli
from decompops._backend import library
from decompops._bench import run as bench, targets
from decompops._bench.program import Contestant
from decompops._bench.task import HALO_WIDTH
from decompops.extend import run_stage


SHAPE = (16, 8, 24)
MESHES = ((2, 4), (8, 1), (1, 1), (8,))


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command, variables = [sys.executable, "-m", "decompops", *arguments], os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=variables)


def run_json(*arguments: str) -> dict:
    done = run("bench", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
    """What one device sends: the block, less its own part, once for each axis of the mesh; the half spectrum padded."""
    (nx, ny, nz), (rows, columns) = shape, (*mesh, 1)[:2]
    modes = nz // 2 + 1 if real else nz
    modes = -(-modes // columns) * columns
    y = -(-ny // rows) * rows
    first = (nx // rows) * ny * modes // columns
    second = nx * y * modes // columns // rows
    return itemsize * (first * (columns - 1) // columns + second * (rows - 1) // rows)


def test_info():
    done = run("info")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert lines["jax"].strip() == jax.__version__
    assert lines["platform"].strip().startswith("cpu")
    assert lines["backend xla"].strip() == "available"
    for backend in (Native(), MPI(), CuDecomp()):
        problem, name = backend.problem(), type(backend).__name__.lower()
        expected = "available" if problem is None else f"not available: {problem}"
        assert lines[f"backend {name}"].strip().startswith(expected)
    assert library.fft_version() in lines["backend native"]
    assert "backend=XLA(" in lines["defaults"]


@pytest.mark.parametrize("ducc", ["yes", "no"])
def test_info_without_fftw(ducc, monkeypatch, capsys):
    built = library.build()
    monkeypatch.setattr(library, "build", lambda: {**built, "ducc": ducc})
    monkeypatch.setattr(library.fft_library, "find", lambda: None)
    assert cli.main(["info"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("backend native"))
    assert line.endswith("available, with DUCC") == (ducc == "yes")
    assert ("so XLA computes them: install FFTW" in line) == (ducc == "no")


def test_default_of_the_commands():
    """What users get who name no backend: here the kernels in one process."""
    environment = {"DECOMPOPS_BACKEND": ""}
    done = run("bench", "--shape", "8", "--operator", "fft", "--mesh", "2x1", "--repeats", "1", "--json", **environment)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["cases"]
    assert found["program"]["collectives"] == []
    assert found["program"]["kernel_messages"] == 2
    assert "our XLA backend" in {row["name"] for row in found["contestants"]}
    done = run("bench", "--shape", "8", "--operator", "fft", "--mesh", "2x1", "--on-paper", "--json", **environment)
    assert done.returncode == 0, done.stderr


def test_info_of_kernels_that_cannot_be_loaded(monkeypatch, tmp_path, capsys):
    built = {"problem": "", "mpi": "some MPI", "ducc": "yes", "mpi_problem": "", "cudecomp_problem": ""}
    monkeypatch.setattr(library, "build", lambda: built)
    monkeypatch.setattr(library, "mpi_problem", lambda: None)
    monkeypatch.setattr(library, "folder", lambda: tmp_path)
    for name in ("native", "mpi", "cudecomp"):
        (tmp_path / f"libdecompops_{name}.so").write_text("no library")

    def said() -> list[str]:
        assert cli.main(["info"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "not available" in line]

    for line, backend in zip(said(), ("native", "mpi", "cudecomp"), strict=True):
        assert line.startswith(f"backend {backend}")
        assert line.endswith("reinstall decompops")

    def without_cutensor(path):
        raise OSError("libcutensor.so.2: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(library.ctypes, "CDLL", without_cutensor)
    for line in said():
        assert "libcutensor.so.2 was not found: install it, or if it is installed, add its folder" in line


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
            elif (name, one["mesh"]) == ("jaxDecomp", [1, 1]):  # it knows no undivided grid
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
    operators = (*bench.OPERATORS, "gradient", "reshard")  # the other solvers have their own test
    done = run("bench", *options, "--operator", *operators)
    assert done.returncode == 0, done.stderr
    assert "wrong" not in done.stdout
    for operator in operators:
        fields = "complex128" if operator.startswith("fft") else "float64"
        orders = [""] if operator in ("halo", "gradient", "reshard") else [", natural order", ", axis-contiguous order"]
        for order in orders:
            assert f"{operator} 8x8x8 {fields}, mesh 2x4{order}, XLA(overlap=1, wire=None)" in done.stdout
    assert "1 all-to-all (groups of 4), 1 all-to-all (groups of 2)" in done.stdout
    assert "2 all-to-all (groups of 4), 2 all-to-all (groups of 2)" in done.stdout
    assert "collective-permute" in done.stdout
    assert re.search(r"extra memory  [+-]\d+\.\d\d blocks over its FFTs", done.stdout)


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
    assert len(results["cases"]) == 4  # both storage orders
    for one in results["cases"]:
        assert one["compile_s"] > 0
        real = one["operator"] == "rfft"
        (collective,) = one["program"]["collectives"]
        assert (collective["kind"], collective["count"], collective["group_size"]) == ("all-to-all", 2, 4)
        assert one["program"]["communicated_bytes"] == sent_by_fft((256,) * 3, (4, 4), real=real)


# Each returns before the devices are configured, or asks for those that the tests have.
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
        (["--mesh", "4x4", "--devices", "8", "--json"], "4x4 needs 16 devices; there are 8"),
        (["--operator", "curl"], "--operator: invalid choice"),
        (["--dtype", "int32"], "--dtype: invalid choice"),
        (["--repeats", "0"], "--repeats: must be a positive integer"),
        (["--devices", "-1"], "--devices: must be a positive integer"),
        (["--backend", "smoke", "--json"], "`backend` must be one of"),
        (["--backend", "cudecomp", "--json"], "`backend=CuDecomp()` does not work here"),
        (["--operator", "halo", "--shape", "9", "--json"], "the mesh must divide the shape"),
        (["--target", "h200"], "--target: it goes with --on-paper"),
        (["--on-paper", "--target", "smoke"], "--target: invalid choice"),
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["selftest"],
        ["bench", "--on-paper", "--shape", "8", "--mesh", "1x1"],
        ["bench", "--on-paper", "--shape", "8", "--mesh", "1x1", "--json"],
    ],
    ids=["info", "selftest", "tables", "json"],
)
def test_a_closed_pipe_ends_a_command_quietly(arguments, monkeypatch, capfd):
    """What a shell does with `decompops selftest | head`: the reader ends before the command does."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
        assert cli.main(arguments) == 141
        stdout.flush()  # as Python does at its exit
    assert capfd.readouterr() == ("", "")


def test_a_closed_pipe_leaves_the_end_of_the_program_quiet(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "decompops", "info"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
    monkeypatch.setattr(sys, "stdout", None)  # what Python makes of a stdout that is closed from the beginning
    assert cli.main(["info"]) == 0


def test_a_platform_that_does_not_start_is_named(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "smoke")
    for arguments in (["info"], ["bench", "--json", "--on-paper"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert "JAX cannot start on 'smoke'" in line


def test_a_bad_command_exits_with_2():
    done = run("dance")
    assert done.returncode == 2
    assert done.stdout == ""


def test_missing_packages_are_named(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else name)
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench"])
    assert stop.value.code == 1
    assert capsys.readouterr().err == ('decompops bench: rich is not installed; run: pip install "decompops[bench]"\n')


def test_wrong_contestants_are_not_timed():
    answer = np.ones((2, 3))
    wrong = lambda: Contestant(lambda: answer + 1e-4)
    contestant, row = bench._checked(wrong, answer, 1e-5, may_fail=True)
    assert contestant is None
    assert row["failure"] == "wrong: relative error 1.0e-04, allowed 1e-05"
    misshapen = lambda: Contestant(lambda: answer.T)
    contestant, row = bench._checked(misshapen, answer, 1e-5, may_fail=True)
    assert contestant is None
    assert row["failure"] == "ValueError: result of shape (3, 2), expected (2, 3)"
    with pytest.raises(ValueError, match="result of shape"):
        bench._checked(misshapen, answer, 1e-5, may_fail=False)
    contestant, row = bench._checked(lambda: Contestant(lambda: answer), answer, 1e-5, may_fail=True)
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


def test_selftest(capsys, monkeypatch):
    monkeypatch.setattr(_selftest, "mesh_sizes", lambda n: [(2, n // 2)])
    assert cli.main(["selftest"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("passed ") for line in lines) == 9
    assert "9 passed, 0 failed" in lines
    assert any(line.startswith("not run: backend mpi: ") for line in lines)
    assert "not run: GPUs: there are none that JAX uses" in lines


def test_selftest_sees_what_is_wrong(capsys, monkeypatch):
    class Wrong(XLA):
        def takes(self, stages):
            return len(stages)

        def run(self, plan, block, call):
            for stage in plan.stages:
                block = run_stage(stage, block, call.platform)
            return (1 + 1e-4) * block

    def raises(dec):
        """something that raises."""
        raise ValueError("of no use")

    monkeypatch.setattr(_selftest, "CHECKS", (*_selftest.CHECKS, raises))
    outcomes = list(_selftest.run(Wrong(), jax.devices()[:1]))
    assert len(outcomes) == 10
    assert not any(outcome.passed for outcome in outcomes if "adjoint" not in outcome.check)
    assert outcomes[-1].raised == "ValueError: of no use"
    monkeypatch.setattr(_selftest, "CHECKS", (raises,))
    assert cli.main(["selftest"]) == 1
    printed = capsys.readouterr().out
    assert re.search("FAILED +something that raises +1x8 +ValueError: of no use", printed)
    assert "0 passed, 4 failed" in printed
