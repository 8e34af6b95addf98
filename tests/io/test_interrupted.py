"""Tests of snapshots when programs are killed while they write, and when the disk is full.

PYTHONPATH=tests/support python tests/io/test_interrupted.py 200    # kills 200 programs; the tests kill only a few
"""

import errno
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import product
from pathlib import Path
from unittest.mock import patch

import decompops as dops
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import io
from decompops.io import _hdf5, _staging
from decompops.io._staging import Staging
from decompops.io._zarr import Zarr

from helpers import make_mesh, random_field, thinned
from processes import Rank, free_port, report, start, wait


WRITER = Path(__file__).with_name("writer.py")
CELLS = random_field((3, 64, 16, 16)).astype(np.float32)


def commands(folder: Path, suffix: str, processes: int, *options: object) -> list[list]:
    shared = [WRITER, folder, suffix, "--processes", processes, "--devices", 4 // processes, "--port", free_port()]
    return [[*shared, "--rank", rank, *options] for rank in range(processes)]


def numbers(rank: Rank) -> list[int]:
    """Return the numbers of the snapshots that the first process began to write, from its output."""
    return [int(line) for line in re.findall(r"^(\d+)\n", rank.output, flags=re.MULTILINE)]


def check(folder: Path, suffix: str, begun: list[int]) -> None:
    """Assert that all snapshots are complete, and that only the snapshot that was begun last may be missing."""
    if suffix == "checkpoints":
        check_checkpoints(folder, begun)
        return
    found = {path: io.read(path) for path in folder.glob(f"[!.]*{suffix}")}
    for path, snapshot in found.items():
        for name, sign in (("u", 1), ("v", -1)):
            np.testing.assert_array_equal(snapshot.arrays[name], np.float32(sign * snapshot.time) * CELLS, str(path))
    done = [i for i in begun if i < max(begun, default=0)]
    assert {f"{i:06}" for i in done if i % 3 == 0} <= {path.name.removesuffix(suffix) for path in found}
    if replaced := [i for i in done if i % 3]:
        assert io.read(folder / f"last{suffix}").time >= max(replaced)


def check_checkpoints(folder: Path, begun: list[int]) -> None:
    like = jnp.zeros((3, 64, 16, 16), jnp.float32)
    with io.Checkpoints(folder) as checkpoints:
        latest = checkpoints.latest or 0  # The first checkpoint has number 1.
        assert latest >= max(begun) - 1
        if latest:
            found = checkpoints.restore({"u": like, "v": like})
            np.testing.assert_array_equal(found["u"], latest * CELLS)
            np.testing.assert_array_equal(found["v"], -latest * CELLS)


def kill_while_writing(folder: Path, suffix: str, processes: int, after: float, begun: int = 1) -> None:
    """Start the program, kill it `after` seconds after it begins snapshot number `begun`, and check the files."""
    logs = Path(tempfile.mkdtemp(dir=folder.parent))
    with start(logs, commands(folder, suffix, processes)) as ranks:
        deadline = time.monotonic() + 60
        while len(numbers(ranks[0])) < begun:
            assert time.monotonic() < deadline, report(ranks)
            assert not ranks[0].has_ended(), report(ranks)
            time.sleep(0.01)
        time.sleep(after)
    check(folder, suffix, numbers(ranks[0]))


@pytest.mark.parametrize(
    ("suffix", "processes"),
    thinned(product((".zarr", ".h5", "checkpoints"), (1, 2)), lambda suffix, n: (suffix == ".h5") == (n == 1)),
)
def test_killed_while_writing(tmp_path, suffix, processes):
    """Killed programs leave only complete snapshots. A second program writes to the folder of the first one."""
    folder = tmp_path / "run"
    folder.mkdir()
    for after in (0.3, 0.2):
        kill_while_writing(folder, suffix, processes, after)


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a disk of 8 MB at a folder. Yields whether this process may mount a disk."""
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder]
    is_mounted = shutil.which("mount") is not None and not subprocess.run(command, capture_output=True).returncode
    try:
        yield is_mounted
    finally:
        if is_mounted:
            # A thread of tensorstore may close the last file a moment later, so the disk is only detached.
            subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, ranks: list[Rank], limit: float) -> None:
    """Fill the disk of a folder, and keep it full until the ranks have ended."""
    deadline = time.monotonic() + limit
    with (folder / "filler").open("wb", buffering=0) as file:
        while time.monotonic() < deadline and not all(rank.has_ended() for rank in ranks):
            try:
                file.write(bytes(4096))
            except OSError:
                time.sleep(0.01)


@pytest.mark.parametrize(
    ("suffix", "processes", "is_real"),
    [
        pytest.param(".zarr", 1, False, marks=pytest.mark.sweep),
        (".h5", 1, False),
        (".zarr", 2, True),
        pytest.param(".h5", 2, True, marks=pytest.mark.sweep),
        ("checkpoints", 2, True),
    ],
)
def test_full_disk(tmp_path, suffix, processes, is_real):
    """If the disk is full, all processes end, an error names the cause, and all older snapshots stay.

    The test fills a small disk if this process may mount one. If not, a limit on the size of files has the same effect.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    with small_disk(folder) if is_real else nullcontext(False) as is_mounted:
        limit = () if is_mounted else ("--limit", 300_000 if suffix == ".h5" else 30_000)
        with start(tmp_path, commands(folder, suffix, processes, *limit)) as ranks:
            while len(numbers(ranks[0])) < 4 and not ranks[0].has_ended():
                time.sleep(0.01)
            fill(folder, ranks, 60) if is_mounted else wait(ranks, 60)
            assert all(rank.code for rank in ranks), report(ranks)
        causes = "^OSError: .*(too large|Too large|No space left on device)"
        assert any(re.search(causes, rank.output, re.M) for rank in ranks), report(ranks)
        told = f"{causes}|^RuntimeError: .* was not written"
        assert all(re.search(told, rank.output, re.M) for rank in ranks), report(ranks)
        assert len(numbers(ranks[0])) >= 4, report(ranks)
        check(folder, suffix, numbers(ranks[0]))


def make_staging(folder: Path, process: int) -> Staging:
    return Staging(folder / "a.zarr", 16 * "1", process, (0, 1), 20.0, Zarr().check_own)


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failure_is_told_on_a_full_disk(tmp_path, monkeypatch):
    """A process that looks only after another one has failed ends at once, even if no file could be created."""
    first, second = (make_staging(tmp_path, process) for process in (0, 1))
    first.begin()
    with monkeypatch.context() as full_disk:
        full_disk.setattr(Path, "touch", fail)
        full_disk.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="No space left on device"):
            first.run(fail, fail)
    with pytest.raises(RuntimeError, match=r"a\.zarr was not written, because process 0 failed: OSError: .*No space"):
        second.run(fail, fail)


