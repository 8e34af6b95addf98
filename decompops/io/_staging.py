"""Makes a snapshot appear only when it is complete: processes write to a temporary folder, and rename files at the end.

The temporary folder is next to the path of the snapshot. When a process has done a step, it creates an empty file in
this folder to tell the other processes. So writing needs no collectives, and can run in the background. Collectives in
the background would interfere with the collectives of the program.
"""

import errno
import glob
import itertools
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .._common.ownership import MARK, hidden, identity_of, locked, mark


# The steps of writing. A process names its empty file after the step that it has done.
CREATED, WRITTEN, DONE, SEEN, FAILED, ENDED = "created", "written", "done", "seen", "failed", "ended"

# The file `BEGUN` exists until a process fails. The failing process writes its error into this file, and gives the file
# the name of the step `FAILED`. A full disk allows this, because the file has room for the error: `REASON` bytes.
BEGUN, REASON = "begun", 1000

# A network file system shows a new folder to the other processes after this number of seconds at the latest.
VISIBLE = 60.0

# What temporary folders are marked for, and the part of a temporary folder to which the old snapshot moves.
KIND, OLD = "a snapshot", "old"


class Staging:
    """The folder to which `processes` write a snapshot before it moves to `path`. `identity` makes the name unique.

    `check` raises `FileExistsError` if something that is not this library's is at a path.
    """

    def __init__(
        self,
        path: Path,
        identity: str,
        process: int,
        processes: tuple[int, ...],
        patience: float,
        check: Callable[[Path], None],
    ):
        self.path, self.identity, self.check = path, identity, check
        self.process, self.processes, self.patience = process, processes, patience
        self.folder = hidden(path, identity)
        self.staged = self.folder / "new" / path.name
        self._missing_since: float | None = None
        self._leftovers: list[Path] = []
        self._lock: BinaryIO | None = None

    def begin(self) -> None:
        """Create the folder. Only the first process calls this method, before any process writes to the folder."""
        # The folders to remove are listed now. A folder that appears later belongs to the next snapshot at this path.
        self._leftovers = leftovers(self.path)
        self.folder.mkdir(parents=True)
        try:
            mark(self.folder, KIND, self.identity)
            self._hold()
            self.staged.parent.mkdir()
            (self.folder / BEGUN).write_bytes(b" " * REASON)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove the folder, if it is marked."""
        self._release()
        if _identity(self.folder) == self.identity:
            _remove(self.folder)

    def run(self, create: Callable[[], None], write: Callable[[], None]) -> None:
        """Let one process `create` the snapshot, all processes `write` to it, and one process move it to its path.

        A process that fails tells the other processes.

        **Raises:** the error of `create` or `write` on the process where it fails, and `RuntimeError` on the other
        processes. `RuntimeError` if a process does not finish a step within `patience` seconds.
        """
        first = self.processes[0]
        with self.telling():
            if self.process == first:
                for folder in self._leftovers:
                    remove_leftover(folder, self.path, self.check)
                create()
                self._file(CREATED).touch()
            self._wait(CREATED, (first,), "create it")
            self._hold()
            write()
            self._file(WRITTEN).touch()
            if self.process == first:
                self._wait(WRITTEN, self.processes, "write its blocks")
                self._put()
                # The step `DONE` is told by renaming a file, which works even on a full disk.
                self._file(CREATED).rename(self._file(DONE))
            self._wait(DONE, (first,), "move it to its path")
            self._file(WRITTEN).rename(self._file(SEEN))
            if self.process == first:
                self._wait(SEEN, self.processes, "see it at its path")
                self.remove()

    @contextmanager
    def telling(self) -> Iterator[None]:
        """If this process fails, tell the other processes. The last process that fails removes the folder."""
        try:
            yield
        except BaseException as error:
            # Another process that failed may have removed files, which causes an `OSError` here.
            cause = self._failure() if isinstance(error, OSError) else None
            self._tell(f"{type(error).__name__}: {error}")
            self._release()
            if cause is not None:
                raise cause from error
            raise

    def _tell(self, reason: str) -> None:
        """Tell the other processes that this process has failed."""
        with suppress(OSError):  # If another process has failed before, the file is not there.
            claimed = (self.folder / BEGUN).rename(self.folder / f"{BEGUN}-{self.process}")
            with suppress(OSError), claimed.open("r+b") as file:
                file.write(reason.encode(errors="replace")[:REASON])
            claimed.rename(self._file(FAILED))
        with suppress(OSError):
            try:
                self._file(ENDED).touch()
            except OSError:  # A full disk may have no space for an empty file.
                shutil.rmtree(self.staged.parent, ignore_errors=True)
                self._file(ENDED).touch()
            if all(self._file(ENDED, process).exists() for process in self.processes):
                self.remove()

    def _put(self) -> None:
        """Move each written file to its path. The snapshot is moved last, after other files such as an XDMF file."""
        for new in sorted(self.staged.parent.iterdir(), key=lambda new: new == self.staged):
            path = self.path.with_name(new.name)
            for folder in (*(Path(name) for name, _, _ in os.walk(new, topdown=False)), new.parent):
                _sync(folder)
            self.check(path)
            if new.is_dir():
                self._put_folder(new, path)
            else:
                os.replace(new, path)
            _sync(path.parent)

    def _put_folder(self, new: Path, path: Path) -> None:
        """Move a folder to `path`, in the place of an older snapshot.

        A folder cannot replace another folder in one step. So the older snapshot first moves to the temporary folder,
        where `find` finds it until the new folder is at `path`. Another program may do the same at the same time. Then
        both snapshots appear, one after the other.
        """
        for number in itertools.count():
            old = self.folder / f"{OLD}{number}" / path.name
            old.parent.mkdir()
            try:
                with suppress(FileNotFoundError):
                    os.rename(path, old)
                self.check(old)  # Somebody may have added files since the last check.
                try:
                    os.rename(new, path)
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                        raise
                    self.check(path)
                else:
                    return
            except BaseException:  # The temporary folder will be removed, so the older snapshot moves back first.
                if os.path.lexists(old) and not os.path.lexists(path):
                    os.rename(old, path)
                raise

    def _file(self, step: str, process: int | None = None) -> Path:
        """Return the file that tells that `process`, by default this process, has done a step."""
        return self.folder / f"{step}-{self.process if process is None else process}"

    def _hold(self) -> None:
        """Lock the folder, so that other programs see that it is in use."""
        if self._lock is None:
            with suppress(OSError):  # The file system may have no locks. Then no program removes such folders.
                self._lock = locked(self.folder, alone=False)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _wait(self, step: str, processes: tuple[int, ...], what: str) -> None:
        """Wait until `processes` have done a step."""
        deadline, pause = time.monotonic() + self.patience, 1e-3
        for process in processes:
            while not self._file(step, process).exists():
                if (failure := self._failure()) is not None:
                    raise failure
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{self.path} was not written: waited {self.patience:g} s for process {process} to {what}. If "
                        "the disk is slow, pass a larger `patience`. If this process is on another host, choose a "
                        "folder on a file system that all hosts share."
                    )
                time.sleep(pause)
                pause = min(2 * pause, 0.25)

    def _failure(self) -> RuntimeError | None:
        """Return the error to raise if another process has failed."""
        for failed in self.folder.glob(f"{FAILED}-*"):
            with suppress(OSError):  # The last process that failed may have just removed the folder.
                reason = failed.read_text(errors="replace").partition("\n")[0].strip() or "read its error"
                other = failed.name.rpartition("-")[2]
                return RuntimeError(f"{self.path} was not written, because process {other} failed: {reason}")
        now = time.monotonic()
        if (self.folder / BEGUN).exists():
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        elif now > self._missing_since + VISIBLE:
            return RuntimeError(
                f"{self.path} was not written, because its temporary folder {self.folder} is missing on host "
                f"{socket.gethostname()!r} (process {self.process}). Choose a folder on a file system that all hosts "
                "share."
            )
        return None


def find(path: Path) -> Path:
    """Return the path of the newest complete snapshot at `path`. Raises `FileNotFoundError` if there is none."""
    for _ in range(10):  # While this function looks elsewhere, another program may move a snapshot to `path`.
        if path.exists():
            return path
        folders = leftovers(path)
        if old := [old for folder in folders for old in _old(folder, path)]:
            return old[0]
        if not folders:
            break
    hint = ", because writing it was interrupted" if leftovers(path) else ""
    raise FileNotFoundError(f"`path` must be a snapshot; got {path}, which does not exist{hint}.")


def leftovers(path: Path) -> list[Path]:
    """Return the temporary folders of all attempts to write this snapshot."""
    folders = [folder for folder in path.parent.glob(".*.partial") if not folder.is_symlink()]
    found = {folder: _identity(folder) for folder in folders}
    return sorted(folder for folder, identity in found.items() if identity and folder == hidden(path, identity))


def _identity(folder: Path) -> str | None:
    """Return the identity of a temporary folder, or `None` also for a folder that this process may not look into."""
    with suppress(OSError):
        return identity_of(folder, KIND)


def remove_leftover(folder: Path, path: Path, check: Callable[[Path], None]) -> None:
    """Remove the temporary folder of an interrupted attempt, unless it is in use or holds files of somebody else.

    If the attempt had moved the older snapshot away from `path`, this snapshot first moves back.
    """
    with suppress(OSError):
        with locked(folder, alone=True):
            for old in _old(folder, path):
                check(old)
                if not os.path.lexists(path):
                    os.rename(old, path)
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a temporary folder. If this program is killed meanwhile, the next write removes the rest.

    So the mark is removed last. Older snapshots first get another name: half of a snapshot would pass for the files of
    somebody else.
    """
    with suppress(OSError):  # Another program may be removing the same folder.
        for old in folder.glob(f"{OLD}*"):
            old.rename(folder / f"removed-{old.name}")
        for part in sorted(folder.iterdir(), key=lambda part: part.name == MARK):
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _old(folder: Path, path: Path) -> list[Path]:
    """Return the snapshots that an attempt has moved away from `path`, the newest first."""
    found = [old for old in folder.glob(f"{OLD}*/{glob.escape(path.name)}") if old.is_dir() and not old.is_symlink()]
    return sorted(found, key=lambda old: int(old.parent.name.removeprefix(OLD)), reverse=True)


def _sync(folder: Path) -> None:
    """Write the names in a folder to disk, so that they survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
