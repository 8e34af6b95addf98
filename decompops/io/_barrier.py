"""The barriers at which the processes of a run wait for each other while orbax writes a checkpoint."""

import itertools
from pathlib import Path

import jax


# If processes wait at different barriers, they raise an error after this number of seconds.
SECONDS = 30.0
_FOLDERS = itertools.count()


class BrokenBarrier(RuntimeError):
    """The error for a process that waits for another process, which has failed.

    If the waiting process has failed as well, `__context__` is its own failure.
    """


class Barrier:
    """A function for orbax that waits for all processes, and raises `BrokenBarrier` if one of them has failed.

    A process that fails skips some barriers of orbax, so it waits at another barrier than the other processes, and all
    of them would wait for 20 minutes. With this class, the processes first meet at a barrier that is named after the
    number of the call. Then they meet at a barrier that is also named after the `key` that orbax passes. If a process
    passes another key, the second barrier fails after `SECONDS`. This time is enough, because there is no work between
    the two barriers.
    """

    def __init__(self, folder: Path):
        # Processes create the same folders and write the same checkpoints, in the same order.
        self._name, self._calls = f"{folder}.{next(_FOLDERS)}", itertools.count()
        self._is_broken = False

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        from orbax.checkpoint.multihost import get_barrier_sync_fn

        if not self._is_broken:
            meet, name = get_barrier_sync_fn(), f"{self._name}.{next(self._calls)}"
            try:
                meet(key=name, timeout_ms=timeout_ms)
                meet(key=f"{name}.{key}", timeout_ms=int(1000 * SECONDS))
            except jax.errors.JaxRuntimeError:
                self._is_broken = True
        if self._is_broken:
            raise BrokenBarrier("another process failed: read its error")
