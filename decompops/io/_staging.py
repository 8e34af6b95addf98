"""A snapshot appears as a whole or not at all: processes write beside its place, and the last step is to rename.

Processes tell each other that they are done by files in the folder where they write. So a snapshot can be written in
the background, where collectives would mix with those of the program.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


# The steps of writing, and what a process calls its file after each.
CREATED, WRITTEN, DONE, SEEN, FAILED = "created", "written", "done", "seen", "failed"


class Staging:
    """The folder beside a snapshot's place where `processes` write it, under a `token` that no other attempt has."""

    def __init__(self, path: Path, token: str, process: int, processes: tuple[int, ...], patience: float):
        self.path = path
        self.process, self.processes, self.patience = process, processes, patience
        self.folder = path.with_name(f".{path.name}.{token}.partial")
        self.staged = self.folder / "new" / path.name

    def run(self, create: Callable[[], None], write: Callable[[], None]) -> None:
        """Let one process `create` the snapshot, all of them `write` to it, and one of them put it in its place.

        A process that fails tells the others.

        **Raises:** what `create` and `write` raise; `RuntimeError` on the other processes, and where a process is not
        done in time.
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
            self._wait(WRITTEN, self.processes, "write to it")
            self._do(self._put, DONE)
        self._wait(DONE, (first,), "put it in its place")
        self._do(lambda: None, SEEN)
        if self.process == first:
            self._wait(SEEN, self.processes, "see it in its place")
            shutil.rmtree(self.folder, ignore_errors=True)

    def _put(self) -> None:
        """Put everything that was written in its place, the snapshot itself last."""
        for new in sorted(self.staged.parent.iterdir(), key=lambda new: new == self.staged):
            put(new, self.path.with_name(new.name))

    def _do(self, step: Callable[[], None], name: str) -> None:
        """Take a step, and tell the other processes that it is done, or that it failed."""
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
                    raise RuntimeError(f"{self.path} was not written, for process {other} failed: {reason}")
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{self.path} was not written: waited {self.patience:g} s for process {process} to {what}."
                    )
                time.sleep(pause)
                pause = min(2 * pause, 0.25)


def put(new: Path, path: Path) -> None:
    """Put a finished file or folder in its place.

    A folder cannot replace another in one step: the old one moves aside first, and is what `find` returns until the new
    one is there.
    """
    _sync(new.parent)
    if new.is_dir() and path.exists():
        shutil.rmtree(_aside(path), ignore_errors=True)
        os.rename(path, _aside(path))
    os.replace(new, path)
    shutil.rmtree(_aside(path), ignore_errors=True)
    _sync(path.parent)


def find(path: Path) -> Path:
    """Where the newest whole snapshot of this name is. Raises `FileNotFoundError` where there is none."""
    for candidate in (path, _aside(path)):
        if candidate.exists():
            return candidate
    hint = "; its writing was interrupted" if leftovers(path) else ""
    raise FileNotFoundError(f"`path` must be a snapshot; got {path}, which does not exist{hint}.")


def leftovers(path: Path) -> list[Path]:
    """What interrupted writings of this snapshot left behind."""
    return sorted(path.parent.glob(f".{path.name}.*.partial"))


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync(folder: Path) -> None:
    """Make the names in a folder last through a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
