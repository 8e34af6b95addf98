"""Tests of damaged files and of files of other programs: a read returns what was written, or raises `ValueError`."""

import gzip
import json
import os
import resource
import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import decompops as dops
import h5py
import numpy as np
import pytest
from decompops import io
from decompops.io import _hdf5, _snapshot, _zarr
from decompops.io._seal import seal

from files import files_left
from helpers import make_mesh, random_field


SUFFIXES = (".zarr", ".h5")
SHAPE = (4, 3, 2)
BOX = dops.Box((1.0, 2.0, 3.0))
DEC = dops.Decomposition(make_mesh((1, 1)), shape=SHAPE, box=BOX)
U = random_field((2, *SHAPE))
OPTIONS = {"time": 0.5, "units": {"u": "m/s"}, "attributes": {"a": [1.5, 2.5]}}


@pytest.fixture(scope="module", params=SUFFIXES)
def small(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / f"u{request.param}"
    io.write(path, {"u": U}, DEC, **OPTIONS)
    return path


def assert_as_written(snapshot):
    np.testing.assert_array_equal(snapshot.arrays["u"], U)
    assert list(snapshot.arrays) == ["u"]
    assert (snapshot.time, snapshot.box) == (OPTIONS["time"], BOX)
    assert (snapshot.units, snapshot.attributes) == (OPTIONS["units"], OPTIONS["attributes"])


def test_flipped_bits_are_found_or_harmless(tmp_path, small):
    copy = tmp_path / small.name
    shutil.copytree(small, copy) if small.is_dir() else shutil.copy(small, copy)
    files = sorted(file for file in copy.rglob("*") if file.is_file()) or [copy]
    generator, refused = np.random.default_rng(0), 0
    for flip in range(400):
        file = files[flip % len(files)]
        data = file.read_bytes()
        at, bit = generator.integers(len(data)), generator.integers(8)
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :])
        try:
            assert_as_written(io.read(copy))
        except ValueError:
            refused += 1
        file.write_bytes(data)
    assert refused > 10
    assert_as_written(io.read(copy))


def change(path, how):
    """Change a snapshot as another program would."""
    if path.suffix == ".h5":
        with h5py.File(path, "a") as file:
            match how:
                case "group":
                    file.create_group("group")
                case "lengths":
                    file.attrs["lengths"] = 3
                case "name":
                    file["u"].attrs["NAME"] = "a text"
                case "time":
                    file["time"][()] = 0.50001526
                case "attribute":
                    del file.attrs["a"]
                case "coordinate":
                    file["x"][1] += 1e-9
        return
    group = json.loads((path / "zarr.json").read_text())
    members = group["consolidated_metadata"]["metadata"]
    match how:
        case "group":
            members["u"] = ["a list"]
        case "lengths":
            group["attributes"]["lengths"] = 3
        case "name":
            members["u"]["dimension_names"] = 3
        case "attribute":
            del group["attributes"]["a"]
        case "time" | "coordinate":
            dec = dops.Decomposition(DEC, box=dops.Box((1.1, 2.0, 3.0)))
            other = path.with_name("other.zarr")
            io.write(other, {"u": U}, dec, **OPTIONS | {"time": 0.6})
            name = "time" if how == "time" else "x"
            shutil.rmtree(path / name)
            shutil.copytree(other / name, path / name)
    (path / "zarr.json").write_text(json.dumps(group))


def test_a_file_that_cannot_be_opened_now_is_not_damaged(small):
    with files_left(0), pytest.raises(OSError, match=f"Too many open files.*{small}"):
        io.read(small)
    assert_as_written(io.read(small))


@pytest.mark.parametrize("how", ["group", "lengths", "name", "time", "attribute", "coordinate"])
def test_a_file_that_another_program_changed_is_refused(tmp_path, small, how):
    copy = tmp_path / small.name
    shutil.copytree(small, copy) if small.is_dir() else shutil.copy(small, copy)
    change(copy, how)
    with pytest.raises(ValueError, match="is damaged: "):
        io.read(copy)


@pytest.mark.parametrize("version", [1, 3])
def test_the_version_is_read_first(tmp_path, small, version):
    """A file of another format version is refused because of its version, before anything else is read."""
    copy = tmp_path / small.name
    if small.is_dir():
        copy.mkdir()
        (copy / "zarr.json").write_text(json.dumps({"attributes": {"decompops_format": version}}))
    else:
        with h5py.File(copy, "w") as file:
            file.create_group("group")
            file.attrs["decompops_format"] = version
    with pytest.raises(ValueError, match=f"must be a snapshot of format 2; got .* of format {version}, which"):
        io.read(copy)


def test_a_file_with_many_chunks_opens_fast(tmp_path, monkeypatch):
    """The time to find the chunks of an array does not grow with the square of the number of chunks."""
    monkeypatch.setattr(_snapshot, "chunk_shape", lambda lengths, itemsize: (1,) * len(lengths))
    shape = (32, 32, 16)
    io.write(tmp_path / "u.h5", {"u": np.ones(shape)}, dops.Decomposition(make_mesh((1, 1)), shape=shape))
    start = time.perf_counter()
    with closing(_hdf5.HDF5().open(tmp_path / "u.h5")) as file:
        places = file.places["u"]
    assert time.perf_counter() - start < 4
    assert len(places.offsets) == 32 * 32 * 16


