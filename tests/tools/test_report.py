"""Tests of `python -m decompops report`: its sections on tiny grids, its pages, and the merging of reports."""

import copy
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from decompops import XLA
from decompops.tools import cli as cli
from decompops.tools.report import correctness, limits, run as running, scaling, sections, speed, tables
from decompops.tools.report.page import read, write_page
from decompops.tools.report.run import Report, without_private_names
from decompops.tools.report.setting import Clock, Setting
from decompops.tools.report.study import write_study

import mpiexec


NAMES = ("hardware", "software", "selftest", "accuracy", "memory", "tests", "scaling", "benchmarks", "limits")
TINY = ("--shape", "8", "--strong", "8", "--weak", "4", "--repeats", "1")


@pytest.fixture(scope="module")
def setting() -> Setting:
    shape = (8, 8, 8)
    sizes = {"shapes": (shape,), "small": shape, "strong": 8, "weak": 4, "block_bytes": (4096,), "repeats": 1}
    return Setting(jax.devices()[:2], XLA(), **sizes, clock=Clock(2000))


@pytest.fixture(scope="module")
def report(setting, tmp_path_factory) -> dict:
    """Return a report of all sections, with few operators."""
    patch = pytest.MonkeyPatch()
    patch.setattr(correctness, "OPERATORS", ("rfft",))
    patch.setattr(correctness, "_SOLVERS", ("gradient",))
    patch.setattr(speed, "_FIRST", ("rfft",))
    patch.setattr(speed, "_THEN", ("halo",))
    patch.setattr(speed, "_MEMORY", ("rfft", "halo"))
    patch.setattr(speed, "_MEMORY_OF_SOLVERS", ("gradient",))
    file = tmp_path_factory.mktemp("report") / "tiny.json"
    made = Report("tiny", file, shared=False, note="A note.")
    with patch.context():
        made.run(setting, NAMES)
    patch.undo()
    assert not made.failed()
    return read(file)


def data(report: dict, section: str) -> dict:
    found = report["sections"][section]
    assert found["error"] is None
    return found["data"]


def test_sections_come_in_order(report):
    assert tuple(report["sections"]) == NAMES == tuple(sections.SECTIONS)
    assert report["schema"] == running.SCHEMA


def test_hardware(report):
    found = data(report, "hardware")
    assert found["devices"] == 2
    assert (found["processes"], found["nodes"], found["kinds_of_cpus"]) == (1, 1, 1)
    assert found["usable cores"] >= 1
    assert data(report, "software")["versions"]["jax"] == jax.__version__


def test_accuracy_and_selftest(report):
    checks = data(report, "selftest")
    assert checks["failed"] == []
    assert checks["meshes"] == [[1, 2], [2, 1]]
    errors = {(row["operator"], row["dtype"]): row for row in data(report, "accuracy")["rows"]}
    assert set(errors) == {(name, dtype) for name in ("rfft", "gradient") for dtype in ("float32", "float64")}
    for (_, dtype), row in errors.items():
        assert 0 <= row["largest_error"] < 100 * np.finfo(dtype).eps
        assert 0 <= row["rms_error"] < 100 * np.finfo(dtype).eps


