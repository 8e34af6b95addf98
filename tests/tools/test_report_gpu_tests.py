"""Tests of the section of a report that runs tests/gpu."""

import importlib.metadata
import os
import signal
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from decompops import XLA
from decompops.tools.report import gpu_tests
from decompops.tools.report.setting import Setting
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def test_they_run_in_a_process_of_their_own(tmp_path):
    (tmp_path / "test_two.py").write_text("def test_a(): pass\ndef test_b(): assert 0\n")
    found = gpu_tests.run_tests([tmp_path / "test_two.py"], 60)
    assert found["counts"] == {"passed": 1, "failed": 1}
    assert len(found["failed"]) == 1
    assert "test_b" in found["failed"][0]["case"]


def test_results_of_tests_that_have_ended_are_kept_when_time_is_up(tmp_path):
    """Tests of several ranks come last, and those of compiled programs do not run."""
    (tmp_path / "test_cudecomp.py").write_text("import time\ndef test_b(): time.sleep(600)\n")
    (tmp_path / "test_gpu.py").write_text("def test_a(): pass\n")
    (tmp_path / "test_on_paper.py").write_text("def test_c(): assert 0\n")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a job that a shell has started in the background
    try:
        for seconds in (5, 30, 120):  # On a busy machine, pytest may take long to start.
            found = gpu_tests.run_tests(gpu_tests.on_gpus(tmp_path), seconds)
            if found.get("counts"):
                break
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == {"counts": {"passed": 1}, "failed": [], "stopped": f"after {seconds} s"}


def test_they_need_only_pytest_and_the_packages_of_decompops(tmp_path, monkeypatch):
    """tests/gpu needs only pytest and the packages that decompops needs.

    The test runs pytest in a process that can import no other packages. This process collects all tests of tests/gpu,
    and skips them because it has no GPU.
    """
    root = Path(__file__).parents[2]
    needed = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    kept = {"decompops", *distributions([*needed, "pytest"])}
    providers = importlib.metadata.packages_distributions().items()
    absent = sorted(name for name, given_by in providers if kept.isdisjoint(map(canonicalize_name, given_by)))
    assert "beartype" in absent
    (tmp_path / "sitecustomize.py").write_text(ONLY_SOME_PACKAGES.format(absent=absent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("DECOMPOPS_REQUIRE_CUDA_PLUGIN", raising=False)
    found = gpu_tests.run_tests(gpu_tests.on_gpus(gpu_tests.FOLDER), 200)
    assert found["failed"] == []
    assert set(found["counts"]) == {"skipped"}
    assert found["counts"]["skipped"] > 20
    hlo = root / "tests" / "tools" / "test_hlo.py"
    assert gpu_tests.run_tests([hlo], 200)["counts"].keys() == {"passed"}


ONLY_SOME_PACKAGES = """
from importlib.machinery import PathFinder

def find_spec(cls, name, path=None, target=None, find=PathFinder.find_spec):
    return None if name.partition(".")[0] in {absent} else find(name, path, target)

PathFinder.find_spec = classmethod(find_spec)
"""


def distributions(requirements: list[str]) -> set[str]:
    """Return the names of the distributions that `pip install` of these requirements installs."""
    found, queue = set(), [Requirement(text) for text in requirements]
    while queue:
        one = queue.pop()
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(name)
            queue += map(Requirement, importlib.metadata.requires(name) or [])
    return found


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("a GPU", "JAX has no GPU here"),
        ("one process", "run `python -m decompops report --sections tests` without `srun` and `mpiexec`"),
        ("a clone", "run `git clone https://github.com/decompops/decompops`, and then `python -m decompops report"),
        ("pytest", "pytest is not installed: run `pip install pytest`"),
    ],
)
def test_the_report_says_what_to_type_where_they_cannot_run(lacking, message, monkeypatch, tmp_path):
    platform = "cpu" if lacking == "a GPU" else "gpu"
    monkeypatch.setattr(gpu_tests.jax, "process_count", lambda: 2 if lacking == "one process" else 1)
    monkeypatch.setattr(gpu_tests, "FOLDER", tmp_path / "gone" if lacking == "a clone" else tmp_path)
    monkeypatch.setattr(gpu_tests.importlib.util, "find_spec", lambda name: None)
    found = gpu_tests.tests(Setting([SimpleNamespace(platform=platform)], XLA()), {})
    assert message in found["not_run"]
