"""The registry of backends from this library, from programs that register one, and from installed packages."""

import importlib.metadata
import inspect
from typing import Any

from .._backend.base import AbstractBackend
from .._backend.cudecomp.backend import CuDecomp
from .._backend.mpi.backend import MPI
from .._backend.native.backend import Native
from .._backend.xla.backend import XLA


GROUP = "decompops.backends"
_registered: dict[str, type[AbstractBackend]] = {"xla": XLA, "native": Native, "mpi": MPI, "cudecomp": CuDecomp}


def register_backend(name: str, backend_class: type[AbstractBackend]) -> None:
    """Give a backend a name, in this process.

    The name then works everywhere: `Decomposition(..., backend=name)`,
    `dops.config.update(backend=name)`, the environment variable `DECOMPOPS_BACKEND` and `--backend` on the command
    line. All of these call `backend_class()`, so every option of the class needs a default.

    An installed package does not call this function, but declares an entry point. The entry point is loaded when the
    name is first used, or when `python -m decompops info` lists all backends:

    ```toml
    [project.entry-points."decompops.backends"]
    mine = "my_package:MyBackend"
    ```

    **Arguments:**

    - `name`: a lower-case identifier that no other backend has. Registering the same class again does nothing.
    - `backend_class`: a subclass of `AbstractBackend` that implements its abstract methods.

    **Raises:** `ValueError` for a bad or taken name; `TypeError` for a class that is not a backend.
    """
    if not isinstance(name, str) or not name.isascii() or not name.isidentifier() or name != name.lower():
        raise ValueError(f"`name` must be a lower-case identifier, such as 'my_backend'; got {name!r}.")
    if not inspect.isclass(backend_class) or not issubclass(backend_class, AbstractBackend):
        raise TypeError(f"`backend_class` must be a subclass of `AbstractBackend`; got {backend_class!r}.")
    if missing := sorted(getattr(backend_class, "__abstractmethods__", ())):
        raise TypeError(f"`backend_class` must implement {', '.join(missing)}; got {backend_class!r}.")
    if _registered.setdefault(name, backend_class) is not backend_class:
        raise ValueError(f"`name` must be new; got {name!r}, which already names {_registered[name]!r}.")


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends, without loading any."""
    return tuple(dict.fromkeys((*_registered, *sorted(_entry_points()))))


def make_backend(name: str, label: str = "backend") -> AbstractBackend:
    """Return the backend of this name, with the default of every option. Errors call the argument `label`.

    Raises `ValueError` for an unknown name, and `ImportError` if the package of the backend cannot be loaded.
    """
    name = name.lower()
    if name not in _registered:
        entries = _entry_points().get(name)
        if entries is None:
            raise ValueError(f"`{label}` must be one of {backend_names()}; got {name!r}.")
        try:
            _load(name, entries)
        except Exception as error:  # Code of another package runs here.
            raise ImportError(f"`{label}={name!r}` does not work here: {_reason(error)}.") from error
    return _registered[name]()


def all_backends() -> list[tuple[str, AbstractBackend | str]]:
    """Return every name with its backend, or with the reason why it does not work on this machine."""
    refused = []
    for name, entries in sorted(_entry_points().items()):
        try:
            _load(name, entries)
        except Exception as error:  # Code of another package runs here, and below.
            refused.append((name, _reason(error)))
    found = []
    for name, backend_class in list(_registered.items()):
        try:
            backend = backend_class()
            found.append((name, backend.problem() or backend))
        except Exception as error:
            found.append((name, _reason(error)))
    return found + refused


def _entry_points() -> dict[str, list[Any]]:
    # The entries are typed as `Any`: a program may have imported `importlib_metadata`, which returns entry points of a
    # class of its own.
    entries: dict[str, list[Any]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        entries.setdefault(entry.name, []).append(entry)
    return entries


def _load(name: str, entries: list[Any]) -> None:
    """Register the backend of a name's entry point. Raises `ImportError` if the name has several entry points."""
    packages = ", ".join(repr(entry.dist.name) if entry.dist else "?" for entry in entries)
    try:
        if len(entries) > 1:
            raise ValueError("several packages have an entry point of this name; uninstall all but one")
        register_backend(name, entries[0].load())
    except Exception as error:
        raise ImportError(f"entry point {entries[0].value!r} of {packages}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return one line about `error`, without a full stop, because messages continue after it."""
    line = str(error).strip().partition("\n")[0].rstrip(".")
    return line if isinstance(error, ImportError) else f"{type(error).__name__}: {line}"
