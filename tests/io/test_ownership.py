"""Tests that the library replaces and removes only its own files: folders full of look-alikes stay as they are."""

import errno
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import patch

import decompops as dops
import pytest
from decompops import io
from decompops._common.ownership import locked
from decompops.io._formats import format_of

from helpers import make_mesh, random_field


SHAPE = (4, 3, 2)
DEC = dops.Decomposition(make_mesh((1, 1)), shape=SHAPE)
U = random_field(SHAPE)


def fill(folder: Path, names) -> None:
    """Fill a folder with a file, a folder with a file, and links to a file and a folder, for each of the names."""
    treasure = folder.parent / "treasure"
    treasure.mkdir(exist_ok=True)
    (treasure / "thesis.txt").write_text("years of work")
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        match number % 4:
            case 0:
                (folder / name).mkdir()
                (folder / name / "thesis.txt").write_text(name)
            case 1:
                (folder / name).write_text(name)
            case 2:
                (folder / name).symlink_to(treasure, target_is_directory=True)
            case _:
                (folder / name).symlink_to(treasure / "thesis.txt")


def contents(folder: Path) -> dict[str, object]:
    """Return what is in a folder: texts of files, targets of links, and folders."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.is_dir() or path.read_bytes()
        for path in folder.rglob("*")
    }


def every_kind(names):
    """Return each name four times, with different zeros, so that `fill` makes all four kinds of it."""
    return [name.format("0" * zeros) for name in names for zeros in range(4)]


# --- Checkpoints ---


CHECKPOINT_NAMES = every_kind(
    [
        "{}2023",
        "{}1",
        "{}7.orbax-checkpoint-tmp",
        "{}7.orbax-checkpoint-tmp-123",
        "{}8-3f9a6c0e1b2d4f58",
        "{}8-3f9a6c0e1b2d4f58.orbax-checkpoint-tmp",
        "checkpoint_{}1",
        ".decompops.{}1",
    ]
)


def test_checkpoints_leave_other_files_alone(tmp_path):
    folder = tmp_path / "res"
    fill(folder, CHECKPOINT_NAMES)
    before = contents(tmp_path)
    for start in (1, 10, 2026):
        with io.Checkpoints(folder, keep=1) as checkpoints:
            for step in range(start, start + 3):
                checkpoints.save(step, {"i": step})
            checkpoints.wait()
            assert checkpoints.steps == [start + 2]
            assert checkpoints.restore({"i": 0}) == {"i": start + 2}
    found = contents(tmp_path)
    assert {name: found.get(name) for name in before} == before
    own = {name.split("/")[1] for name in found.keys() - before.keys()}
    assert own == {".decompops", checkpoints.path(2028).name}


def test_look_alikes_with_the_identity_of_the_folder_stay(tmp_path):
    """Even files that take the names of checkpoints are neither read nor removed."""
    folder = tmp_path / "res"
    with io.Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(1, {"i": 1})
        name = checkpoints.path(1).name.partition("-")[2]
    fill(folder, ["notes", f"5-{name}", f"6-{name}"])
    (folder / f"7-{name}.orbax-checkpoint-tmp").symlink_to(tmp_path / "treasure", target_is_directory=True)
    before = contents(tmp_path)
    with io.Checkpoints(folder, keep=1) as checkpoints:
        assert checkpoints.steps == [1]
        for step in (5, 6):
            with pytest.raises(FileExistsError, match="`step` must be the number of a new checkpoint, but"):
                checkpoints.save(step, {"i": step})
        checkpoints.save(9, {"i": 9})
    found = contents(tmp_path)
    kept = {name for name in before if f"res/1-{name}" not in name and not name.startswith("res/1-")}
    assert {name: found.get(name) for name in kept} == {name: before[name] for name in kept}


def test_a_mark_that_is_not_ours_is_an_error(tmp_path):
    (tmp_path / ".decompops").write_text("notes")
    with io.Checkpoints(tmp_path) as checkpoints, pytest.raises(FileExistsError, match="something else has the name"):
        checkpoints.save(1, {"i": 1})
    assert contents(tmp_path) == {".decompops": b"notes"}


def test_checkpoints_without_the_mark_of_their_folder_are_told(tmp_path):
    """`cp old/* new` leaves the mark behind. A run must not begin again as if there were no checkpoints."""
    old, new = tmp_path / "old", tmp_path / "new"
    with io.Checkpoints(old) as checkpoints:
        checkpoints.save(3, {"i": 3})
    shutil.copytree(old, new, ignore=shutil.ignore_patterns(".*"))
    with io.Checkpoints(new) as checkpoints, pytest.raises(FileNotFoundError, match="Copy it from the folder") as error:
        checkpoints.claim()
    (command,) = re.findall("type `(.*?)`", str(error.value))
    subprocess.run(command, shell=True, check=True)
    with io.Checkpoints(new) as checkpoints:
        assert checkpoints.restore({"i": 0}) == {"i": 3}
        checkpoints.save(4, {"i": 4})


def test_a_copy_of_a_folder_has_a_lock_of_its_own(tmp_path):
    with io.Checkpoints(tmp_path / "old") as old:
        old.save(1, {"i": 1})
        old.wait()
        shutil.copytree(tmp_path / "old", tmp_path / "new")
        with io.Checkpoints(tmp_path / "new") as new:
            new.save(2, {"i": 2})
            for folder in ("old", "new"):
                with pytest.raises(BlockingIOError):
                    locked(tmp_path / folder, alone=True)


@pytest.mark.parametrize("removed", [".decompops", ""])
def test_a_mark_that_is_removed_meanwhile_is_made_again(tmp_path, removed):
    """Otherwise no other start would find the next checkpoint. The folder is still locked."""
    folder = tmp_path / "checkpoints"
    with io.Checkpoints(folder) as checkpoints:
        checkpoints.save(1, {"i": 1})
        checkpoints.wait()
        subprocess.run(["rm", "-r", folder / removed], check=True)
        checkpoints.save(2, {"i": 2})
        checkpoints.wait()
        with pytest.raises(BlockingIOError):
            locked(folder, alone=True)
    assert io.Checkpoints(folder).restore({"i": 0}) == {"i": 2}


def run_program(text: str, *arguments: object) -> subprocess.Popen:
    """Start a program that has `folder`, and that waits for its input where it says `pause()`."""
    head = """
        import sys
        from pathlib import Path
        import decompops as dops, jax, numpy as np
        from decompops import io
        folder = Path(sys.argv[1])
        def pause():
            print("ready", flush=True)
            sys.stdin.readline()
    """
    program = textwrap.dedent(head) + textwrap.dedent(text)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_two_programs_do_not_save_in_one_folder(tmp_path):
    """A program is refused while another program saves in the folder. A killed program does not block the folder."""
    other = run_program(
        """
        checkpoints = io.Checkpoints(folder)
        checkpoints.save(1, {"i": 1})
        checkpoints.wait()
        pause()
        """,
        tmp_path,
    )
    try:
        assert other.stdout.readline() == "ready\n", other.stderr.read()
        with io.Checkpoints(tmp_path) as checkpoints:
            assert checkpoints.restore({"i": 0}) == {"i": 1}
            with pytest.raises(BlockingIOError, match="`folder` must be used by one program at a time"):
                checkpoints.save(2, {"i": 2})
    finally:
        other.kill()
        other.communicate()
    with io.Checkpoints(tmp_path) as checkpoints, io.Checkpoints(tmp_path) as again:
        checkpoints.save(2, {"i": 2})
        checkpoints.wait()
        again.save(3, {"i": 3})


# --- Snapshots ---


def snapshot_names(name: str) -> list[str]:
    """Return names that look like what the library writes beside a snapshot."""
    token = "3f9a6c0e1b2d4f5"
    ends = ["old", "partial", "{}0123.partial", f"{token}{{}}.partial", "lock"]
    return every_kind([f".{name}.{end}{{}}" if "{}" not in end else f".{name}.{end}" for end in ends])


@pytest.mark.parametrize("name", ["u.zarr", "u.h5"])
def test_snapshots_leave_other_files_alone(tmp_path, name):
    folder = tmp_path / "run"
    fill(folder, [*snapshot_names(name), *snapshot_names("u.xdmf"), *snapshot_names("s.xdmf")])
    before = contents(tmp_path)
    for t in range(3):
        io.write(folder / name, {"u": (t + 1) * U}, DEC, time=t)
        if name == "u.h5":
            io.write_series(folder / "s.xdmf", [folder / name])
        assert io.read(folder / name).time == t
    found = contents(tmp_path)
    assert {name: found.get(name) for name in before} == before
    own = {"run/u.zarr"} if name == "u.zarr" else {"run/u.h5", "run/u.xdmf", "run/s.xdmf"}
    assert {new for new in found.keys() - before.keys() if not new.startswith("run/u.zarr/")} == own


def copy_of_zarr(path: Path) -> None:
    """Let another program write a group with the attributes of one of our snapshots."""
    other = path.with_name("other.zarr")
    io.write(other, {"u": U}, DEC)
    path.mkdir()
    text = (other / "zarr.json").read_text()
    (path / "zarr.json").write_text(text)
    (path / "thesis.txt").write_text("years of work")


def zarr_with_notes(path: Path) -> None:
    io.write(path, {"u": U}, DEC)
    (path / "u" / "notes.txt").write_text("years of work")


def hdf5_of_others(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["results"] = U
        file.attrs["decompops_format"] = 2


def hdf5_with_results(path: Path) -> None:
    import h5py

    io.write(path, {"u": U}, DEC)
    with h5py.File(path, "a") as file:
        file["results"] = U


def xdmf_changed(path: Path) -> None:
    io.write(path, {"u": U}, DEC)
    file = path.with_suffix(".xdmf")
    file.write_text(file.read_text().replace('Name="grid"', 'Name="mine"'))


THINGS = {
    "a file": lambda path: path.write_text("years of work"),
    "an empty file": lambda path: path.write_text(""),
    "an empty folder": lambda path: path.mkdir(),
    "a folder": lambda path: (path.mkdir(), (path / "thesis.txt").write_text("years of work")),
    "a folder that names our format": lambda path: (path.mkdir(), (path / "zarr.json").write_text("decompops_format")),
    "a pipe": os.mkfifo,
    "a copy of our metadata": copy_of_zarr,
    "our snapshot with notes": zarr_with_notes,
    "HDF5 of others": hdf5_of_others,
    "our snapshot with results": hdf5_with_results,
    "an XDMF file of others": lambda path: path.with_suffix(".xdmf").write_text("<Xdmf/>"),
    "our XDMF file, changed": xdmf_changed,
}


ONLY = {"metadata": ".zarr", "notes": ".zarr", "HDF5": ".h5", "results": ".h5", "XDMF": ".h5"}
CASES = [
    (suffix, thing)
    for thing in THINGS
    for suffix in (".zarr", ".h5")
    if all(suffix == only for word, only in ONLY.items() if word in thing)
]


@pytest.mark.parametrize(("suffix", "thing"), CASES)
def test_what_we_did_not_write_is_in_the_way(tmp_path, suffix, thing):
    """`write` raises an error, and leaves everything as it is."""
    path = tmp_path / f"u{suffix}"
    THINGS[thing](path)
    before = {file: None if file.is_fifo() else file.is_dir() or file.read_bytes() for file in tmp_path.rglob("*")}
    with pytest.raises(FileExistsError, match=r"must be new or a file of decompops; got .*u\.(zarr|h5|xdmf), which"):
        io.write(path, {"u": 2 * U}, DEC)
    if thing == "our snapshot with notes":
        with pytest.raises(FileExistsError, match=r"holds u/notes\.txt, which decompops did not write"):
            io.write(path, {"u": 2 * U}, DEC)
    if "XDMF" in thing:
        io.write(tmp_path / "other.h5", {"u": U}, DEC)
        with pytest.raises(FileExistsError, match=r"u\.xdmf, which decompops did not write"):
            io.write_series(path.with_suffix(".xdmf"), [tmp_path / "other.h5"])
        for file in tmp_path.glob("other.*"):
            file.unlink()
    after = {file: None if file.is_fifo() else file.is_dir() or file.read_bytes() for file in tmp_path.rglob("*")}
    assert after == before


def test_files_that_appear_in_the_last_moment_stay(tmp_path, monkeypatch):
    """Somebody adds a file to the old snapshot while the new one is written."""
    path = tmp_path / "u.zarr"
    io.write(path, {"u": U}, DEC, time=1)
    create = type(format_of(path)[0]).create

    def add(*arguments):
        (path / "notes.txt").write_text("years of work")
        return create(*arguments)

    monkeypatch.setattr(type(format_of(path)[0]), "create", add)
    with pytest.raises(FileExistsError, match=r"holds notes\.txt"):
        io.write(path, {"u": U}, DEC, time=2)
    assert (path / "notes.txt").read_text() == "years of work"
    assert io.read(path).time == 1
    assert [file.name for file in tmp_path.iterdir()] == ["u.zarr"]


def refusing(name: str):
    """Return `os.open` of a process that may not open files of this name."""
    real = os.open

    def opened(path, *options, **more):
        if os.path.basename(path) == name:
            raise PermissionError(errno.EACCES, "no rights", str(path))
        return real(path, *options, **more)

    return patch.object(os, "open", opened)


@pytest.mark.parametrize("name", ["u.h5", "u.xdmf", "u.zarr"])
def test_a_snapshot_that_may_not_be_read_may_be_ours(tmp_path, name):
    """Nobody should remove a file because this process lacks rights or open files."""
    path = (tmp_path / name).with_suffix(".zarr" if name == "u.zarr" else ".h5")
    io.write(path, {"u": U}, DEC)
    with refusing("zarr.json" if name == "u.zarr" else name), pytest.raises(PermissionError, match="no rights"):
        io.write(path, {"u": U}, DEC)
    io.write(path, {"u": U}, DEC)


def test_checkpoints_whose_mark_may_not_be_read_are_not_absent(tmp_path):
    """Otherwise a run would begin again."""
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"u": U})
    with refusing(".decompops"), pytest.raises(PermissionError, match="no rights"):
        io.Checkpoints(tmp_path)
    assert io.Checkpoints(tmp_path).latest == 1
