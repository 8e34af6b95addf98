"""Tests of files and checkpoints of two processes, where one process fails or holds no data."""

import json
import re
from pathlib import Path

from processes import Rank, report, start, wait, worker


RANK = Path(__file__).with_name("rank.py")


def run(tmp_path: Path, task: str) -> list[Rank]:
    """Run a task in two processes. A process waits for the other process only until a time limit."""
    logs, folder = tmp_path / "logs", tmp_path / "folder"
    logs.mkdir()
    folder.mkdir()
    with start(logs, worker(RANK, task, 2, 2, "--folder", folder)) as ranks:
        wait(ranks, limit=90)
        assert [rank.code for rank in ranks] == [0, 0], report(ranks)
    return ranks


def lines(rank: Rank, pattern: str) -> list[str]:
    """What a task says begins with "> ". Libraries, too, print errors when a process fails."""
    said = "\n".join(re.findall("^> (.*)$", rank.output, flags=re.MULTILINE))
    return re.findall(pattern, said, flags=re.MULTILINE)


def test_a_mesh_without_the_first_process(tmp_path):
    ranks = run(tmp_path, "elsewhere")
    message = r"^ValueError: `grid` must have a mesh with devices of this process; got .* on process 0\.$"
    assert len(lines(ranks[0], message)) == 2, report(ranks)
    assert len(lines(ranks[1], "^written$")) == 2, report(ranks)
    assert lines(ranks[1], r"^simulate: `checkpoint` must be None on a mesh .* the processes \[1\] of 2"), report(ranks)
    message = (
        "refused: `(?:tree|like)` must have arrays on meshes with devices of every process; got .* processes .1., for u"
    )
    for rank in ranks:
        found = lines(rank, "^(?:passed|refused: .*)$")
        assert [bool(re.match(message, line)) for line in found] == [True, False] * 2, report(ranks)


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path):
    """If process 0 cannot write to the folder, both processes raise an error at once.

    Without an exchange of errors, the second process would wait until its timeout.
    """
    ranks = run(tmp_path, "unwritable")
    assert len(lines(ranks[0], "^NotADirectoryError after short")) == 3, report(ranks)
    assert lines(ranks[0], "^FileExistsError after short: .*`path` must be new or a file of decompops"), report(ranks)
    told = "^RuntimeError after short: .*checkpoints cannot be written to, because process 0 failed: Not a directory"
    assert len(lines(ranks[1], told)) == 2, report(ranks)
    for reason in ("Not a directory", "File exists"):
        told = f"^RuntimeError after short: .* was not written, because process 0 failed: {reason}"
        assert lines(ranks[1], told), report(ranks)


def test_a_failure_is_told_and_leaves_no_files(tmp_path):
    ranks = run(tmp_path, "failing")
    for rank, other in zip(ranks, reversed(ranks)):
        told = f"^RuntimeError: .* was not written, because process {ranks.index(other)} failed"
        assert len(lines(rank, told)) == 2, report(ranks)
    assert not list((tmp_path / "folder").iterdir())


def test_processes_that_save_different_checkpoints_are_told_at_once(tmp_path):
    """All processes raise errors of one type, and the next checkpoint is complete.

    Without a comparison, all processes would wait for each other for up to 20 minutes.
    """
    ranks = run(tmp_path, "disagreeing")
    for number, rank in enumerate(ranks):
        found = lines(rank, "^(?:Value|Type)Error: .*")
        differ = rf"ValueError: every process must save .*; processes \[{1 - number}\] differ from "
        expected = [
            *[differ + f"process {number}, which writes checkpoint"] * 7,
            "ValueError: .*`step` must be larger than the newest checkpoint, 1; got 1",
            "TypeError: .*`tree` must have dtypes that a checkpoint stores, .* got object for a",
            "TypeError: .*`description` must have strings",
            "ValueError: .*`like` must have arrays on a mesh or on a device of this process, 1; got ",
            rf"ValueError: every process must pass .* shardings in `like`.*; processes \[{1 - number}\] differ from ",
            "TypeError: `arrays` must have dtypes that a .zarr file stores",
            "TypeError: `arrays` must have dtypes that a .h5 file stores",
        ]
        assert len(found) == len(expected), report(ranks)
        for message, pattern in zip(found, expected):
            assert re.match(pattern, message), report(ranks)
        for message in found[7:11]:
            assert ("process 1 failed" in message) == (number == 0), report(ranks)
        assert lines(rank, r"^steps \[1, 2\], t 1\.0$"), report(ranks)
        assert lines(rank, r"^\[\]$"), report(ranks)


