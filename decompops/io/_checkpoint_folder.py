"""The folder of checkpoints, in which orbax must see nothing but the checkpoints of this library."""

import errno
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

import jax

from .._common.ownership import IDENTITY, MARK, check_writable, identity_of, locked, mark, new_identity, note, share
from . import _staging
from ._agreement import agree, check_shared, error_of, of_first_process, raised_by_all


KIND = "checkpoints"
TEMPORARY = ".orbax-checkpoint-tmp"
# The part of a checkpoint that describes its leaves.
FACTS = "facts"


class _Lock:
    """A thread's lock on a folder. It is released when nothing in this process refers to it any more."""

    def __init__(self, file: BinaryIO | None):
        self.file, self.thread = file, threading.current_thread()

    def __del__(self):
        if self.file is not None:
            self.file.close()


# The locks that this process holds, by the device and the inode of the marks. Two `Checkpoints` of one thread share a
# lock. A copy of a folder has the same identity, but a lock of its own.
_LOCKS: WeakValueDictionary[tuple[int, int], _Lock] = WeakValueDictionary()


class CheckpointFolder:
    """Names checkpoints, and finds them. orbax uses this class as a `NameFormat`.

    orbax takes every folder whose name is an integer for a checkpoint, and removes old ones. So names have the number
    of the checkpoint and the identity of the folder, such as `12-3f9a6c0e1b2d4f58`. Everything else in the folder is
    left alone. A program that saves holds a lock on the folder. A program that only reads does not, because another
    program may be saving at the same time.
    """

    def __init__(self, path: Path):
        self.path = path
        with raised_by_all():
            mine = identity_of(path, KIND) if jax.process_index() == 0 else None
        self.identity = of_first_process(mine or "") or None
        self._lock: _Lock | None = None

    @property
    def is_claimed(self) -> bool:
        """Whether this program saves in the folder, so that no other one does."""
        return self._lock is not None

    def look(self) -> None:
        """Find the mark of a folder that another program has made after this object."""
        self.identity = self.identity or identity_of(self.path, KIND)

    def build_name(self, step: int) -> str:
        """Return the name of a checkpoint."""
        return f"{step}-{self.identity}"

    def find_all(self, base_path: Any) -> Iterator[Any]:
        """Yield the checkpoints, as orbax describes them."""
        from etils.epath import Path as OrbaxPath
        from orbax.checkpoint.path import step

        names = os.listdir(base_path) if self.identity else []
        for name in names:
            found = re.fullmatch(f"(0|[1-9][0-9]*)-{self.identity}", name)
            if found and (self.path / name).is_dir() and not (self.path / name).is_symlink():
                yield step.Metadata(step=int(found[1]), path=OrbaxPath(self.path / name))

    def find_step(self, base_path: Any, step: int) -> Any:
        """Return a checkpoint, as orbax describes it. Raises `ValueError` if it does not exist."""
        for found in self.find_all(base_path):
            if found.step == step:
                return found
        raise ValueError(f"{self.path} has no checkpoint {step}")

    def claim(self) -> bool:
        """Mark and lock the folder, and remove what a killed program has left unfinished. Return whether this is new.

        All processes must call this method. Raises `OSError` or `RuntimeError` on every process if one of them cannot
        write to the folder, and `BlockingIOError` if another program or thread saves checkpoints there.
        """
        if self._lock is not None:
            return False
        is_first = jax.process_index() == 0
        try:
            agree(error_of(self._begin) if is_first else None, self.path)
            self.identity = of_first_process(self.identity or "") or None
            agree(None if is_first else error_of(self._join), self.path)
            check_shared(self.path, seen=self._lock is not None)
        except BaseException:
            self.release()  # All processes must take part in the next attempt.
            raise
        if is_first and self._lock is not None and self._lock.file is None and (left := self._unfinished()):
            warnings.warn(
                f"{self.path} is on a file system without locks, so the unfinished checkpoints of killed programs stay "
                f"there: {', '.join(left)}. Remove them when no program saves in this folder.",
                stacklevel=4,
            )
        return True

    def release(self) -> None:
        """Release the lock."""
        self._lock = None

    def check_free(self, step: int) -> None:
        """Raise an error on every process if something else has the name of the next checkpoint.

        If somebody has removed the mark of the folder, mark it again: no other start would find the checkpoint.
        """
        path, error = self.path / self.build_name(step), None
        if jax.process_index() == 0 and os.path.lexists(path):
            error = FileExistsError(errno.EEXIST, f"`step` must be the number of a new checkpoint, but {path} exists.")
        elif jax.process_index() == 0:
            error = error_of(self._keep_mark)
        agree(error, self.path)

    def _begin(self) -> None:
        """Mark and lock the folder, in the first process."""
        check_writable(self.path)
        if identity_of(self.path, KIND) is None:
            self._check_new()
            with suppress(FileExistsError):  # Another program may have marked the folder just now.
                mark(self.path, KIND, new_identity())
        self.identity = identity_of(self.path, KIND)
        if self.identity is None:
            raise FileExistsError(
                errno.EEXIST,
                f"`folder` must be new or a folder of checkpoints; got {self.path}, in which something else has the "
                "name .decompops. Choose another folder, or remove this file.",
            )
        self._lock = self._shared_lock(alone=True)

    def _check_new(self) -> None:
        """Raise `FileNotFoundError` if the folder has checkpoints, but not the mark without which nobody finds them."""
        lost = [name for name in os.listdir(self.path) if re.fullmatch(f"[0-9]+-{IDENTITY}", name)]
        for name in lost if not os.path.lexists(self.path / MARK) else ():
            if (self.path / name / FACTS).is_dir():
                text = note(KIND, name.partition("-")[2])
                raise FileNotFoundError(
                    errno.ENOENT,
                    f"`folder` must have the file {MARK} beside its checkpoints, which are not found without it; got "
                    f"{self.path}, which has {name} but no such file. Copy it from the folder that the checkpoints "
                    f"come from, or type `echo '{text}' > '{self.path / MARK}'`. Or choose a new folder.",
                )

    def _keep_mark(self) -> None:
        """Mark and lock the folder again if its mark is gone, in the first process."""
        if identity_of(self.path, KIND) == self.identity:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        mark(self.path, KIND, str(self.identity))
        self._lock = self._shared_lock(alone=True)

    def _join(self) -> None:
        """Lock the folder, in a process that is not the first, unless this process does not see the first's mark."""
        check_writable(self.path)
        # A network file system may show a new file late.
        end = time.monotonic() + _staging.VISIBLE
        while identity_of(self.path, KIND) != self.identity:
            if time.monotonic() > end:
                return
            time.sleep(0.1)
        self._lock = self._shared_lock(alone=False)

    def _unfinished(self) -> list[str]:
        """Return the names of the checkpoints that are not complete."""
        pattern = re.compile(f"[0-9]+-{self.identity}{re.escape(TEMPORARY)}")
        return sorted(filter(pattern.fullmatch, os.listdir(self.path)))

    def _shared_lock(self, *, alone: bool) -> _Lock:
        """Return the lock that this process holds on the folder, or a new one."""
        found = os.stat(self.path / MARK)
        key = found.st_dev, found.st_ino
        if _is_of_another_thread(_LOCKS.get(key)):
            raise self._in_use("thread")
        lock = _LOCKS[key] = _LOCKS.get(key) or self._locked(alone=alone)
        return lock

    def _locked(self, *, alone: bool) -> _Lock:
        try:
            file = locked(self.path, alone=alone)
            if alone:
                for name in self._unfinished():
                    shutil.rmtree(self.path / name, ignore_errors=True)
                share(file)
        except BlockingIOError as error:
            raise self._in_use("program") from error
        except OSError:  # The file system has no locks.
            return _Lock(None)
        return _Lock(file)

    def _in_use(self, by: str) -> BlockingIOError:
        return BlockingIOError(
            errno.EWOULDBLOCK,
            f"`folder` must be used by one {by} at a time, but another one saves checkpoints in {self.path}. Wait "
            "until it has ended, or choose another folder.",
        )


def _is_of_another_thread(lock: _Lock | None) -> bool:
    return lock is not None and lock.thread is not threading.current_thread() and lock.thread.is_alive()
