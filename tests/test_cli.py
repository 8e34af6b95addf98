"""The command line, the benchmark's figures (never its times), and the reader of compiled programs."""

import importlib.util
import json
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import MPI, XLA, CuDecomp, _selftest, cli
from decompops._backend import library
from decompops._bench import run as bench
from decompops._bench.peers import HALO_WIDTH
from decompops._bench.program import Contestant
from decompops._hlo import Collective, collectives
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import make_mesh


SHAPE = (16, 8, 24)
MESHES = ((2, 4), (8, 1), (1, 1), (8,))


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "decompops", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


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
    assert lines["backend XLA"].strip() == "available"
    problem = MPI().problem()
    assert lines["backend MPI"].strip().startswith("available" if problem is None else f"not available: {problem}")
    problem = CuDecomp().problem()
    assert lines["backend CuDecomp"].strip().startswith("available" if problem is None else f"not available: {problem}")
    assert "backend=XLA()" in lines["defaults"]


@pytest.mark.parametrize(
    ("fftw", "openmp", "said"),
    [("yes", "yes", []), ("no", "yes", ["without FFTW"]), ("no", "no", ["without FFTW", "without OpenMP"])],
)
def test_info_of_kernels_built_without_something(fftw, openmp, said, monkeypatch, capsys):
    built = {"problem": "", "mpi": "some MPI", "fftw": fftw, "openmp": openmp, "cudecomp": "not found"}
    monkeypatch.setattr(library, "build", lambda: built)
    monkeypatch.setattr(library, "problem", lambda: None)
    assert cli.main(["info"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("backend MPI"))
    assert ("reinstall" in line) == (fftw == "no")
    for text in ("without FFTW", "without OpenMP"):
        assert (text in line) == (text in said)


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
        assert set(rows) == {"decompops", "SciPy", "jnp.fft", "jaxDecomp", "memory alone"}
        if importlib.util.find_spec("jaxdecomp") is None:
            assert rows.pop("jaxDecomp")["failure"] == "not installed"
        elif one["mesh"] == [1, 1]:  # it knows no undivided grid
            rows.pop("jaxDecomp")
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
        fields = "float64" if operator.startswith(("r", "t", "h", "g")) else "complex128"
        orders = [""] if operator in ("halo", "gradient", "reshard") else [", natural order", ", axis-contiguous order"]
        for order in orders:
            assert f"{operator} 8x8x8 {fields}, mesh 2x4{order}, XLA()" in done.stdout
    assert "1 all-to-all (groups of 4), 1 all-to-all (groups of 2)" in done.stdout
    assert "2 all-to-all (groups of 4), 2 all-to-all (groups of 2)" in done.stdout
    assert "collective-permute" in done.stdout
    assert re.search(r"extra memory  [+-]\d+\.\d\d blocks over its FFTs", done.stdout)


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
        (["--shape", "8x8"], "--shape: must be N or NxNxN"),
        (["--shape", "100000000000"], "--shape: must be at most 72057594037927936 cells; got '100000000000'"),
        (["--mesh", "2x2x2"], "--mesh: must be N or NxM"),
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


FOUR_BY_TWO = ((0, 1, 2, 3), (4, 5, 6, 7))
STRIDED = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", FOUR_BY_TWO),
        ("{{0,4},{1,5},{2,6},{3,7}}", STRIDED),
        ("{}", (tuple(range(8)),)),
        ("[2,4]<=[8]", FOUR_BY_TWO),
        ("[4,2]<=[2,4]T(1,0)", STRIDED),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("mesh['x'=2,'y'=4] {'y'}", FOUR_BY_TWO),
        ("mesh['x'=2,'y'=4] {'x'}", STRIDED),
        ("mesh[x=2,y=4] {x}", STRIDED),
        ("mesh['x'=2,'y'=4] {'x','y'}", (tuple(range(8)),)),
        ("mesh['x'=2,'y'=4] {'y','x'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("mesh['x'=2,'y'=4] {'y':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=2,'y'=4] {'y':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=2,'y'=4] {'x','y':(2)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['x'=2,'y'=4,'one'=1] {'one'}", tuple((i,) for i in range(8))),
        ("mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['x'=2,'y'=2], device_ids=(0,2,1,3) {'y'}", ((0, 2), (1, 3))),
    ],
)
def test_replica_groups(groups, expected):
    header = "HloModule jit_f, is_scheduled=true, num_partitions=8\n"
    line = f"  ROOT %a = f32[8,8]{{1,0}} all-reduce(%p), channel_id=1, replica_groups={groups}, to_apply=%add\n"
    (found,) = collectives(header + line)
    size = len(expected[0])
    assert found == Collective("all-reduce", 2 * 256 * (size - 1) // size, expected)
    assert found.group_size == size


@pytest.mark.parametrize(
    ("instruction", "kind", "sent"),
    [
        ("%a.1 = f32[8,4]{1,0} all-to-all(%p), replica_groups={{0,1,2,3}}, dimensions={0}", "all-to-all", 96),
        ("%a = (c64[8]{0}, c64[8]{0}) all-to-all(%p, %q), replica_groups={{0,1}}", "all-to-all", 64),
        ("%a = (f32[2], f32[2], /*index=2*/f32[2]) all-to-all(%p, %q, %r), replica_groups={{0,1,2}}", "all-to-all", 16),
        ("%g = bf16[4,8]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), replica_groups=[2,4]<=[8]", "all-gather", 48),
        ("%r = f32[2]{0} reduce-scatter(%p), replica_groups={{0,1,2,3}}, to_apply=%add", "reduce-scatter", 24),
        ("%r = (f32[8], pred[8]) all-reduce(%p, %q), replica_groups={{0,1}}, to_apply=%f", "all-reduce", 40),
        ("%p = f64[8]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}", "collective-permute", 64),
        ("%p = f64[8]{0} collective-permute(%x), source_target_pairs={{0,0},{1,1}}", "collective-permute", 0),
        ("%p = f64[8]{0} collective-permute(%x), source_target_pairs={}", "collective-permute", 0),
        ("%b = s4[9]{0} collective-broadcast(%x), replica_groups={{0,1}}", "collective-broadcast", 5),
        ("%g = f32[] all-gather(%p), replica_groups={{0},{1}}", "all-gather", 0),
        # Asynchronous forms, as on GPUs.
        ("%s = (f32[8]{0}, f32[32]{0}) all-gather-start(%p), replica_groups={{0,1,2,3}}", "all-gather", 96),
        (
            "%s = ((f32[4], f32[2]), (f32[8], f32[4])) all-gather-start(%p), replica_groups={{0,1}}",
            "all-gather",
            24,
        ),
        ("%s = (f32[4], f32[4], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}", None, 16),
        ("%s = (f32[8], f32[8]) all-reduce-start(%p, %q), replica_groups={{0,1}}, to_apply=%f", "all-reduce", 64),
        ("%s = ((f32[8]{0}), f32[8]{0}) all-to-all-start(%p), replica_groups={{0,1}}", "all-to-all", 16),
    ],
)
def test_bytes(instruction, kind, sent):
    (found,) = collectives(f'HloModule f\n  {instruction}, metadata={{op_name="jit(f)/x"}}')
    assert found.kind == kind or kind is None
    assert found.bytes == sent


@pytest.mark.parametrize(
    "line",
    [
        "%d = f32[32]{0} all-gather-done(%s)",
        "%g = f32[8]{0} get-tuple-element(%all-to-all), index=0",
        "%f = f32[8]{0} fusion(%all-to-all.1, %p), kind=kLoop, calls=%fused_all-gather",
        '%m = f32[8]{0} negate(%p), metadata={op_name="f32[8] all-to-all(%p), replica_groups={{0,1}}"}',
        "%u = f32[8]{0} async-start(%p), calls=%wrapped",
    ],
)
def test_other_instructions_are_no_collectives(line):
    assert collectives(line) == []


def test_an_unknown_format_of_groups_is_refused():
    with pytest.raises(ValueError, match="unknown format"):
        collectives("%a = f32[8] all-to-all(%p), replica_groups=<new>")


BLOCK_BYTES = 8 * 4 * 16 * 4  # of float32 (16, 16, 16) on 2x4


@pytest.mark.parametrize(
    ("function", "kind", "size", "sent"),
    [
        (lambda b: lax.psum(b, "y"), "all-reduce", 4, 2 * BLOCK_BYTES * 3 // 4),
        (lambda b: lax.psum(b, ("x", "y")), "all-reduce", 8, 2 * BLOCK_BYTES * 7 // 8),
        (lambda b: lax.all_gather(b, "y"), "all-gather", 4, 3 * BLOCK_BYTES),
        (lambda b: lax.all_gather(b, "x", tiled=True), "all-gather", 2, BLOCK_BYTES),
        (lambda b: lax.ppermute(b, "y", [(0, 1), (1, 2)]), "collective-permute", 2, BLOCK_BYTES),
        (lambda b: lax.all_to_all(b, "y", 2, 1, tiled=True), "all-to-all", 4, BLOCK_BYTES * 3 // 4),
        (lambda b: lax.psum_scatter(b, "y", tiled=True), "reduce-scatter", 4, BLOCK_BYTES * 3 // 4),
    ],
)
def test_compiled_programs(function, kind, size, sent):
    mesh = make_mesh((2, 4))
    spec = P("x", "y", None)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    argument = jax.ShapeDtypeStruct((16, 16, 16), jnp.float32, sharding=NamedSharding(mesh, spec))
    (found,) = collectives(jax.jit(mapped).lower(argument).compile().as_text())
    assert (found.kind, found.group_size, found.bytes) == (kind, size, sent)
    if kind != "collective-permute":
        devices = np.arange(8).reshape(2, 4)
        groups = {2: devices.T, 4: devices, 8: devices.reshape(1, 8)}[size]
        assert found.groups == tuple(map(tuple, groups.tolist()))


def test_selftest(capsys, monkeypatch):
    monkeypatch.setattr(_selftest, "mesh_sizes", lambda n: [(2, n // 2)])
    assert cli.main(["selftest"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("passed ") for line in lines) == 7
    assert "7 passed, 0 failed" in lines
    assert any(line.startswith("not run: backend MPI: ") for line in lines)
    assert "not run: GPUs: there are none that JAX uses" in lines


def test_selftest_sees_what_is_wrong(capsys, monkeypatch):
    class Wrong(XLA):
        def run(self, plan, block):
            return (1 + 1e-4) * super().run(plan, block)

    def raises(dec):
        """something that raises."""
        raise ValueError("of no use")

    monkeypatch.setattr(_selftest, "CHECKS", (*_selftest.CHECKS, raises))
    outcomes = list(_selftest.run(Wrong(), jax.devices()[:1]))
    assert len(outcomes) == 8
    assert not any(outcome.passed for outcome in outcomes if "adjoint" not in outcome.check)
    assert outcomes[-1].raised == "ValueError: of no use"
    monkeypatch.setattr(_selftest, "CHECKS", (raises,))
    assert cli.main(["selftest"]) == 1
    printed = capsys.readouterr().out
    assert re.search("FAILED +something that raises +1x8 +ValueError: of no use", printed)
    assert "0 passed, 4 failed" in printed