@pytest.mark.parametrize(("count", "grid"), [(5, [8, 10, 6]), (7, [8, 14, 6])])
def test_numbers_of_devices_that_do_not_divide_the_grid(count, grid, monkeypatch, tmp_path):
    """If the devices do not divide the grid, halo exchanges run on a larger grid, because they need equal blocks.

    The page names this larger grid.
    """
    for module, name in ((correctness, "OPERATORS"), (speed, "_THEN"), (speed, "_MEMORY")):
        monkeypatch.setattr(module, name, ("transpose", "halo"))
    for module, name in ((correctness, "_SOLVERS"), (speed, "_FIRST"), (speed, "_MEMORY_OF_SOLVERS")):
        monkeypatch.setattr(module, name, ())
    shape = (8, 8, 6)
    setting = Setting(jax.devices()[:count], XLA(), shapes=(shape,), small=shape, repeats=1, clock=Clock(2000))
    made = Report("uneven", tmp_path / "uneven.json", shared=False, note="")
    made.run(setting, ["accuracy", "memory", "benchmarks"])
    assert not made.failed()
    found = read(tmp_path / "uneven.json")
    for name in ("accuracy", "memory", "benchmarks"):
        shapes = {row["operator"]: row["shape"] for row in data(found, name)["rows"]}
        assert shapes == {"transpose": list(shape), "halo": grid}
    write_page(found, tmp_path)
    text = (tmp_path / "uneven.md").read_text()
    assert text.count(f"The grid of `halo` is {tables.size_of(grid)}") == 2


def test_memory(report):
    rows = {row["operator"]: row for row in data(report, "memory")["rows"]}
    field = 4 * 8**3 / 2
    assert rows["rfft"]["arguments"] == rows["rfft"]["least_arguments"] == field
    assert rows["rfft"]["least_results"] == 8 * 8 * 8 * 5 / 2
    assert rows["rfft"]["results"] >= rows["rfft"]["least_results"]
    assert rows["gradient"]["least_results"] == 3 * field
    assert rows["halo"]["results"] == rows["halo"]["least_results"] == 4 * 8 * (4 + 2 * 2) * 8


def test_shares_of_the_limits(report):
    limits, benchmarks = data(report, "limits"), data(report, "benchmarks")["rows"]
    (limit,) = limits["rows"]
    (share,) = (row for row in limits["shares"] if row["operator"] == "rfft")
    (case,) = (row for row in benchmarks if row["operator"] == "rfft")
    program, seconds = case["program"], case["contestants"][0]["median_s"]
    moved = sum(program["least_bytes_per_fft_pass"])
    assert share["memory"] == pytest.approx(moved / limit["copy_all"] / seconds)
    network = max(limit["all_to_all"], limit["copy_all"] / 2)  # The devices share one memory.
    assert share["network"] == pytest.approx(program["least_communicated_bytes"] / network / seconds)
    assert share["memory_block_bytes"] == share["network_block_bytes"] == limit["block_bytes"] == 4096


def test_shares_use_the_bandwidth_of_memory_and_not_of_a_cache(setting, report, monkeypatch, tmp_path):
    """Shares of memory use the bandwidth of the largest block, because a cache may hold smaller blocks."""
    rates = {2**10: 100e9, 2**23: 112e9, 2**26: 32e9}
    measured = lambda size, _: {"block_bytes": size, "copy_one": rates[size], "copy_all": rates[size]}
    monkeypatch.setattr(limits, "_bandwidths", measured)
    found = limits.limits(replace(setting, block_bytes=tuple(rates)), report["sections"])
    for share, case in zip(found["shares"], data(report, "benchmarks")["rows"], strict=True):
        program, seconds = case["program"], case["contestants"][0]["median_s"]
        assert share["memory"] == pytest.approx(sum(program["least_bytes_per_fft_pass"]) / 32e9 / seconds)
        assert share["network"] == pytest.approx(program["least_communicated_bytes"] / 16e9 / seconds)
        assert (share["memory_block_bytes"], share["network_block_bytes"]) == (2**26, 2**10)
    changed = copy.deepcopy(report)
    changed["sections"]["limits"]["data"] = found
    write_page(changed, tmp_path)
    assert "a copy of the largest block on all devices, 64 MiB" in (tmp_path / "tiny.md").read_text()


def test_scaling_points(report):
    rows = data(report, "scaling")["rows"]
    assert {(row["kind"], tuple(row["shape"]), tuple(row["mesh"])) for row in rows} == {
        *(("strong", (8, 8, 8), mesh) for mesh in ((1, 2), (2, 1))),
        *(("weak", shape, mesh) for shape, mesh in (((4, 8, 4), (1, 2)), ((8, 4, 4), (2, 1)))),
    }
    for row in rows:
        assert row["contestants"][0]["relative_error"] < 1e-5
        assert row["program"]["communicated_bytes"] >= row["program"]["least_communicated_bytes"] > 0


