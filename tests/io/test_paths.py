"""Tests of the files and links that a snapshot replaces, of XDMF files, and of the order of writes to the disk."""

import os
from pathlib import Path
from unittest.mock import patch

import decompops as dops
import numpy as np
import pytest
from decompops import io
from decompops.io._formats import format_of
from decompops.io._staging import Staging
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXdmf2 import vtkXdmfReader

from helpers import make_mesh, random_field


SUFFIXES = (".zarr", ".h5")
SHAPE = (4, 3, 2)
DEC = dops.Decomposition(make_mesh((1, 1)), shape=SHAPE)
U = random_field(SHAPE)


def test_a_folder_that_is_no_snapshot_is_not_replaced(tmp_path):
    for path, inner in ((tmp_path / "data.zarr", "zarr.json"), (tmp_path / "data.h5", "notes.txt")):
        path.mkdir()
        (path / inner).write_text("{}")
        with pytest.raises(
            FileExistsError, match=r"`path` must be new or a file of decompops; got .*, which decompops did not"
        ):
            io.write(path, {"u": U}, DEC)
        assert (path / inner).read_text() == "{}"
    file = tmp_path / "file.zarr"
    file.write_text("kept")
    with pytest.raises(FileExistsError, match="Choose another path, or remove what is there"):
        io.write(file, {"u": U}, DEC)
    assert file.read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"data.zarr", "data.h5", "file.zarr"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_snapshots_are_replaced_through_a_link(tmp_path, suffix):
    link = tmp_path / f"link{suffix}"
    (tmp_path / "disk").mkdir()
    link.symlink_to(tmp_path / "disk" / f"u{suffix}")
    for i in range(3):
        io.write(link, {"u": (i + 1) * U}, DEC)
        assert link.is_symlink()
        np.testing.assert_array_equal(io.read(link).arrays["u"], (i + 1) * U)
    assert not list((tmp_path / "disk").glob(".*"))


# Zarr and checkpoints refuse the first names. Only checkpoints refuse the others.
REFUSED, OF_PATTERNS = ("a\\b", "\udce9", "a.__lock"), ("[a]*{b}", "a**")
NAMES = ("a b", "a%20b#?|&", "日本", "*{b}", "a'\"b", "a\n\tb", "~", *REFUSED, *OF_PATTERNS)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_every_name_is_written_and_read_or_refused(tmp_path, name, kind):
    """No name is taken for another one. What is written comes back, or nothing is written anywhere."""
    for suffix in (*SUFFIXES, ""):
        top = tmp_path / f"top{suffix}"
        top.mkdir()
        path = top / f"{name}{suffix}"
        if kind == "folder":
            path = top / name / f"u{suffix}"
        if kind == "link":
            path = top / f"link{suffix}"
            path.symlink_to(top / f"{name}{suffix}")

        def write(path=path, suffix=suffix):
            if suffix:
                io.write(path, {"u": U}, DEC)
                return io.read(path).arrays
            with io.Checkpoints(path) as checkpoints:
                checkpoints.save(1, {"u": U})
            return io.Checkpoints(path).restore({"u": np.zeros_like(U)})

        refused = {".zarr": REFUSED, ".h5": (), "": (*REFUSED, *OF_PATTERNS)}[suffix]
        if name in refused:
            argument = "path" if suffix else "folder"
            with pytest.raises(ValueError, match=f"^`{argument}` must be UTF-8 without "):
                write()
            assert [found.is_symlink() for found in top.iterdir()] == [True] * (kind == "link")
        else:
            np.testing.assert_array_equal(write()["u"], U)


@pytest.mark.parametrize("suffix", [".zarr", ".h5", ".hdf5", ".xdmf"])
def test_the_longest_names_are_written_and_longer_ones_refused(tmp_path, suffix):
    """Temporary names are not longer than the names that a file system allows. Other snapshots stay."""
    io.write(tmp_path / "u.h5", {"u": U}, DEC)
    longest = 255 - {".h5": len(".xdmf") - len(".h5"), ".hdf5": len(".xdmf")}.get(suffix, 0)

    def write(name):
        if suffix == ".xdmf":
            return io.write_series(tmp_path / name, [tmp_path / "u.h5"])
        with io.Writer() as writer:
            writer.write(tmp_path / name, {"u": U}, DEC)
        return np.testing.assert_array_equal(io.read(tmp_path / name).arrays["u"], U)

    for length in (200, 201, 229, 230, longest):
        for start in ("a", "é"):
            name = start + "b" * (length - len(start.encode()) - len(suffix)) + suffix
            write(name)
            assert (tmp_path / name).exists()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match=r"File name too long: .*b"):
        write("b" * (longest + 1 - len(suffix)) + suffix)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["b" * 200, "b" * 230])
def test_a_leftover_gives_the_older_snapshot_back_to_its_own_name_only(tmp_path, name):
    paths = [tmp_path / f"{name}{digit}.zarr" for digit in (1, 2)]
    for time, path in enumerate(paths):
        io.write(path, {"u": U}, DEC, time=time)
    staging = Staging(paths[0], "1" * 16, 0, (0,), 1.0, format_of(paths[0])[0].check_own)
    staging.begin()
    staging._release()  # The program that wrote it has been killed.
    (staging.folder / "old0").mkdir()
    paths[0].rename(staging.folder / "old0" / paths[0].name)
    io.write(paths[1], {"u": U}, DEC, time=2)
    assert [io.read(path).time for path in paths] == [0, 2]
    io.write(paths[0], {"u": U}, DEC, time=3)
    assert io.read(paths[0]).time == 3
    assert not staging.folder.exists()


