"""Tests of the registry of backends: backends of a program or of an installed package, and refused backends."""

import re
import sys
from dataclasses import dataclass

import decompops as dops
import numpy as np
import pytest
from decompops._core import registry
from decompops.extend import run_stage
from decompops.tools import cli, selftest

from helpers import assert_close, make_mesh, random_field


PLUGIN = """
import decompops as dops

class Plugged(dops.XLA):
    launcher = "srun"

class NeedsAnOption(dops.XLA):
    def __init__(self, option): ...

class RaisesInProblem(dops.XLA):
    def problem(self):
        raise OSError("no driver")
"""
ENTRY_POINTS = """[decompops.backends]
plugged = plugin_of_test:Plugged
missing = plugin_of_test:Missing
elsewhere = package_that_is_not_there:Backend
needy = plugin_of_test:NeedsAnOption
raising = plugin_of_test:RaisesInProblem
function = os:getcwd
xla = plugin_of_test:Plugged
twice = plugin_of_test:Plugged
Upper = plugin_of_test:Plugged
"""
ANOTHER = """[decompops.backends]
twice = plugin_of_test:Plugged
"""


@dataclass(frozen=True)
class Scaled(dops.XLA):
    """A backend whose results differ from XLA's."""

    factor: float = 2.0

    def takes(self, stages):
        return len(stages)

    def run(self, plan, block, call):
        for stage in plan.stages:
            block = run_stage(stage, block, call.platform)
        return self.factor * block


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    yield
    dops.config.update(backend=None)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make two packages with entry points, as pip would install them."""
    (tmp_path / "plugin_of_test.py").write_text(PLUGIN)
    for package, entry_points in (("plugin-of-test", ENTRY_POINTS), ("another", ANOTHER)):
        folder = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("plugin_of_test", None)


def test_a_registered_name_works_wherever_names_do(monkeypatch, capsys):
    registry.register_backend("scaled", Scaled)
    registry.register_backend("scaled", Scaled)
    mesh, u = make_mesh((2, 4)), random_field((8, 8, 8))
    assert_close(dops.Transpose(mesh, "z", "y", backend="scaled")(u), 2 * u)
    assert dops.Decomposition(mesh, shape=u.shape, backend="Scaled").backend == Scaled()
    with dops.config.use(backend="scaled"):
        assert dops.Decomposition(mesh, shape=u.shape).backend == Scaled()
    dops.config.update(backend="scaled")
    assert dops.config.backend == Scaled()
    dops.config.update(backend=None)
    monkeypatch.setenv("DECOMPOPS_BACKEND", "scaled")
    assert dops.config.backend == Scaled()
    monkeypatch.setenv("COLUMNS", "400")  # No line is wrapped.
    assert cli.main(["info"]) == 0
    assert "\nbackend scaled    available\n" in capsys.readouterr().out
    monkeypatch.setattr(selftest, "run", lambda *_: iter(()))
    assert cli.main(["selftest", "--backend", "scaled"]) == 0
    assert capsys.readouterr().out.startswith("Scaled(overlap=1, wire=None, factor=2.0) on 8 x cpu")


def test_an_operator_sets_the_open_options_of_its_backend():
    class Open(dops.XLA):
        def resolved(self):
            return Scaled(3.0)

    registry.register_backend("open", Open)
    assert dops.Decomposition(make_mesh((8,)), shape=(8, 8, 8), backend="open").backend == Scaled(3.0)


@pytest.mark.parametrize(
    ("name", "backend_class", "error", "message"),
    [
        *(
            (name, "XLA", ValueError, "`name` must be a lower-case identifier, .*; got ")
            for name in ("My", "a-b", "", 3)
        ),
        ("xla", "MPI", ValueError, "`name` must be new; got 'xla', which already names .*XLA"),
        ("mine", "config", TypeError, "`backend_class` must be a subclass of `AbstractBackend`; got Config"),
        ("mine", "FFT3D", TypeError, "`backend_class` must be a subclass of `AbstractBackend`; got .*FFT3D"),
        ("mine", "AbstractBackend", TypeError, "`backend_class` must implement check, problem; got"),
    ],
)
def test_bad_registrations(plain, name, backend_class, error, message):
    with pytest.raises(error, match=message):
        plain._core.registry.register_backend(name, getattr(plain, backend_class))


def test_an_entry_point_is_loaded_when_its_name_is_used(installed):
    assert dops.config.backend == dops.XLA()
    assert "plugin_of_test" not in sys.modules
    assert "plugged" in registry.backend_names()
    assert "plugin_of_test" not in sys.modules
    u = random_field((8, 8, 8)).astype(np.complex128)
    fft = dops.FFT3D(make_mesh((2, 4)), backend="plugged")
    assert type(fft.decomposition.backend).__name__ == "Plugged"
    assert_close(fft(u), np.fft.fftn(u))
    assert type(registry.make_backend("xla")) is dops.XLA


BROKEN = {
    "missing": "entry point 'plugin_of_test:Missing' of 'plugin-of-test': AttributeError: .*'Missing'",
    "elsewhere": "entry point .*: No module named 'package_that_is_not_there'",
    "twice": "entry point .* of '.*', '.*': ValueError: several packages have an entry point of this name",
    "function": "entry point 'os:getcwd' of ",
    "needy": r"TypeError: .*missing 1 required positional argument: 'option'",
    "raising": "OSError: no driver",
    "Upper": "ValueError: `name` must be a lower-case identifier",
    "xla": "ValueError: `name` must be new; got 'xla', which already names .*XLA",
}


def test_broken_entry_points_do_not_break_the_others(installed, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")  # No line is wrapped.
    assert cli.main(["info"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.startswith("backend ")]
    said = {(name, text) for _, name, text in lines}
    assert ("xla", "available") in said
    assert ("plugged", "available") in said
    for name, message in BROKEN.items():
        assert any(n == name and re.match(f"not available: .*{message}", t) for n, t in said), name
    for name in ("missing", "elsewhere", "function", "twice"):
        with pytest.raises(ImportError, match=f"`backend='{name}'` does not work here: {BROKEN[name]}"):
            dops.Decomposition(make_mesh((8,)), shape=(8, 8, 8), backend=name)
    monkeypatch.setenv("DECOMPOPS_BACKEND", "elsewhere")
    assert cli.main(["info"]) == 0
    assert "defaults  " in (text := capsys.readouterr().out)
    assert "invalid: `DECOMPOPS_BACKEND='elsewhere'` does not work here: entry point" in text
    with pytest.raises(ValueError, match=r"`backend` must be one of \('xla', 'native', 'mpi', 'cudecomp', .*'plugged'"):
        dops.Decomposition(make_mesh((8,)), shape=(8, 8, 8), backend="gloo")


def test_the_self_test_says_how_to_run_the_others(installed, monkeypatch, capsys):
    monkeypatch.setattr(selftest, "run", lambda *_: iter(()))
    assert cli.main(["selftest"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "not run: backend plugged: srun python -m decompops selftest --backend plugged" in lines
    assert "not run: backend raising: OSError: no driver" in lines
    assert not any(line.startswith("not run: backend xla: srun") for line in lines)
