"""Finds the line of the user's program that calls an operator, and the Python thread in which it is called.

Compiled kernels distinguish calls by this line and this thread, and error messages quote them.
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
from typing import NamedTuple

import equinox as eqx
import jax
import jaxtyping

from ..base import Caller


MAIN = "main"
# JAX compiles a function again for each value of this context, so that each thread has its own programs.
_thread = jax.make_user_context(default_value=None)
_process = os.getpid()
_names: set[str] = set()
_lock = threading.Lock()
# The places with the same key, in the order in which they were found. None is forgotten, or another place could get its
# number on some ranks only. There are as many as the program's source has calls of operators, whatever their number of
# executions, for each name of a thread. Each has compiled a program of its own, which takes far more memory.
_texts: dict[tuple[str, str], list[str]] = {}
_LIBRARIES = tuple(
    str(Path(file).parent) + os.sep
    for file in (Path(__file__).parents[1], jax.__file__, eqx.__file__, jaxtyping.__file__)
)


def adopt_main_thread() -> None:
    """Let the calling thread run operators until the process ends."""
    _thread(MAIN).__enter__()


@contextlib.contextmanager
def thread(name: str) -> Iterator[None]:
    """Let the calling thread run operators inside a `with` block. `name` is then the name of the thread."""
    if not isinstance(name, str) or name in ("", MAIN):
        raise ValueError(f'`name` must be a string other than "" and "{MAIN}"; got {name!r}.')
    with _lock:
        if name in _names:
            raise ValueError(f"`name` must not be in use by another thread; {name!r} is in use.")
        _names.add(name)
    try:
        with _thread(name):
            yield
    finally:
        with _lock:
            _names.discard(name)


def current_thread() -> str:
    """Return the name of the calling thread.

    Raises `RuntimeError` if the thread has no name, or in a forked child process.
    """
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
    """Return the place that is calling an operator. Raises `RuntimeError` as `current_thread` does."""
    thread, places = current_thread(), []
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        place = _place(path, frame.f_code, frame.f_lasti)
        if place is not None:
            places.append(place)
        elif places and path.startswith(_LIBRARIES):
            # This frame belongs to JAX, which traces a function of the user. `place` has only the frames inside that
            # function, because these frames are the same wherever the function is called.
            break
        frame = frame.f_back
    else:  # Nothing is traced: the innermost frame is enough.
        del places[1:]
    nans, infs = jax.config.jax_debug_nans, jax.config.jax_debug_infs  # pyright: ignore[reportAttributeAccessIssue]
    return _caller(thread, tuple(places), nans, infs)


class _Place(NamedTuple):
    """A place in the user's program.

    - `text`: its file, line and column.
    - `key`: its file and function, and the number of the instruction in this function. Comments do not change them.
    """

    text: str
    key: str


@functools.lru_cache(maxsize=4096)
def _caller(thread: str, places: tuple[_Place, ...], debug_nans: bool, debug_infs: bool) -> Caller:
    if not places:
        return Caller(thread=thread)
    line = places[0].text.rpartition(":")[0]
    # With these options, JAX runs a program again, but only on the ranks that have found a NaN or an infinity. So the
    # ranks run different programs. The error quotes the lines of both calls.
    for option in ["jax_debug_nans"] * debug_nans + ["jax_debug_infs"] * debug_infs:
        line += f" (with `{option}`, JAX runs a program again on the ranks whose results are not finite)"
    text, key = (" < ".join(parts) for parts in zip(*places))
    return Caller(line, text, thread, _site(thread, key, text))


def _site(thread: str, key: str, text: str) -> str:
    """Return `key`, with a number if another place of this thread has the same key.

    For example, two lambdas on different lines may have the same instructions.
    """
    with _lock:
        texts = _texts.setdefault((thread, key), [])
        if text not in texts:
            texts.append(text)
        number = texts.index(text)
    return f"{key} #{number}" if number else key


@functools.lru_cache(maxsize=4096)  # An eager call looks up about twenty places.
def _place(path: str, code: CodeType, instruction: int) -> _Place | None:
    """Return the place of an instruction in the file `path`, or `None` if it is not an instruction of the user.

    `path` is an argument because functions with equal instructions and lines are equal, even in different files.
    """
    # beartype and jaxtyping generate functions whose file names start with "<@" and contain a memory address. Python's
    # own "<frozen runpy>" starts programs with `python -m`.
    if path.startswith((*_LIBRARIES, "<@", "<frozen")):
        return None
    line, _, column, _ = next(itertools.islice(code.co_positions(), instruction // 2, None))
    file = os.path.basename(path)
    return _Place(f"{file}:{line}:{column}", f"{file}:{code.co_qualname}:{instruction}")
