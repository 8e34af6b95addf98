"""Makes a snapshot appear only when it is complete: processes write to a temporary folder, and rename files at the end.

The temporary folder is next to the path of the snapshot. When a process has done a step, it creates an empty file in
this folder to tell the other processes. So writing needs no collectives, and can run in the background. Collectives in
the background would interfere with the collectives of the program.
"""

import glob
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


# The steps of writing. A process names its empty file after the step that it has done.
CREATED, WRITTEN, DONE, SEEN, FAILED, ENDED = "created", "written", "done", "seen", "failed", "ended"

# The file `BEGUN` exists until a process fails. The failing process writes its error into this file, and gives the file
# the name of the step `FAILED`. A full disk allows this, because the file has room for the error: `REASON` bytes.
BEGUN, REASON = "begun", 1000

# A network file system shows a new folder to the other processes after this number of seconds at the latest.
VISIBLE = 60.0


class Staging:
    """The folder to which `processes` write a snapshot before it moves to `path`. `token` makes the name unique."""

    def __init__(self, path: Path, token: int, process: int, processes: tuple[int, ...], patience: float):
        self.path = path
        self.process, self.processes, self.patience = process, processes, patience
        self.folder = path.with_name(f".{path.name}.{token:08x}.partial")
        self.staged = self.folder / "new" / path.name
        self._missing_since: float | None = None
        self._leftovers: list[Path] = []

    def begin(self) -> None:
        """Create the folder. Only the first process calls this method, before any process writes to the folder."""
        # The folders to remove are listed now. A folder that appears later belongs to the next snapshot at this path.
        self._leftovers = leftovers(self.path)
        self.staged.parent.mkdir(parents=True)
        (self.folder / BEGUN).write_bytes(b" " * REASON)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

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
                    shutil.rmtree(folder, ignore_errors=True)
                create()
                self._file(CREATED).touch()
            self._wait(CREATED, (first,), "create it")
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
            if cause is not None:
                raise cause from error
            raise

    def _tell(self, reason: str) -> None:
        """Tell the other processes that this process has failed."""
        with suppress(OSError):  # If another process has failed before, the file is not there.
            claimed = (self.folder / BEGUN).rename(self.folder / f"{BEGUN}-{self.process}")
            with suppress(OSError), claimed.open("r+b") as file:
                file.write(reason.encode()[:REASON])
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
            put(new, self.path.with_name(new.name))

    def _file(self, step: str, process: int | None = None) -> Path:
        """Return the file that tells that `process`, by default this process, has done a step."""
        return self.folder / f"{step}-{self.process if process is None else process}"

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
                        "the disk is slow, pass a larger `patience`."
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
            return RuntimeError(f"{self.path} was not written, because its temporary folder {self.folder} is missing.")
        return None


def put(new: Path, path: Path) -> None:
    """Move a complete file or folder to `path`.

    A folder cannot replace another folder in one step. So the old folder is first renamed. Until the new folder is at
    `path`, `find` returns the renamed folder.
    """
    for folder in (*(Path(name) for name, _, _ in os.walk(new, topdown=False)), new.parent):
        _sync(folder)
    if new.is_dir() and path.exists():
        shutil.rmtree(_aside(path), ignore_errors=True)
        os.rename(path, _aside(path))
    os.replace(new, path)
    shutil.rmtree(_aside(path), ignore_errors=True)
    _sync(path.parent)


def find(path: Path) -> Path:
    """Return the path of the newest complete snapshot at `path`. Raises `FileNotFoundError` if there is none."""
    for candidate in (path, _aside(path)):
        if candidate.exists():
            return candidate
    hint = ", because writing it was interrupted" if leftovers(path) else ""
    raise FileNotFoundError(f"`path` must be a snapshot; got {path}, which does not exist{hint}.")


def leftovers(path: Path) -> list[Path]:
    """Return the temporary folders of interrupted attempts to write this snapshot."""
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.*.partial"))


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync(folder: Path) -> None:
    """Write the names in a folder to disk, so that they survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
