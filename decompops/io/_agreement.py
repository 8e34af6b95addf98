"""An error on one process becomes an error on every process, so that no process waits for another one."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from .._ownership import check_writable


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