def test_new_checkpoints_save_after_a_failure_of_one_process(tmp_path):
    ranks = run(tmp_path, "recovering")
    for rank, kind in zip(ranks, ("RuntimeError", "OSError")):
        refused = f"RuntimeError: `Checkpoints` must not save after .*{tmp_path / 'folder'}. Close them, and make new"
        found = lines(rank, r"^(?:OS|Runtime)Error: .*")
        assert len(found) == 3, report(ranks)
        for message, pattern in zip(found, (f"{kind}: a checkpoint in .* was not written: ", refused, refused)):
            assert re.match(pattern, message), report(ranks)
        assert lines(rank, r"^steps \[1, 2\], True$"), report(ranks)


def test_a_wrong_argument_of_one_process_is_told_to_the_others(tmp_path):
    """No process waits for one that has refused its arguments. Nothing is written. The next snapshot is complete."""
    ranks = run(tmp_path, "mistaken")
    found = [lines(rank, r"^(?:\w+Error: .*|ended)$") for rank in ranks]
    attempts = len(found[0]) // 2
    assert attempts == 33, report(ranks)
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        wrong, told = (other, one) if number < attempts else (one, other)
        kind, _, message = wrong.partition(": ")
        assert re.match(r"(Value|Type|FileNotFound|NotADirectory)Error: .*`\w+(\['u'\])?` must", wrong), report(ranks)
        # If process 0 passes a wrong step, no process finds it.
        assert told in (f"{kind}: process {int(number < attempts)} failed: {message}", wrong), report(ranks)
    for rank in ranks:
        assert lines(rank, r"^steps \[1\], \['after.zarr', 'checkpoints', 'good.h5', 'good.xdmf'\]$"), report(ranks)


def test_a_process_that_cannot_look_at_files_is_told_to_the_others(tmp_path):
    ranks = run(tmp_path, "blind")
    for number, rank in enumerate(ranks):
        told = "OSError: process {} failed: no access"
        here, there = "PermissionError: no access", told.format(1 - number)
        found = lines(rank, "^(?:read|.*no access)$")
        assert found == [*[(there, here)[number]] * 5, *[(here, there)[number]] * 5], report(ranks)


def test_damaged_and_newer_files_are_refused_by_all_processes(tmp_path):
    """All processes soon raise errors of one type, even if only one process cannot read its part of a file."""
    ranks = run(tmp_path, "refused")
    newer = "ValueError: .* of format 3, which a newer decompops wrote"
    damaged, gone = "Damaged: .* is damaged", "FileNotFoundError: .*`step` must be"
    expected = (
        "Damaged: .*the checksum of u is wrong",
        damaged,
        "ValueError: .*`like` must have",
        gone,
        gone,
        *[newer] * 3,
    )
    told = {0: (1, 2, 3), 1: (4,)}  # In these attempts only the other process fails.
    for number, rank in enumerate(ranks):
        found = lines(rank, "^(?:Damaged|ValueError|FileNotFoundError): .*")
        assert len(found) == len(expected), report(ranks)
        for attempt, (message, pattern) in enumerate(zip(found, expected)):
            assert re.match(pattern, message), report(ranks)
            assert (f"process {1 - number} failed" in message) == (attempt in told[number]), report(ranks)


def test_all_processes_read_the_same_snapshot(tmp_path):
    """A snapshot is replaced after one process has read it. All processes then read the new one."""
    ranks = run(tmp_path, "replaced")
    for rank in ranks:
        assert lines(rank, r"^\.(?:zarr|h5): time 2\.0, True, calls [2-9]$") == [
            ".zarr: time 2.0, True, calls 2",
            ".h5: time 2.0, True, calls 2",
        ], report(ranks)


def test_each_process_reads_only_its_own_part_of_a_batch(tmp_path):
    """Both processes get the batches in the same order. A damaged block is an error only on the process that reads it.

    Without a comparison, the blocks of a sample would come from other snapshots on each process, in silence.
    """
    ranks = run(tmp_path, "samples")
    orders = [json.loads(lines(rank, r"^order (.*)$")[0]) for rank in ranks]
    assert orders[0] == orders[1]
    assert [sorted(orders[0][i] + orders[0][i + 1]) for i in (0, 2, 4)] == [[0, 1, 2, 3]] * 3
    for rank in ranks:
        rules = [line.partition(" must be the same ")[0] for line in lines(rank, "^other: (.*)$")]
        assert rules == ["`paths`", "`paths`", "`size`, `seed` and `epochs`", "`path`"], report(ranks)
    assert lines(ranks[0], "^read$"), report(ranks)
    assert lines(ranks[1], r"^ValueError: .*2\.zarr"), report(ranks)
