"""An error on one process becomes an error on every process, so that no process waits for another one."""

import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from .._common import agreement
from .._common.ownership import check_writable
from .._operator.transform import AbstractTransform
from ._contents import Damaged


_TEXT = 32  # The most bytes of a name or number that a process sends to the others.


def raised_by_all() -> AbstractContextManager[None]:
    """Return a context for a block that all processes run: if one of them raises an error, all do."""
    return agreement.raised_by_all(_exchange, Damaged)


def raised_by_all_of(grid: Any) -> AbstractContextManager[None]:
    """Return `raised_by_all` for the processes of the mesh of `grid`, a transform, a decomposition or a layout.

    Without a mesh of devices, nobody knows the other processes, and the block raises its error on this process alone.
    """
    return agreement.raised_by_all_of(mesh_of(grid), Damaged)


def mesh_of(grid: Any) -> Mesh | None:
    """Return the mesh of a transform, a decomposition or a layout, or `None` if it has no mesh of devices."""
    mesh = getattr(grid.decomposition if isinstance(grid, AbstractTransform) else grid, "mesh", None)
    return mesh if isinstance(mesh, Mesh) else None


def _exchange(*numbers: int) -> dict[int, tuple[int, ...]]:
    found = multihost_utils.process_allgather(np.array(numbers, np.uint32))
    return dict(enumerate(map(tuple, np.reshape(found, (-1, len(numbers))).tolist())))


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
    """Raise `ValueError` if the processes have different checksums of what they are about to do.

    `rule` says what must be the same. `what` says what this process does.
    """
    process = jax.process_index()
    if others := sorted(other for other, checksum in checksums.items() if checksum != checksums[process]):
        raise ValueError(f"{rule}; processes {others} differ from process {process}, which {what}.")


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
