"""Makes a snapshot appear only when it is complete: processes write to a folder next to it, and rename at the end.

A process tells the others that it is done by an empty file in that folder. Snapshots can therefore be written in the
background, where collectives would interfere with the collectives of the program.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


# The steps of writing. A process names its empty file after the step that it has done.
CREATED, WRITTEN, DONE, SEEN, FAILED = "created", "written", "done", "seen", "failed"


class Staging:
    """The folder in which `processes` write a snapshot before it is moved to `path`. `token` makes its name unique."""

    def __init__(self, path: Path, token: str, process: int, processes: tuple[int, ...], patience: float):
        self.path = path
        self.process, self.processes, self.patience = process, processes, patience
        self.folder = path.with_name(f".{path.name}.{token}.partial")
        self.staged = self.folder / "new" / path.name

    def run(self, create: Callable[[], None], write: Callable[[], None]) -> None:
        """Let one process `create` the snapshot, all processes `write` to it, and one process move it to its path.

        A process that fails tells the others.

        **Raises:** the errors of `create` and `write` on the process where they fail, and `RuntimeError` on the others;
        `RuntimeError` if a process is not done in time.
        """
        first = self.processes[0]
        if self.process == first:
            for folder in leftovers(self.path):
                shutil.rmtree(folder, ignore_errors=True)
            self.staged.parent.mkdir(parents=True)
            self._do(create, CREATED)
        self._wait(CREATED, (first,), "create it")
        self._do(write, WRITTEN)
        if self.process == first:
            self._wait(WRITTEN, self.processes, "write its blocks")
            self._do(self._put, DONE)
        self._wait(DONE, (first,), "move it to its path")
        self._do(lambda: None, SEEN)
        if self.process == first:
            self._wait(SEEN, self.processes, "see it at its path")
            shutil.rmtree(self.folder, ignore_errors=True)

    def _put(self) -> None:
        """Move all files that were written to their paths, and the snapshot itself last."""
        for new in sorted(self.staged.parent.iterdir(), key=lambda new: new == self.staged):
            put(new, self.path.with_name(new.name))

    def _do(self, step: Callable[[], None], name: str) -> None:
        """Run a step, and tell the other processes that it is done or that it failed."""
        try:
            step()
        except BaseException as error:
            with suppress(OSError):
                if len(self.processes) == 1:
                    shutil.rmtree(self.folder)
                else:
                    (self.folder / f"{FAILED}-{self.process}").write_text(f"{type(error).__name__}: {error}")
            raise
        (self.folder / f"{name}-{self.process}").touch()

    def _wait(self, name: str, processes: tuple[int, ...], what: str) -> None:
        """Wait until `processes` have done a step."""
        deadline, pause = time.monotonic() + self.patience, 1e-3
        for process in processes:
            while not (self.folder / f"{name}-{process}").exists():
                for failed in self.folder.glob(f"{FAILED}-*"):
                    other, reason = failed.name.rpartition("-")[2], failed.read_text().partition("\n")[0]
                    raise RuntimeError(f"{self.path} was not written, because process {other} failed: {reason}")
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{self.path} was not written: waited {self.patience:g} s for process {process} to {what}. If "
                        "the disk is slow, pass a larger `patience`."
                    )
                time.sleep(pause)
                pause = min(2 * pause, 0.25)


def put(new: Path, path: Path) -> None:
    """Move a complete file or folder to `path`.

    A folder cannot replace another folder in one step. The old folder is therefore renamed first, and `find` returns
    the old folder until the new folder is at `path`.
    """
    _sync(new.parent)
    if new.is_dir() and path.exists():
        shutil.rmtree(_aside(path), ignore_errors=True)
        os.rename(path, _aside(path))
    os.replace(new, path)
    shutil.rmtree(_aside(path), ignore_errors=True)
    _sync(path.parent)


def find(path: Path) -> Path:
    """Return the path of the newest complete snapshot with this name. Raises `FileNotFoundError` without a snapshot."""
    for candidate in (path, _aside(path)):
        if candidate.exists():
            return candidate
    hint = ", because writing it was interrupted" if leftovers(path) else ""
    raise FileNotFoundError(f"`path` must be a snapshot; got {path}, which does not exist{hint}.")


def leftovers(path: Path) -> list[Path]:
    """Return the folders that remain if writing this snapshot was interrupted."""
    return sorted(path.parent.glob(f".{path.name}.*.partial"))


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync(folder: Path) -> None:
    """Write the names in a folder to disk, so that they survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
