"""Calls a function in several threads."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from ._parts import THREADS


def in_parallel(function: Callable[..., Any], tasks: Iterable[tuple]) -> None:
    """Call `function(*task)` for each task, in this thread and in up to `THREADS - 1` others. Raises the first error.

    `tasks` is iterated only as fast as the threads take its tasks. If the system refuses a thread, the others do its
    tasks.
    """
    lock, left, errors = Lock(), iter(tasks), []

    def work() -> None:
        try:
            while not errors:
                with lock:
                    task = next(left, None)
                if task is None:
                    return
                function(*task)
        except BaseException as error:
            errors.append(error)

    threads = []
    try:
        with suppress(RuntimeError):
            for _ in range(THREADS - 1):
                threads.append(Thread(target=work))
                threads[-1].start()
        work()
    except BaseException as error:  # An interrupt. The threads may still use files that the caller then closes.
        errors.append(error)
    finally:
        for thread in filter(Thread.is_alive, threads):
            thread.join()
    if errors:
        raise errors[0]