def test_closing_raises_the_errors_of_wait(tmp_path):
    """The last checkpoint of a `with` block is usually the one that no other call waits for."""
    full = ValueError("RESOURCE_EXHAUSTED: No space left on device\nmore")
    for _ in range(2):  # The folder is free again.
        checkpoints = io.Checkpoints(tmp_path)
        checkpoints.claim()
        with (
            patch.object(checkpoints._manager, "wait_until_finished", side_effect=[full, None]),
            pytest.raises(OSError, match=r"a checkpoint in .* was not written: RESOURCE_EXHAUSTED: No .* device$"),
            checkpoints,
        ):
            pass


def test_an_error_of_hdf5_is_an_os_error(tmp_path, monkeypatch):
    """HDF5 raises `RuntimeError`, with a message of several lines, if a disk becomes full while h5py writes to it."""

    def fill(*_: object) -> None:
        raise RuntimeError("file write failed: time = Wed Nov 25\n, error message = 'No space left on device'")

    monkeypatch.setattr(_hdf5, "_reserve", fill)
    dec = dops.Decomposition(make_mesh((1,)), shape=(4, 4, 4))
    with pytest.raises(OSError, match=r"time = Wed Nov 25 , error message = 'No space left on device'$"):
        io.write(tmp_path / "a.h5", {"u": dec.shard(random_field((4, 4, 4)))}, dec)
    assert not list(tmp_path.iterdir())


class Killed(BaseException):
    """Ends a program like a signal."""


def test_killed_while_removing(tmp_path, monkeypatch):
    """The next write removes what is left, however much of a temporary folder a killed program has removed."""
    dec = dops.Decomposition(make_mesh((1, 1)), shape=(4, 4, 4))
    path, u, calls = tmp_path / "u.zarr", random_field((4, 4, 4)), 0
    io.write(path, {"u": u}, dec, time=0)

    def killed_at_the_last_call(function):
        def call(*args, **options):
            nonlocal calls
            calls -= 1
            if calls == 0:
                raise Killed
            return function(*args, **options)

        return call

    for kill in range(1, 100):
        staging = Staging(path, 16 * "1", 0, (0,), 20.0, Zarr().check_own)
        staging.begin()
        shutil.copytree(path, staging.folder / "old0" / path.name)
        calls = kill
        with monkeypatch.context() as patched:
            for name in ("unlink", "rmdir", "rename"):
                patched.setattr(os, name, killed_at_the_last_call(getattr(os, name)))
            with suppress(Killed):
                staging.remove()
        if calls > 0:
            break
        io.write(path, {"u": u}, dec, time=kill)
        assert io.read(path).time == kill
        assert not list(tmp_path.glob(".*/*"))
        shutil.rmtree(staging.folder, ignore_errors=True)  # Without its mark, it stays, but is empty.
    assert kill > 10
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_removed_folder_ends_a_write(tmp_path, monkeypatch):
    monkeypatch.setattr(_staging, "VISIBLE", 0.1)
    staging = make_staging(tmp_path, 1)
    with pytest.raises(RuntimeError, match=r"because its temporary folder .*\.partial is missing"):
        staging.run(fail, fail)


def main(kills: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        for i in range(kills):
            suffix, processes = random.choice((".zarr", ".h5", "checkpoints")), random.choice((1, 1, 2))
            folder = Path(base) / f"{suffix.strip('.')}-{processes}"
            folder.mkdir(exist_ok=True)
            kill_while_writing(folder, suffix, processes, random.random())
            print(f"\r{i + 1} of {kills}", end="", flush=True)
    print()


if __name__ == "__main__":
    main(int(sys.argv[1]))
