"""An error on one process becomes an error on every process, so that no process waits for another one."""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from .._common.ownership import check_writable
from ._contents import Damaged


# If a process raises an error of one of these types, all processes raise an error of this type. For an error of
# another type, the other processes raise a `RuntimeError`.
_TYPES = (Damaged, ValueError, FileNotFoundError, OSError, TypeError, ImportError, RuntimeError)
# The most bytes of an error message, and of a name or number, that a process sends to the others.
_REASON, _TEXT = 1000, 32


@contextmanager
def raised_by_all() -> Iterator[None]:
    """If this block raises an error on one process, raise an error of the same type on every process.

    All processes must run this block, and it must not communicate. The other processes name the first process that
    failed, and repeat its message.
    """
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    number = next((i for i, kind in enumerate(_TYPES) if isinstance(error, kind)), len(_TYPES) - 1)
    mine = bytes([0 if error is None else 1 + number]) + str(error).encode(errors="replace")[:_REASON].ljust(_REASON)
    found = np.reshape(multihost_utils.process_allgather(np.frombuffer(mine, np.uint8)), (-1, len(mine)))
    if not found[:, 0].any():
        return
    failed = int(np.flatnonzero(found[:, 0])[0])
    kind: type[Exception] = _TYPES[found[failed, 0] - 1]
    if error is not None and isinstance(error, kind):
        raise error
    reason = found[failed, 1:].tobytes().decode(errors="replace").strip()
    raise kind(f"process {failed} failed: {reason}") from error


def of_first_process(text: str) -> str:
    """Return the text that the first process passes. It may have up to 32 bytes. All processes must call this."""
    if jax.process_count() == 1:
        return text
    mine = np.frombuffer(text.encode()[:_TEXT].ljust(_TEXT), np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine)).astype(np.uint8).tobytes().decode().strip()


def of_each_process(number: int) -> dict[int, int]:
    """Return the 32-bit `number` that each process passes, by process index. All processes must call this."""
    if jax.process_count() == 1:
        return {0: number}
    return dict(enumerate(np.ravel(multihost_utils.process_allgather(np.uint32(number))).tolist()))


def check_same(checksums: Mapping[int, int], rule: str, what: str) -> None:
    """Raise `ValueError` if the processes have different checksums of what they are about to write.

    `rule` says what must be the same. `what` says what this process writes.
    """
    process = jax.process_index()
    if others := sorted(other for other, checksum in checksums.items() if checksum != checksums[process]):
        raise ValueError(f"{rule}; processes {others} differ from process {process}, which writes {what}.")


def check_writable_by_all(folder: Path) -> None:
    """Raise `OSError` or `RuntimeError` on every process if one of them cannot write to a folder.

    All processes must call this function. The folder is created if it does not exist.
    """
    agree(error_of(lambda: check_writable(folder)), folder)


def error_of(task: Callable[[], object]) -> OSError | None:
    """Call a function, and return its `OSError` if it raises one."""
    try:
        task()
    except OSError as error:
        return error
    return None


def agree(error: OSError | None, path: Path) -> None:
    """Raise an error on every process if one process has an error. All processes must call this function."""
    number = 0 if error is None else error.errno or errno.EIO
    numbers = [number]
    if jax.process_count() > 1:
        numbers = np.ravel(multihost_utils.process_allgather(np.int32(number))).tolist()
    if error is not None:
        raise error
    if any(numbers):
        failed = next(process for process, found in enumerate(numbers) if found)
        reason = os.strerror(numbers[failed])
        raise RuntimeError(f"{path} cannot be written to, because process {failed} failed: {reason}")


def check_shared(folder: Path, *, seen: bool) -> None:
    """Raise `RuntimeError` on every process if some processes have not `seen` what the first one wrote to a folder.

    All processes must call this function.
    """
    if jax.process_count() > 1:
        blind = np.flatnonzero(~np.ravel(multihost_utils.process_allgather(np.bool_(seen)))).tolist()
        if blind:
            where = "" if seen else f" Host {socket.gethostname()!r} (process {jax.process_index()}) is one of them."
            raise RuntimeError(
                f"{folder} must be on a file system that all hosts share; processes {blind} do not see what process 0 "
                f"wrote there.{where}"
            )