def test_points_with_too_many_devices_are_named(setting, report, tmp_path):
    few = replace(setting, devices=jax.devices()[:8], strong=4, weak=2, clock=Clock(0))
    found = scaling.scaling(few, {})
    assert [name.partition(" on ")[2] for name in found["too_many_devices"]] == ["mesh 2x4"] * 2 + ["mesh 8x1"] * 4
    changed = copy.deepcopy(report)
    changed["sections"]["scaling"]["data"] = found
    write_page(changed, tmp_path)
    text = (tmp_path / "tiny.md").read_text()
    assert "than the grid has cells: weak fft 4x8x2 on mesh 2x4; weak rfft 4x8x2 on mesh 2x4; strong fft" in text


def test_page(report, tmp_path):
    write_page(report, tmp_path)
    text = (tmp_path / "tiny.md").read_text()
    assert "A note." in text
    for title in ("Machine", "Software", "Self-test", "Accuracy", "Memory", "Benchmarks", "Limits", "Scaling", "Tests"):
        assert f"\n## {title}" in text
    assert "18 of 18 checks passed" in text
    assert "JAX has no GPU here" in text
    assert "nan" not in text
    assert "| None |" not in text
    for link in re.findall(r"!\[.*\]\((.*)\)", text):
        assert (tmp_path / link).read_text().startswith("<?xml")


def test_page_of_a_shared_machine_has_no_times(report, tmp_path):
    shared = {**copy.deepcopy(report), "shared": True}
    write_page(shared, tmp_path)
    text = (tmp_path / "tiny.md").read_text()
    assert "Others used this machine" in text
    for unit in ("ms", "GB/s"):
        assert not re.search(rf"\b{unit}\b", text)


def test_page_explains_its_columns(report, tmp_path):
    """The page explains each column of the benchmarks, with notes for the columns of other libraries."""
    changed = copy.deepcopy(report)
    (row,) = (row for row in data(changed, "benchmarks")["rows"] if row["operator"] == "rfft")
    ours = row["contestants"][0]
    notes = {"jaxDecomp": "complex transform", "SciPy": "one process", "FFTW": "one process"}
    programs = ("our XLA backend", "memory alone", "our forward", "its FFTs", "its FFTs with all modes")
    names = (*notes, *programs)
    row["contestants"] = [ours, *({**ours, "name": name, "note": notes.get(name, ""), "ratio": 1.5} for name in names)]
    write_page(changed, tmp_path)
    text = (tmp_path / "tiny.md").read_text()
    (heads,) = (line for line in text.splitlines() if line.startswith("| operator | grid | mesh | ours"))
    legend = re.findall(r"^- (.*?): .*\.$", text, re.MULTILINE)
    explained = [name for names in legend for name in names.split(", ")]
    assert set(explained) >= {head.strip() for head in heads.strip("| ").split("|")[4:]} == set(names)
    assert "- SciPy, FFTW: one process.\n" in text


@pytest.mark.parametrize(
    ("shared", "cores", "load", "busy"),
    [(True, 8, 1.0, True), (False, 8, 9.5, True), (False, None, 9.5, True), (False, 8, 7.5, False)],
)
def test_pages_of_busy_machines_warn_of_efficiencies(shared, cores, load, busy, report, tmp_path):
    """Reports and studies from busy machines warn that the efficiencies measured there prove nothing.

    A report has the warning at the top of the page, and in the section on scaling.
    """
    changed = {**copy.deepcopy(report), "shared": shared}
    data(changed, "hardware").update({"cores": cores, "usable cores": 2, "load_average": load})
    write_page(changed, tmp_path)
    text = (tmp_path / "tiny.md").read_text()
    assert ("Others used this machine" in text.partition("## Machine")[0]) == busy
    assert ("are no evidence of scaling" in text.partition("## Scaling")[2]) == busy
    write_study([changed, {**report, "name": "other", "sections": {}}], tmp_path, "study")
    study = (tmp_path / "study.md").read_text()
    assert ("**Others used the machine of tiny at the same time" in study) == busy


