"""Tests of `ffi/cmake/ducc.cmake`, which downloads the sources of DUCC: nothing of an unknown archive runs."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from decompops._backend.native import library
from decompops.tools import cli as cli


NAME = "ducc0-0.42.0"
FORGED = {
    "PKG-INFO": "Metadata-Version: 2.2\nName: ducc0\nVersion: 0.42.0\n",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "forged"\nbackend-path = ["."]\n',
    "forged.py": "import os, pathlib\npathlib.Path(os.environ['MARK']).touch()\n",
}


def forge(path: Path) -> None:
    """Write an archive with DUCC's name. If its build backend is imported, it makes the file $MARK."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in FORGED.items():
            member = tarfile.TarInfo(f"{NAME}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def found(folder: Path, **variables: str) -> tuple[str, str]:
    """Return the folder of DUCC's sources, and why there are none. pip finds only archives in `folder`/index."""
    script = folder / "script.cmake"
    lines = ('message(STATUS "source=${DUCC_SOURCE}")', 'message(STATUS "why=${ducc_problem}")')
    script.write_text("\n".join((f'include("{library.SOURCES}/cmake/ducc.cmake")', *lines)))
    variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "index"), "PIP_CONFIG_FILE": os.devnull}
    variables |= {"PYTHONWARNINGS": ""}  # The pip that comes with Python 3.11 uses what Python will remove.
    done = subprocess.run(
        ["cmake", f"-DPython_EXECUTABLE={sys.executable}", "-P", script],
        cwd=folder,
        env={**os.environ, **variables, "MARK": str(folder / "mark")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    source, why = (line.partition("=")[2] for line in done.stdout.splitlines())
    assert json.loads(f'"{why}"') == why  # The text is a part of `build.json`.
    assert not (folder / "mark").exists()
    return source, why


def test_an_archive_of_the_index_with_another_hash(tmp_path):
    (tmp_path / "index").mkdir()
    forge(tmp_path / "index" / f"{NAME}.tar.gz")
    source, why = found(tmp_path)
    assert source == ""
    assert "could not be downloaded" in why
    assert "DO NOT MATCH THE HASHES" in why
    assert "set DUCC_ROOT" in why


def test_an_archive_of_an_earlier_build_with_another_hash(tmp_path):
    (tmp_path / "ducc").mkdir()
    forge(tmp_path / "ducc" / f"{NAME}.tar.gz")
    source, why = found(tmp_path)
    assert source == ""
    assert "has the SHA-256 hash" in why


def test_no_archive(tmp_path):
    (tmp_path / "index").mkdir()
    source, why = found(tmp_path)
    assert source == ""
    assert "Could not find a version that satisfies" in why


def test_sources_of_the_user(tmp_path):
    header = tmp_path / "mine" / "src" / "ducc0" / "fft" / "fft.h"
    header.parent.mkdir(parents=True)
    header.touch()
    assert found(tmp_path, DUCC_ROOT=str(tmp_path / "mine")) == (str(tmp_path / "mine" / "src"), "")


@pytest.mark.parametrize("problem", ["", "the sources of DUCC could not be downloaded"])
def test_info_says_that_ducc_is_missing(problem, monkeypatch, capsys):
    built = library.build()
    monkeypatch.setattr(library, "build", lambda: {**built, "ducc_problem": problem})
    assert cli.main(["info", "--json"]) == 0
    backends = json.loads(capsys.readouterr().out)["backends"]
    (native,) = (backend for backend in backends if backend["name"] == "native")
    assert (f"without DUCC: {problem}" in native["features"]) == bool(problem)
