"""Who calls an operator: the line of the user's program, and the Python thread that runs it.

Compiled kernels tell calls apart by it, and errors say it.
"""

import contextlib
import functools
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import equinox as eqx
import jax
import jaxtyping

from .base import Caller


MAIN = "main"
# JAX traces and compiles a function anew for each value, so that a program belongs to the thread that compiled it.
_thread = jax.make_user_context(default_value=None)
_process = os.getpid()
_names: set[str] = set()
_lock = threading.Lock()
_LIBRARIES = tuple(
    str(Path(file).parent) + os.sep for file in (Path(__file__).parent, jax.__file__, eqx.__file__, jaxtyping.__file__)
)


def adopt_main_thread() -> None:
    """Let the calling thread run operators from now on."""
    _thread(MAIN).__enter__()


@contextlib.contextmanager
def thread(name: str) -> Iterator[None]:
    """Let the calling thread run operators as thread `name`, inside a `with` block."""
    if not isinstance(name, str) or name in ("", MAIN):
        raise ValueError(f'`name` must be a string other than "" and "{MAIN}"; got {name!r}.')
    with _lock:
        if name in _names:
            raise ValueError(f"`name` must be that of one thread at a time; {name!r} is in use.")
        _names.add(name)
    try:
        with _thread(name):
            yield
    finally:
        with _lock:
            _names.discard(name)


def current_thread() -> str:
    """The name of the calling thread."""
    if os.getpid() != _process:
        raise RuntimeError(
            "operators with `backend=MPI()` must not be called in a process that was forked from one that uses MPI. "
            'Start a new process, as `multiprocessing.get_context("spawn")` does.'
        )
    if _thread.value is None:
        raise RuntimeError(
            "operators with `backend=MPI()` must be called in the Python thread that called `MPI.initialize()`; got "
            f"thread {threading.current_thread().name!r}. In another thread, call them inside "
            "`with dops.MPI.thread(name):`, where `name` is the same on every rank and differs between threads."
        )
    return _thread.value


def current() -> Caller:
    """Who calls an operator just now. Raises `RuntimeError` in a thread that has no name, or in a forked child."""
    thread, places = current_thread(), []
    frame = sys._getframe(1)
    while frame is not None:
        place = _place(frame.f_code, frame.f_lasti)
        if place is not None:
            places.append(place)
        elif places:
            # In a function that JAX traces, also what has called it there: the same wherever that function is called.
            break
        frame = frame.f_back
    else:
        del places[1:]
    line = places[0].rpartition(":")[0] if places else ""
    return Caller(line, " < ".join(places), thread)


@functools.lru_cache(maxsize=4096)  # An eager call asks for some twenty places.
def _place(code: CodeType, instruction: int) -> str | None:
    """The file, line and column of an instruction; `None` in a library."""
    # beartype and jaxtyping make functions of their own, with an address in the name.
    if code.co_filename.startswith((*_LIBRARIES, "<@", "<frozen")):
        return None
    line, _, column, _ = next(itertools.islice(code.co_positions(), instruction // 2, None))
    return f"{os.path.basename(code.co_filename)}:{line}:{column}"