def test_a_snapshot_that_was_renamed_to_a_refused_name(tmp_path):
    io.write(tmp_path / "u.zarr", {"u": U}, DEC)
    (tmp_path / "u.zarr").rename(tmp_path / "a\\b.zarr")
    for read in (io.read, lambda path: io.Samples(path, DEC)):
        with pytest.raises(ValueError, match="`path` must be UTF-8 without"):
            read(tmp_path / "a\\b.zarr")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("s3://bucket", r"and no URL; got 's3:/.* pass `Path\('s3:/.*'\)\.absolute\(\)`"),
        (Path("gs://bucket"), "and no URL; got 'gs:/"),
        ("file:///tmp", "and no URL; got 'file:/"),
        ("~", r"must not begin with ~, .*; got '~.*Pass `Path\('~.*'\)\.expanduser\(\)`"),
    ],
)
def test_paths_that_the_system_takes_literally_are_refused(tmp_path, monkeypatch, folder, message):
    """They would be folders of the working directory, where nobody looks for the files."""
    monkeypatch.chdir(tmp_path)
    path = folder / "u" if isinstance(folder, Path) else f"{folder}/u"
    uses = {f"{path}.zarr": lambda path: io.write(path, {"u": U}, DEC), f"{path}.h5": io.read, path: io.Checkpoints}
    uses[f"{path}.xdmf"] = lambda path: io.write_series(path, ["u.h5"])
    for given, use in uses.items():
        with pytest.raises(ValueError, match=message):
            use(given)
    assert not list(tmp_path.iterdir())
    io.write(tmp_path / "a:b" / "~" / "u.h5", {"u": U}, DEC)


def test_checkpoints_in_the_parent_of_a_link(tmp_path):
    """The system resolves ".." from the folder that the link leads to."""
    (tmp_path / "disk/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk/deep")
    with io.Checkpoints(tmp_path / "link/../c") as checkpoints:
        checkpoints.save(1, {"u": U})
        np.testing.assert_array_equal(checkpoints.restore({"u": np.zeros_like(U)})["u"], U)
    assert (tmp_path / "disk/c").is_dir()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_leftovers_of_the_same_snapshot_are_removed(tmp_path, suffix):
    """A write removes only leftovers of earlier writes of the same snapshot, which no program uses any more.

    This is also true if the name contains wildcards such as `[1]`. The older snapshot in a leftover moves back.
    """
    for name in ("1", "[1]"):
        path = tmp_path / f"{name}{suffix}"
        io.write(path, {"u": U}, DEC, time=1)
        begun = [Staging(path, str(digit) * 16, 0, (0,), 1.0, format_of(path)[0].check_own) for digit in (1, 2)]
        for staging in begun:
            staging.begin()
        begun[0]._release()  # The program that wrote it has been killed.
        if name == "1":
            begun[1]._release()
    if suffix == ".zarr":
        begun[0].folder.joinpath("old0").mkdir()
        path.rename(begun[0].folder / "old0" / path.name)
        assert io.read(path).time == 1
    with pytest.raises(ValueError, match="`arrays` must be"), patch.object(type(format_of(path)[0]), "create", refuse):
        io.write(path, {"u": U}, DEC, time=2)
    assert io.read(path).time == 1
    io.write(path, {"u": U}, DEC, time=3)
    assert io.read(path).time == 3
    assert not begun[0].folder.exists()
    assert begun[1].folder.exists()
    assert len(list(tmp_path.glob(f".1{suffix}.*"))) == 2
    begun[1]._release()


def refuse(*_: object) -> None:
    raise ValueError("`arrays` must be others")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_all_is_on_disk_before_the_snapshot_appears(tmp_path, monkeypatch, suffix):
    synced, fsync, replace = set(), os.fsync, os.replace
    missing = []

    def recorded(handle):
        synced.add(os.stat(handle).st_ino)
        fsync(handle)

    def checked(new, path):
        if Path(path) == tmp_path / f"u{suffix}":
            written = [Path(new), *Path(new).rglob("*")]
            # These files must be synced by decompops. tensorstore itself syncs the files of arrays.
            own = [file for file in written if file.is_dir() or file.parent == Path(new) or file == Path(new)]
            missing.extend(file for file in own if file.stat().st_ino not in synced)
        replace(new, path)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(os, "replace", checked)
    io.write(tmp_path / f"u{suffix}", {"u": U}, DEC, time=1.0)
    assert io.read(tmp_path / f"u{suffix}").time == 1
    assert not missing


def test_two_suffixes_have_two_xdmf_files(tmp_path):
    for suffix, sign in ((".h5", 1), (".hdf5", -1)):
        io.write(tmp_path / f"u{suffix}", {"u": sign * U}, DEC)
    for name, sign in (("u.xdmf", 1), ("u.hdf5.xdmf", -1)):
        reader = vtkXdmfReader()
        reader.SetFileName(str(tmp_path / name))
        reader.Update()
        values = vtk_to_numpy(reader.GetOutputDataObject(0).GetPointData().GetArray("u"))
        np.testing.assert_array_equal(values.reshape(SHAPE[::-1]).T, sign * U)


@pytest.mark.parametrize("shape", [(5,), (4, 3), (3, 2, 2, 2)])
def test_only_grids_that_xdmf_has_get_an_xdmf_file(tmp_path, plain, shape):
    dec = plain.Decomposition(make_mesh((1,)), shape=shape, axes=() if len(shape) == 1 else ("x",))
    plain.io.write(tmp_path / "u.h5", {"u": np.ones(shape)}, dec)
    assert (tmp_path / "u.xdmf").exists() == (len(shape) == 2)
    if len(shape) != 2:
        with pytest.raises(
            ValueError, match="`snapshots` must be HDF5 files of fields on grids with two or three axes"
        ):
            plain.io.write_series(tmp_path / "series.xdmf", [tmp_path / "u.h5"])
