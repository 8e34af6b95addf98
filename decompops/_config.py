"""The defaults for operators that are built without a backend."""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, get_args

from jax.sharding import AbstractMesh, Mesh

from ._backend import native
from ._backend.base import AbstractBackend
from ._backend.cudecomp import HaloBackend, TransposeBackend
from ._backend.native import Native
from ._backend.xla import XLA
from ._registry import make_backend


# The values that the options other than `backend` accept.
_NAMES = {"transpose_backend": get_args(TransposeBackend), "halo_backend": get_args(HaloBackend)}


class Config:
    """The defaults for operators that are built without a backend. `dops.config` is the only instance.

    - `backend`: a backend such as `dops.XLA()`, or the name of a registered backend: "xla", "native", "mpi",
      "cudecomp", ...
    - `transpose_backend`, `halo_backend`: the methods by which `CuDecomp()` communicates in transposes and in halo
      exchanges. Each is cuDecomp's name of a method, in lower case ("nccl", "nvshmem_pl", ...).

    An option that is not set is read from its environment variable: `DECOMPOPS_BACKEND`, `DECOMPOPS_TRANSPOSE_BACKEND`
    or `DECOMPOPS_HALO_BACKEND`. If this variable is not set either, the option is `None`. If `backend` is `None` and
    the compiled kernels work on this machine, operators on CPU devices of this process get `Native()`. All other
    operators get `XLA()`. An operator reads the defaults once, when it is built. A later change does not alter the
    operator.
    """

    __slots__ = ("_context", "_process")  # Setting a misspelt option raises an error.

    def __init__(self) -> None:
        self._process: dict[str, Any] = {}
        self._context: ContextVar[dict[str, Any] | None] = ContextVar("decompops", default=None)

    @property
    def backend(self) -> AbstractBackend | None:
        return self._get("backend")

    @property
    def transpose_backend(self) -> str | None:
        return self._get("transpose_backend")

    @property
    def halo_backend(self) -> str | None:
        return self._get("halo_backend")

    def update(self, **options: Any) -> None:
        """Set defaults for the whole process, such as `config.update(backend="mpi")`. `None` unsets an option.

        **Raises:** `TypeError` for an unknown option; `TypeError` or `ValueError` for a wrong value.
        """
        self._process |= _checked(options)

    @contextlib.contextmanager
    def use(self, **options: Any) -> Iterator[None]:
        """Set defaults inside a `with` block, for the current thread or asyncio task only. Raises as `update` does."""
        token = self._context.set((self._context.get() or {}) | _checked(options))
        try:
            yield
        finally:
            self._context.reset(token)

    def _get(self, option: str) -> Any:
        for scope in (self._context.get() or {}, self._process):
            if scope.get(option) is not None:
                return scope[option]
        variable = f"DECOMPOPS_{option.upper()}"
        value = os.environ.get(variable)
        return _checked_option(option, value, variable) if value else None

    def __repr__(self) -> str:
        return (
            f"Config(backend={self.backend}, transpose_backend={self.transpose_backend!r}, "
            f"halo_backend={self.halo_backend!r})"
        )


config = Config()


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    return {name: _checked_option(name, value, name) for name, value in options.items()}


def _checked_option(name: str, value: Any, label: str) -> Any:
    if name not in ("backend", *_NAMES):
        raise TypeError(f"`{name}` must be an option of `config`: {', '.join(('backend', *_NAMES))}; got {name!r}.")
    if value is None:
        return None
    if name == "backend":
        if isinstance(value, AbstractBackend):
            return value
        if not isinstance(value, str):
            raise TypeError(f"`{label}` must be a backend such as `XLA()`, or its name; got {value!r}.")
        return make_backend(value, label)
    if not isinstance(value, str):
        raise TypeError(f"`{label}` must be a name, such as {_NAMES[name][0]!r}; got {value!r}.")
    if value.lower() not in _NAMES[name]:
        raise ValueError(f"`{label}` must be one of {_NAMES[name]}; got {value!r}.")
    return value.lower()


def resolve_backend(backend: AbstractBackend | str | None, mesh: Mesh | AbstractMesh | None = None) -> AbstractBackend:
    """Return the backend for an operator on `mesh`: `backend`, or the default if it is `None`."""
    chosen = _checked_option("backend", backend, "backend") or config.backend
    if chosen is None:
        chosen = Native() if mesh is not None and native.is_local(mesh) and native.works() else XLA()
    return chosen.resolved(config)
