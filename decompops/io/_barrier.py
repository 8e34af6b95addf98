"""The barriers at which the processes of a run wait for each other while orbax writes a checkpoint."""

import itertools
from pathlib import Path

import jax


# Processes that wait at different barriers raise an error after this number of seconds.
SECONDS = 30.0
_FOLDERS = itertools.count()


class BrokenBarrier(RuntimeError):
    """The error that a process raises if it waits for a process that has failed.

    If the waiting process has failed, too, `__context__` is the failure of the waiting process.
    """


class Barrier:
    """A function for orbax that waits for all processes, and raises `BrokenBarrier` if one of them has failed.

    After such a failure, `is_broken` is True, and each further call raises `BrokenBarrier`.

    A process that fails skips some barriers of orbax. It then waits at a different barrier than the other processes, so
    all of them would wait for 20 minutes. With this class, each call has two barriers. The name of the first barrier
    has only the number of the call. The name of the second barrier also has the `key` that orbax passes. If a process
    passes a different key, the second barrier fails after `SECONDS`. This time is enough, because there is no work
    between the two barriers.
    """

    def __init__(self, folder: Path):
        # The counters agree, because all processes create the same folders and write the same checkpoints in one order.
        self._name, self._calls = f"{folder}.{next(_FOLDERS)}", itertools.count()
        self.is_broken = False

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        from orbax.checkpoint.multihost import get_barrier_sync_fn

        if not self.is_broken:
            meet, name = get_barrier_sync_fn(), f"{self._name}.{next(self._calls)}"
            try:
                meet(key=name, timeout_ms=timeout_ms)
                meet(key=f"{name}.{key}", timeout_ms=int(1000 * SECONDS))
            except jax.errors.JaxRuntimeError:
                self.is_broken = True
        if self.is_broken:
            raise BrokenBarrier("another process failed: read its error")
