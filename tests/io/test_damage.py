"""Tests of damaged files and of files of other programs: a read returns what was written, or raises `ValueError`."""

import json
import shutil
import time

import decompops as dops
import h5py
import numpy as np
import pytest
from decompops import io
from decompops.io import _hdf5, _snapshot

from helpers import make_mesh, random_field


SUFFIXES = (".zarr", ".h5")
SHAPE = (4, 3, 2)
DEC = dops.Decomposition(make_mesh((1, 1)), shape=SHAPE)
U = random_field((2, *SHAPE))
OPTIONS = {"box": dops.Box((1.0, 2.0, 3.0)), "time": 0.5, "units": {"u": "m/s"}, "attributes": {"a": [1.5, 2.5]}}


@pytest.fixture(scope="module", params=SUFFIXES)
def small(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / f"u{request.param}"
    io.write(path, {"u": U}, DEC, **OPTIONS)
    return path


def assert_as_written(snapshot):
    np.testing.assert_array_equal(snapshot.arrays["u"], U)
    assert list(snapshot.arrays) == ["u"]
    assert (snapshot.time, snapshot.box) == (OPTIONS["time"], OPTIONS["box"])
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
            dec = dops.Decomposition(make_mesh((1, 1)), shape=SHAPE)
            other = path.with_name("other.zarr")
            io.write(other, {"u": U}, dec, **OPTIONS | {"time": 0.6, "box": dops.Box((1.1, 2.0, 3.0))})
            name = "time" if how == "time" else "x"
            shutil.rmtree(path / name)
            shutil.copytree(other / name, path / name)
    (path / "zarr.json").write_text(json.dumps(group))


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
    places = _hdf5.HDF5().open(tmp_path / "u.h5").places["u"]
    assert time.perf_counter() - start < 4
    assert len(places.offsets) == 32 * 32 * 16
