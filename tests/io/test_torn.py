"""Tests of `io.read` while another program writes snapshots to the same path."""

import errno
import time
from pathlib import Path

import decompops as dops
import numpy as np
import pytest
from decompops import io
from decompops.io import _read, _staging, _zarr
from decompops.io._formats import format_of

from helpers import make_mesh, random_field
from processes import start


SHAPE = (4, 3, 2)
DEC = dops.Decomposition(make_mesh((2, 1)), shape=SHAPE)
U = random_field((2, *SHAPE))
SUFFIXES = (".zarr", ".h5")
WRITER = Path(__file__).with_name("writer.py")


def write(path, t):
    io.write(path, {"u": t * U, "v": -t * U}, DEC, time=t)


def is_whole(snapshot):
    t = snapshot.time
    return np.array_equal(snapshot.arrays["u"], t * U) and np.array_equal(snapshot.arrays["v"], -t * U)


@pytest.mark.parametrize("grid", [None, DEC])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_snapshot_is_replaced_while_it_is_read(tmp_path, monkeypatch, suffix, number, grid):
    """A new snapshot appears after one or two blocks of the old one were read."""
    path, reads = tmp_path / f"u{suffix}", []
    write(path, 1)
    file = format_of(path)[0].open(path)
    original = type(file).read
    file.close()

    def read(self, *arguments):
        original(self, *arguments)
        reads.append(0)
        if len(reads) == number:
            write(path, 2)

    monkeypatch.setattr(type(file), "read", read)
    assert is_whole(io.read(path, grid))
    assert len(reads) >= number


def test_a_snapshot_that_is_replaced_again_and_again(tmp_path, monkeypatch):
    path, times = tmp_path / "u.zarr", []
    write(path, 1)
    original = _read._read

    def read(*arguments):
        times.append(len(times) + 2)
        write(path, times[-1])
        return original(*arguments)

    monkeypatch.setattr(_read, "_read", read)
    with pytest.raises(RuntimeError, match="stay the same while it is read; got other ones in 20 attempts"):
        io.read(path)


def test_the_old_snapshot_is_read_while_a_new_one_moves(tmp_path, monkeypatch):
    """Between the two renames of a folder, the old snapshot is found elsewhere. Its removal is not taken for damage."""
    path, seen = tmp_path / "u.zarr", []
    write(path, 1)
    rename = _staging.os.rename

    def rename_and_read(old, new):
        rename(old, new)
        if Path(old) == path:
            seen.append(io.read(path))

    monkeypatch.setattr(_staging.os, "rename", rename_and_read)
    write(path, 2)
    assert is_whole(seen[0])
    assert seen[0].time == 1
    assert io.read(path).time == 2


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), KeyboardInterrupt()])
def test_the_old_snapshot_stays_if_the_new_one_cannot_move(tmp_path, monkeypatch, error):
    """Between the two renames of a folder, the old snapshot lies in the temporary folder, which is then removed."""
    path, rename = tmp_path / "u.zarr", _staging.os.rename
    write(path, 1)

    def fail_to_rename(old, new):
        if Path(new) == path and Path(old).parent.name == "new":
            raise error
        rename(old, new)

    monkeypatch.setattr(_staging.os, "rename", fail_to_rename)
    with pytest.raises(type(error)):
        write(path, 2)
    monkeypatch.undo()
    assert io.read(path).time == 1
    assert list(tmp_path.iterdir()) == [path]


def test_two_programs_write_to_one_path(tmp_path, monkeypatch):
    """Another snapshot appears between the two renames of a folder. Both are written, and the last one stays."""
    path, rename, others = tmp_path / "u.zarr", _staging.os.rename, [3, 4]
    write(path, 1)

    def rename_after_others(old, new):
        rename(old, new)
        if Path(old) == path and others:
            write(path, others.pop())

    monkeypatch.setattr(_staging.os, "rename", rename_after_others)
    write(path, 2)
    assert not others
    assert is_whole(io.read(path))
    assert io.read(path).time == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_snapshot_is_replaced_while_a_writer_looks_at_it(tmp_path, monkeypatch):
    path, foreign, others = tmp_path / "u.zarr", _zarr._foreign, [3, 4]
    write(path, 1)

    def torn(folder):
        if folder == path and others:
            write(path, others.pop())
            if others:
                raise FileNotFoundError(f"{folder} is elsewhere")
            yield folder / "v"
        yield from foreign(folder)

    monkeypatch.setattr(_zarr, "_foreign", torn)
    write(path, 2)
    assert not others
    assert io.read(path).time == 2


@pytest.mark.sweep
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_reader_beside_a_writer(tmp_path, suffix):
    """A reader never sees a mixture of two snapshots, nor an error, while a program replaces them for 20 seconds."""
    reads, cells = 0, None
    logs = tmp_path / "logs"
    logs.mkdir()
    with start(logs, [[WRITER, tmp_path, suffix, "--devices", "1"]]):
        path, begin = tmp_path / f"last{suffix}", time.monotonic()
        while not path.exists() and time.monotonic() < begin + 60:
            time.sleep(0.05)
        begin = time.monotonic()
        while time.monotonic() < begin + 20:
            snapshot = io.read(path)
            u, v = snapshot.arrays["u"], snapshot.arrays["v"]
            cells = u / np.float32(snapshot.time) if cells is None else cells
            np.testing.assert_array_equal(u, -v)
            np.testing.assert_allclose(u, cells * np.float32(snapshot.time), rtol=1e-5)
            reads += 1
    assert reads > 20