def test_pages_need_no_matplotlib(report, tmp_path, monkeypatch):
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    write_page(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.md"]
    assert "![" not in (tmp_path / "tiny.md").read_text()


def test_merging(report, tmp_path):
    """Three reports merge into one study with perfect strong scaling.

    Each report has twice the devices of the previous report, and half the times.
    """
    files = []
    for doublings in range(3):
        one = copy.deepcopy(report)
        one["name"] = f"job{doublings}"
        one["sections"]["hardware"]["data"]["nodes"] = 2**doublings
        for point in one["sections"]["scaling"]["data"]["rows"]:
            point["devices"] = 2 * 2**doublings
            for row in point["contestants"]:
                row["median_s"] = row["median_s"] and (4.0 if point["kind"] == "strong" else 2.0) / 2**doublings
        files.append(tmp_path / f"{one['name']}.json")
        files[-1].write_text(json.dumps(one))
    assert cli.main(["report", "--from", *map(str, files), "--out", str(tmp_path), "--name", "study"]) == 0
    text = (tmp_path / "study.md").read_text()
    strong, weak = text.split("### Weak")
    assert "| job2 |" in strong
    assert re.search(r"\| `rfft` \| 8 \| 1 \| 4 \| .* \| 1e\+03 \| 4\.00 \| 1\.00 \|", strong)
    assert re.search(r"\| `rfft` \| 8 \| 1 \| 4 \| .* \| 500 \| 4\.00 \|", weak)
    assert (tmp_path / "study-scaling.svg").exists()


def test_other_schemas_are_refused(report, tmp_path, capsys):
    file, part = tmp_path / "old.json", '{"schema": 1, "name": "a"}'
    for text, message in (('{"schema": 0}', "got schema 0"), ("\0", "old.json must hold JSON"), (part, "lacks date,")):
        file.write_text(text, "utf-16" if text == "\0" else "utf-8")
        with pytest.raises(SystemExit):
            cli.main(["report", "--from", str(file)])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/b", "", ".hidden", None])
def test_a_report_is_not_written_outside_its_folder(report, tmp_path, capsys, name):
    file = tmp_path / "crafted.json"
    file.write_text(json.dumps({**report, "name": name}))
    with pytest.raises(SystemExit):
        cli.main(["report", "--from", str(file), "--out", str(tmp_path / "in" / "out")])
    assert "whose `name` is a file name without a folder; got" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("end", [".json", ".md", "-scaling.svg", "-benchmarks.svg"])
def test_a_report_replaces_only_files_of_reports(report, tmp_path, capsys, end):
    """A report replaces its own files, but neither a file of somebody else nor one of a temporary name."""
    file, out = tmp_path / "report.json", tmp_path / "out"
    file.write_text(json.dumps(report, indent=1))
    for _ in range(2):
        assert cli.main(["report", "--from", str(file), "--out", str(out)]) == 0
    other, part = out / f"tiny{end}", out / "tiny.part"
    other.write_text("years of work")
    part.write_text("years of work")
    commands = [["--name", "tiny", "--sections", "hardware"], *([["--from", str(file)]] if end == ".md" else [])]
    for command in commands:
        with pytest.raises(SystemExit):
            cli.main(["report", *command, "--out", str(out)])
        assert f"{other}, which decompops did not write" in capsys.readouterr().err
    assert other.read_text() == part.read_text() == "years of work"
    other.unlink()
    Report("tiny", out / "tiny.json", shared=False, note="").write()
    assert part.read_text() == "years of work"


def test_a_section_that_fails_is_recorded(setting, monkeypatch, tmp_path, capsys):
    def broken(setting, results):
        raise ValueError("no such thing\nsecond line")

    monkeypatch.setitem(sections.SECTIONS, "hardware", (broken, 1.0))
    file = tmp_path / "broken.json"
    made = Report("broken", file, shared=False, note="")
    made.run(setting, ["hardware", "software", "tests"])
    assert made.failed()
    found = read(file)["sections"]
    assert found["hardware"]["error"] == "ValueError: no such thing"
    assert found["software"]["error"] is None
    write_page(read(file), tmp_path)
    assert "This section failed: `ValueError: no such thing`." in (tmp_path / "broken.md").read_text()
    assert "no such thing" in capsys.readouterr().err


def test_a_case_that_fails_is_recorded(setting):
    def case(number):
        if number == 2:
            raise RuntimeError("two")
        return {"number": number}

    found = setting.each([1, 2, 3], case)
    assert found["rows"] == [{"number": 1}, {"number": 3}]
    assert found["failed"] == [{"case": "2", "error": "RuntimeError: two"}]


def test_cases_are_left_out_when_time_is_up():
    clock = Clock(100.0)
    clock.begin(0.1)
    assert 0 < clock.left() <= 10
    clock.record(8.0, time.monotonic() - 20)
    assert clock.allows(1.0)
    assert not clock.allows(8.0)
    slow = Setting(jax.devices()[:1], XLA(), clock=Clock(0.5))
    found = slow.each(range(100), lambda number: time.sleep(0.1) or {})
    assert 0 < len(found["rows"]) < 5
    assert len(found["rows"]) + len(found["left_out"]) == 100


def test_names_and_folders_stay_out():
    text = "node17.cluster, 10.0.0.1:4711: /home/someone/work/power.py:12 failed; see https://example.org/a/b and yz/zx"
    found = without_private_names({"error": [text]}, ("node17",))
    assert found == {"error": ["host.cluster, address: power.py:12 failed; see https://example.org/a/b and yz/zx"]}
    assert without_private_names("XLA_FLAGS=--dump=/tmp/x/y", ()) == "XLA_FLAGS=--dump=y"


@mpiexec.NEEDED
@mpiexec.IN_TURN
@pytest.mark.parametrize(
    ("backend", "section"), [("mpi", "scaling"), pytest.param("xla", "limits", marks=pytest.mark.sweep)]
)
def test_two_processes(backend, section, tmp_path):
    command = ("-m", "decompops", "report", "--backend", backend, "--sections", "hardware", section, *TINY)
    done = mpiexec.run(*command, "--name", "two", "--out", tmp_path, ranks=2)
    assert done.returncode == 0, done.stdout
    found = read(tmp_path / "two.json")["sections"]
    assert (found["hardware"]["data"]["processes"], found["hardware"]["data"]["nodes"]) == (2, 1)
    rows = found[section]["data"]["rows"]
    if section == "limits":
        assert all(row["mpi_all_to_all"] > 0 for row in rows)
    else:
        assert {row["processes"] for row in rows} == {2}
        assert all(row["contestants"][0]["failure"] is None for row in rows)
    assert Path(tmp_path / "two.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes: must be a positive number; got '0'"),
        (["--minutes", "nan"], "--minutes: must be a positive number; got 'nan'"),
        (["--name", "a/b"], "--name: must be a file name without a folder, which"),
        (["--name", "a b"], "digits, '_', '.' and '-'; got 'a b'"),
        (["--shape", "8x8"], "--shape: must be one size or three; got '8x8'"),
        (["--sections", "weather"], "--sections: must be one of hardware, software,"),
        (["--backend", "smoke"], "--backend: must be one of xla,"),
        (["--from", "nowhere.json"], "No such file or directory: 'nowhere.json'"),
    ],
)
def test_bad_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", *arguments])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
