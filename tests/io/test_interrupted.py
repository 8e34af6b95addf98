"""Tests of snapshots when programs are killed while they write, and when the disk is full.

PYTHONPATH=tests python tests/io/test_interrupted.py 200    # This kills 200 programs. The tests kill a few.
"""

import random
import re
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from decompops import io

from processes import Rank, free_port, report, start, wait


WRITER = Path(__file__).with_name("writer.py")


def commands(folder: Path, suffix: str, processes: int, *options: object) -> list[list]:
    shared = [WRITER, folder, suffix, "--processes", processes, "--devices", 4 // processes, "--port", free_port()]
    return [[*shared, "--rank", rank, *options] for rank in range(processes)]


def numbers(rank: Rank) -> list[int]:
    """Return the numbers of the snapshots that the first process began to write, from its output."""
    return [int(line) for line in re.findall(r"^(\d+)\n", rank.output, flags=re.MULTILINE)]


def check(folder: Path, suffix: str, begun: list[int]) -> None:
    """Assert that all snapshots are complete, and that at most the last begun snapshot is missing."""
    if suffix == "checkpoints":
        check_checkpoints(folder, begun)
        return
    found = {path: io.read(path) for path in folder.glob(f"[!.]*{suffix}")}
    for path, snapshot in found.items():
        for name, sign in (("u", 1), ("v", -1)):
            assert np.all(snapshot.arrays[name] == np.float32(sign * snapshot.time)), path
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
            assert np.all(found["u"] == latest)
            assert np.all(found["v"] == -latest)


def kill_while_writing(folder: Path, suffix: str, processes: int, after: float, begun: int = 1) -> None:
    """Start the program, kill it `after` seconds after it began its snapshot number `begun`, and check the files."""
    logs = Path(tempfile.mkdtemp(dir=folder.parent))
    with start(logs, commands(folder, suffix, processes)) as ranks:
        deadline = time.monotonic() + 60
        while len(numbers(ranks[0])) < begun:
            assert time.monotonic() < deadline, report(ranks)
            assert not ranks[0].has_ended(), report(ranks)
            time.sleep(0.01)
        time.sleep(after)
    check(folder, suffix, numbers(ranks[0]))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("suffix", [".zarr", ".h5", "checkpoints"])
def test_killed_while_writing(tmp_path, suffix, processes):
    """Killed programs leave only complete snapshots. A second program writes to the folder of the first one."""
    folder = tmp_path / "run"
    folder.mkdir()
    for after in (0.3, 0.2):
        kill_while_writing(folder, suffix, processes, after)


@pytest.mark.parametrize(
    ("suffix", "limit", "processes"), [(".zarr", 30_000, 1), (".h5", 300_000, 1), (".zarr", 30_000, 2)]
)
def test_full_disk(tmp_path, suffix, limit, processes):
    """If the disk is full, every process raises an error that names the cause, and the older snapshot stays."""
    folder = tmp_path / "run"
    folder.mkdir()
    kill_while_writing(folder, suffix, processes, 0.3, begun=3)  # The second snapshot, the first `last`, is complete.
    before = io.read(folder / f"last{suffix}")
    with start(tmp_path, commands(folder, suffix, processes, "--limit", limit)) as ranks:
        wait(ranks, limit=60)
        assert all(rank.code for rank in ranks), report(ranks)
        for rank in ranks:
            assert re.search(
                r"^OSError: .*(too large|Too large)|^RuntimeError: .* was not written, because process",
                rank.output,
                re.M,
            ), report(ranks)
    after = io.read(folder / f"last{suffix}")
    assert after.time == before.time
    np.testing.assert_array_equal(after.arrays["u"], before.arrays["u"])


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