# --- Crafted files ---


def edit_zarr(path, change_member, name="u", group=None):
    """Change the description of an array in both places where it is stored, and make the checksum right."""
    text = json.loads((path / "zarr.json").read_text())
    members = text["consolidated_metadata"]["metadata"]
    member = members.pop(name)
    name = change_member(member) or name
    members[name] = member
    (path / "zarr.json").write_text(json.dumps(text))
    (path / name / "zarr.json").write_text(json.dumps(member))


def bomb(member):
    """Let a few bytes decompress to gigabytes."""
    member["codecs"].append({"name": "gzip", "configuration": {"level": 9}})
    member["codecs"][1:2] = []
    member["shape"] = [2**25]
    member["chunk_grid"]["configuration"]["chunk_shape"] = [2**25]


def huge(member):
    member["shape"][-1] = 2**60


def huge_chunk(member):
    huge(member)
    member["chunk_grid"]["configuration"]["chunk_shape"][-1] = 2**60


def craft_hdf5(path, how):
    """Write a file whose seal is right, as somebody could who knows the format."""
    other = path.with_name("other.h5")
    with h5py.File(other, "w") as file:
        file["secret"] = np.arange(4.0)
    with h5py.File(path, "a") as file:
        del file["x"]
        match how:
            case "made up":
                file.create_dataset("x", (2**30,), "f8", fillvalue=1.0)
            case "decompressed":
                file.create_dataset("x", (2**26,), "f8", compression="gzip", data=np.zeros(2**26))
            case "link":
                file["x"] = h5py.ExternalLink(str(other), "secret")
            case "external":
                file.create_dataset("x", (4,), "f8", external=[(str(other), 0, 32)])
            case "virtual":
                layout = h5py.VirtualLayout((4,), "f8")
                layout[:] = h5py.VirtualSource(str(other), "secret", (4,))
                file.create_virtual_dataset("x", layout)
        if how != "link":
            file["x"].make_scale("x")
    seal(path, [])


CRAFTED = {
    "a bomb": lambda path: (
        edit_zarr(path, bomb, "x"),
        (path / "x" / "c" / "0").write_bytes(gzip.compress(bytes(2**28))),
    ),
    "a huge shape": lambda path: edit_zarr(path, huge),
    "a huge chunk": lambda path: edit_zarr(path, huge_chunk),
    "a huge coordinate": lambda path: edit_zarr(path, huge_chunk, "x"),
    "an absolute path": lambda path: edit_zarr(path, lambda _: str(path.parent / "other.zarr" / "u")),
    "a relative path": lambda path: edit_zarr(path, lambda _: "../other.zarr/u"),
    "a link": lambda path: ((path / "u").rename(path / "v"), (path / "u").symlink_to(path / "v")),
    "a pipe for a chunk": lambda path: replace_by_pipe(next(path.glob("u/c/**/0"), path)),
    "a pipe for a description": lambda path: replace_by_pipe(path / "u" / "zarr.json"),
    "a pipe for all": lambda path: replace_by_pipe(path / "zarr.json"),
}


def replace_by_pipe(path):
    path = next(file for file in (path, *path.rglob("*")) if file.is_file())
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("thing", [*CRAFTED, "made up", "decompressed", "link", "external", "virtual", "a pipe"])
def test_crafted_files_are_refused_soon(tmp_path, thing):
    """Reading takes little memory and time before it raises an error, and never reads other files."""
    path = tmp_path / ("u.zarr" if thing in CRAFTED else "u.h5")
    io.write(path, {"u": U}, DEC, **OPTIONS)
    io.write(tmp_path / "other.zarr", {"u": U}, DEC, **OPTIONS)
    if thing == "a pipe":
        replace_by_pipe(path)
    elif thing in CRAFTED:
        CRAFTED[thing](path)
    else:
        craft_hdf5(path, thing)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, limits[1]))
    try:
        with pytest.raises(
            ValueError, match=r"is damaged: .*(not a|not the name|not stored|H5DS|codecs|overflow|checksum)"
        ):
            io.read(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_an_array_that_is_too_large_for_the_memory(tmp_path):
    """Somebody has given a file a huge shape, more than a process can address, and the right checksum for it."""
    path = tmp_path / "u.zarr"
    io.write(path, {"u": U}, DEC)
    edit_zarr(path, lambda member: member.update(shape=[2, *(2**15,) * 3]))
    with patch.object(_zarr, "check_contents", lambda contents: contents):
        contents = _zarr.Zarr().open(path).contents
    contents = replace(contents, attributes=contents.attributes | {"lengths": [2**15] * 3})
    text = json.loads((path / "zarr.json").read_text())
    text["attributes"] |= {"lengths": [2**15] * 3, "decompops_checksum": contents.checksum}
    (path / "zarr.json").write_text(json.dumps(text))
    for grid in (None, dops.Decomposition(make_mesh((1, 1)), shape=(2**15,) * 3)):
        with pytest.raises(
            MemoryError, match=r"`path` must have arrays that fit .*'u' has the shape \(2, 32768, 32768,"
        ):
            io.read(path, grid)
