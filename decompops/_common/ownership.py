"""Recognises the files and folders that this library made. It may replace and remove only these.

A folder that the library makes has a random identity. The file `MARK`, which is written first, says what the folder is
for and repeats the identity, and so do the names that the library gives to what it will remove. A program holds a lock
on `MARK` while it uses the folder. The system releases the lock when the program ends, even if it is killed. Files are
recognised by their contents. If something else is in the way, the library raises `FileExistsError`.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from weakref import WeakSet


# The name of the file that marks a folder.
MARK = ".decompops"
_DIGITS = 16
# A regular expression for identities.
IDENTITY = f"[0-9a-f]{{{_DIGITS}}}"
# The open files that hold the locks of this process.
_LOCKS: WeakSet[BinaryIO] = WeakSet()


def new_identity() -> str:
    """Return a random identity."""
    return secrets.token_hex(_DIGITS // 2)


def mark(folder: Path, kind: str, identity: str) -> None:
    """Mark a folder. Raises `FileExistsError` if it has a file of this name.

    The file appears with its contents, because another program may be reading it, and because this program may be
    killed.
    """
    new = folder / f"{MARK}.{new_identity()}"
    with new.open("xb") as file:
        file.write(_text(kind, identity))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(new, folder / MARK)
    except FileExistsError:
        raise
    except OSError:  # The file system has no hard links.
        with (folder / MARK).open("xb") as file:
            file.write(_text(kind, identity))
    finally:
        new.unlink()


def identity_of(folder: Path, kind: str) -> str | None:
    """Return the identity of a folder that the library made for this purpose, or `None` for any other folder.

    Raises `OSError` if this process may not open the mark, and so cannot tell whose folder it is.
    """
    try:
        with open_regular(folder / MARK) as file:
            text = file.read(1000)
    except OSError as error:
        if is_of_process(error):
            raise
        return None
    found = re.search(f"({IDENTITY})\n", text.decode(errors="replace"))
    return found[1] if found and text == _text(kind, found[1]) else None


def locked(folder: Path, *, alone: bool) -> BinaryIO:
    """Lock a marked folder, and return the open file that holds the lock. To release the lock, close the file.

    Several programs may hold a lock that is not `alone`. Raises `BlockingIOError` if another program holds a lock, and
    another `OSError` if the file system has no locks.
    """
    file = (folder / MARK).open("r+b", buffering=0)
    _LOCKS.add(file)
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


def _close_locks() -> None:
    for file in _LOCKS:
        file.close()


# A forked child, such as a worker that loads data, inherits the open files. It would hold the locks even after its
# parent has been killed.
os.register_at_fork(after_in_child=_close_locks)


def share(lock: BinaryIO) -> None:
    """Let other programs lock the folder as well, if they do not need it `alone`."""
    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_of_process(error: BaseException) -> bool:
    """Return whether an error says that this process lacks rights, open files or memory, and nothing about a file."""
    lacks = isinstance(error, PermissionError | MemoryError)
    return lacks or getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def check_writable(folder: Path) -> None:
    """Raise `OSError` if this process cannot write files to a folder. The folder is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    trial = folder / f"{MARK}.{new_identity()}"
    try:
        with trial.open("xb") as file:
            file.write(bytes(4096))
    finally:
        trial.unlink(missing_ok=True)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises `OSError` for a folder, a device or a pipe, which could block for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, f"{path} is not a regular file")
    return os.fdopen(handle, "rb", buffering=0)


def hidden(path: Path, identity: str) -> Path:
    """Return where to write what later moves to `path`. `identity` makes the name unique.

    File systems allow names of 255 bytes. If a name leaves no room for more characters, its hash replaces it.
    """
    name = os.fsencode(path.name)
    shown = path.name if len(name) <= 200 else hashlib.sha256(name).hexdigest()
    return path.with_name(f".{shown}.{identity}.partial")


def replace_file(path: Path, content: bytes, is_own: Callable[[Path], bool]) -> None:
    """Write a file in one step. Raises `FileExistsError` if there is a file that is not this library's."""
    path = path.resolve()
    new = hidden(path, new_identity())
    check_own(path, is_own)
    with new.open("xb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            check_own(path, is_own)
            os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def check_own(path: Path, is_own: Callable[[Path], bool]) -> None:
    """Raise `FileExistsError` if something is at `path` that is not this library's."""
    if os.path.lexists(path) and not (path.is_file() and is_own(path)):
        raise in_the_way(path)


def in_the_way(path: Path, what: str = "") -> FileExistsError:
    """Return the error for something that this library did not write, and may therefore not replace."""
    return FileExistsError(
        errno.EEXIST,
        f"`path` must be new or a file of decompops; got {path}, {what or 'which decompops did not write'}. Choose "
        "another path, or remove what is there.",
    )


def note(kind: str, identity: str) -> str:
    """Return the text that marks a folder, without the end of its line."""
    return f"decompops made this folder for {kind}: {identity}"


def _text(kind: str, identity: str) -> bytes:
    return f"{note(kind, identity)}\n".encode()
