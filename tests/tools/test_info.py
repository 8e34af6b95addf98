"""Tests of the command `info`, as text of 80 columns and as JSON."""

import json
import re
import sys
from pathlib import Path

import jax
import pytest
from decompops import MPI, CuDecomp, Native
from decompops._backend.native import library
from decompops._core.config import VARIABLES
from decompops.tools import cli as cli

from commands import assert_fits, run


def entries(text: str) -> dict[str, str]:
    """Parse the lines that `info` prints into `{label: text}`, and join wrapped lines."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(" "):
            found[label] += f" {line.strip()}"
        else:
            label, value = line.split("  ", 1)
            found[label] = value.strip()
    return found


def test_text():
    done = run("info")
    assert done.returncode == 0, done.stderr
    assert_fits(done.stdout)
    lines = entries(done.stdout)
    assert lines["jax"] == jax.__version__
    assert lines["platform"] == "cpu, 1 process"
    assert lines["backend xla"] == "available"
    for backend in (Native(), MPI(), CuDecomp()):
        problem, name = backend.problem(), type(backend).__name__.lower()
        expected = "available" if problem is None else f"not available: {problem}"
        assert lines[f"backend {name}"].startswith(expected)
    assert library.fft_version() in lines["backend native"]
    assert "backend=XLA(" in lines["defaults"]


def test_json():
    done = run("info", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"]["jax"] == jax.__version__
    assert (found["platform"], found["processes"], found["device_kinds"]) == ("cpu", 1, ["cpu"])
    backends = {one.pop("name"): one for one in found["backends"]}
    assert backends["xla"] == {"available": True, "problem": None, "features": None}
    for backend in (Native(), MPI(), CuDecomp()):
        one = backends[type(backend).__name__.lower()]
        assert (one["available"], one["problem"]) == (backend.problem() is None, backend.problem())
    assert found["defaults"] == {"backend": "XLA(overlap=1, wire=None)"}


def test_defaults_that_do_not_work(monkeypatch, capsys):
    monkeypatch.setenv("DECOMPOPS_BACKEND", "smoke")
    assert cli.main(["info"]) == 0
    assert entries(capsys.readouterr().out)["defaults"].startswith("invalid: `DECOMPOPS_BACKEND` must be one of")
    assert cli.main(["info", "--json"]) == 0
    assert "must be one of" in json.loads(capsys.readouterr().out)["defaults"]["problem"]


def test_misspelt_variables(monkeypatch, capsys):
    for name in ("DECOMPOPS_BACKND", "DECOMPOPS_HALO_BACKENDS", "DECOMPOPS_FTT", "DECOMPOPS_TYPECHECK"):
        monkeypatch.setenv(name, "xla")
    for name in ("DECOMPOPS_GALLERY", "DECOMPOPS_OF_SOMEBODY", *VARIABLES):
        monkeypatch.setenv(name, "")
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["misspelt"] == {
        "DECOMPOPS_BACKND": "DECOMPOPS_BACKEND",
        "DECOMPOPS_FTT": "DECOMPOPS_FFT",
        "DECOMPOPS_HALO_BACKENDS": "DECOMPOPS_HALO_BACKEND",
        "DECOMPOPS_TYPECHECK": "DECOMPOPS_TYPECHECKER",
    }
    assert cli.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert_fits(printed)
    assert "ignored           DECOMPOPS_BACKND; did you mean DECOMPOPS_BACKEND?\n" in printed


def test_the_list_of_variables_is_complete():
    page = (Path(library.__file__).parents[3] / "docs" / "mesh_and_backend.md").read_text()
    assert {*re.findall(r"^\| `(DECOMPOPS_\w+)`", page, re.MULTILINE)} == {*VARIABLES} - {"DECOMPOPS_TYPECHECKER"}


@pytest.mark.parametrize("problem", ["", "no sources"])
def test_without_fftw(problem, monkeypatch, capsys):
    built = library.build()
    monkeypatch.setattr(library, "build", lambda: {**built, "ducc_problem": problem})
    monkeypatch.setattr(library.fft_library, "find", lambda: None)
    assert cli.main(["info"]) == 0
    line = entries(capsys.readouterr().out)["backend native"]
    assert line.endswith("available, with DUCC") == (not problem)
    assert ("so XLA computes them: install FFTW" in line) == bool(problem)


def test_kernels_that_cannot_be_loaded(monkeypatch, tmp_path, capsys):
    built = {"problem": "", "mpi": "some MPI", "ducc_problem": "", "mpi_problem": "", "cudecomp_problem": ""}
    monkeypatch.setattr(library, "build", lambda: built)
    monkeypatch.setattr(library, "mpi_problem", lambda: None)
    monkeypatch.setattr(library, "folder", lambda: tmp_path)

    def said() -> dict[str, str]:
        assert cli.main(["info"]) == 0
        lines = entries(capsys.readouterr().out)
        return {name: lines[f"backend {name}"] for name in ("native", "mpi", "cudecomp")}

    for name, text in said().items():
        assert text == f"not available: {tmp_path} lacks the library libdecompops_{name}: {library.COMPILE_AGAIN}"
    for name in ("native", "mpi", "cudecomp"):
        (tmp_path / f"libdecompops_{name}.so").write_text("no library")
    for text in said().values():
        assert text.startswith("not available: ")
        assert text.endswith(library.COMPILE_AGAIN)

    def without_cutensor(path):
        raise OSError("libcutensor.so.2: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(library.ctypes, "CDLL", without_cutensor)
    for text in said().values():
        assert "libcutensor.so.2 was not found: install it, or if it is installed, add its folder" in text


def test_a_damaged_description_of_the_build(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "folder", lambda: tmp_path)
    for content in (b"", b'{"problem": "", "duc', b"\xff"):
        (tmp_path / "build.json").write_bytes(content)
        found = library.build.__wrapped__()
        assert found["problem"] == f"{tmp_path / 'build.json'} is damaged: {library.COMPILE_AGAIN}"
        assert {*found.values()} == {found["problem"]}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'mpi4py'"), "mpi4py is not installed: run pip install mpi4py"),
        (ImportError("libmpi.so.40: cannot open"), "mpi4py does not work: libmpi.so.40: cannot open"),
        (RuntimeError("cannot load MPI library\nlibmpi.so"), "mpi4py does not work: cannot load MPI library"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_mpi4py_that_does_not_work(error, said, monkeypatch):
    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "mpi4py":
                raise error

    for name in [name for name in sys.modules if name.partition(".")[0] == "mpi4py"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Refuse(), *sys.meta_path])
    assert library.mpi_problem() == said


def test_the_build_says_how_to_compile_again():
    assert library.COMPILE_AGAIN in (library.SOURCES / "CMakeLists.txt").read_text()


def test_advice_works_without_a_package_index():
    """`info` recommends installing packages by their names, and not by an extra such as `decompops[mpi]`.

    With such an extra, pip would look for decompops on a package index.
    """
    for backend in json.loads(run("info", "--json").stdout)["backends"]:
        assert "decompops[" not in str(backend["problem"])
