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


# The steps of writing. A process names its empty file after the step that it has done. `BEGUN` exists until the end.
BEGUN, CREATED, WRITTEN, DONE, SEEN, FAILED, ENDED = "begun", "created", "written", "done", "seen", "failed", "ended"


class Staging:
    """The folder to which `processes` write a snapshot before it moves to `path`. `token` makes the name unique."""

    def __init__(self, path: Path, token: int, process: int, processes: tuple[int, ...], patience: float):
        self.path = path
        self.process, self.processes, self.patience = process, processes, patience
        self.folder = path.with_name(f".{path.name}.{token:08x}.partial")
        self.staged = self.folder / "new" / path.name
        self._was_there = False
        self._leftovers: list[Path] = []

    def begin(self) -> None:
        """Create the folder. Only the first process calls this method, before any process writes to the folder."""
        # A folder that appears later belongs to the next snapshot at this path.
        self._leftovers = leftovers(self.path)
        self.staged.parent.mkdir(parents=True)
        (self.folder / BEGUN).touch()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, create: Callable[[], None], write: Callable[[], None]) -> None:
        """Let one process `create` the snapshot, all processes `write` to it, and one process move it to its path.

        A process that fails tells the other processes.

        **Raises:** if `create` or `write` fails on one process, its error on this process and `RuntimeError` on the
        others. `RuntimeError` if a process does not finish a step within `patience` seconds.
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
            if isinstance(error, OSError) and not (self.folder / BEGUN).exists():
                raise self._other_failed() from error
            try:
                if not list(self.folder.glob(f"{FAILED}-*")):
                    self._file(FAILED).write_text(f"{type(error).__name__}: {error}")
                self._file(ENDED).touch()
                if all(self._file(ENDED, process).exists() for process in self.processes):
                    self.remove()
            except OSError:  # A full disk may have no space for an empty file. The missing folder tells the others.
                self.remove()
            raise

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
                self._check()
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{self.path} was not written: waited {self.patience:g} s for process {process} to {what}. If "
                        "the disk is slow, pass a larger `patience`."
                    )
                time.sleep(pause)
                pause = min(2 * pause, 0.25)

    def _check(self) -> None:
        """Raise `RuntimeError` if another process has failed."""
        for failed in self.folder.glob(f"{FAILED}-*"):
            with suppress(OSError):  # The process may have just removed the folder.
                other, reason = failed.name.rpartition("-")[2], failed.read_text().partition("\n")[0]
                raise RuntimeError(f"{self.path} was not written, because process {other} failed: {reason}")
        is_there = (self.folder / BEGUN).exists()
        if self._was_there and not is_there:
            raise self._other_failed()
        self._was_there = is_there

    def _other_failed(self) -> RuntimeError:
        """Return the error to raise when another process has failed and removed the folder."""
        return RuntimeError(f"{self.path} was not written, because another process failed: read its error.")


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
