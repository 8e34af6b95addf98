"""The default backend of operators that are built without one."""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

from jax.sharding import AbstractMesh, Mesh

from .._backend.base import AbstractBackend
from .._backend.cudecomp import backend as cudecomp
from .._backend.native import backend as native, fft_library
from .._backend.native.backend import Native
from .._backend.xla.backend import XLA
from .._common import typecheck
from .._common.compat import warn_of_few_threads
from .registry import make_backend


VARIABLE = "DECOMPOPS_BACKEND"
# The environment variables that users set.
VARIABLES = VARIABLE, *cudecomp.VARIABLES.values(), fft_library.VARIABLE, typecheck.VARIABLE


class Config:
    """The default backend, for operators that are built without `backend=`. `dops.config` is the only instance.

    `backend` is a backend such as `dops.XLA()`, or the name of a registered backend: "xla", "native", "mpi",
    "cudecomp", ... If it is not set, it is read from the environment variable `DECOMPOPS_BACKEND`. If this variable is
    not set either, `backend` is `None`: operators on CPU devices of this process then get `Native()` if the compiled
    kernels work on this machine, and all other operators get `XLA()`. An operator reads the default once, when it is
    built. A later change does not alter the operator.
    """

    __slots__ = ("_context", "_process")  # Setting a misspelt option raises an error.

    def __init__(self) -> None:
        self._process: AbstractBackend | None = None
        self._context: ContextVar[AbstractBackend | None] = ContextVar("decompops", default=None)

    @property
    def backend(self) -> AbstractBackend | None:
        found = self._context.get() or self._process
        name = os.environ.get(VARIABLE)
        return make_backend(name, VARIABLE) if found is None and name else found

    def update(self, *, backend: AbstractBackend | str | None) -> None:
        """Set the default for the whole process, such as `config.update(backend="mpi")`. `None` unsets it.

        **Raises:** `TypeError` for something that is not a backend; `ValueError` for an unknown name.
        """
        self._process = _as_backend(backend)

    @contextlib.contextmanager
    def use(self, *, backend: AbstractBackend | str | None) -> Iterator[None]:
        """Set the default inside a `with` block, for the current thread or asyncio task only. Raises as `update` does.

        `None` means the default of the process.
        """
        token = self._context.set(_as_backend(backend))
        try:
            yield
        finally:
            self._context.reset(token)

    def __repr__(self) -> str:
        return f"Config(backend={self.backend})"


config = Config()


def _as_backend(backend: AbstractBackend | str | None) -> AbstractBackend | None:
    if isinstance(backend, str):
        return make_backend(backend)
    if not isinstance(backend, AbstractBackend | None):
        raise TypeError(f"`backend` must be a backend such as `XLA()`, or its name; got {backend!r}.")
    return backend


def resolve_backend(backend: AbstractBackend | str | None, mesh: Mesh | AbstractMesh | None = None) -> AbstractBackend:
    """Return the backend for an operator on `mesh`: `backend`, or the default if it is `None`."""
    return (_as_backend(backend) or config.backend or default_backend(mesh)).resolved()


def working_backend(backend: AbstractBackend | str | None, mesh: Mesh | AbstractMesh) -> AbstractBackend:
    """Return the backend for an operator on `mesh`: see `resolve_backend`. Raises an error if it does not work there.

    Warns if XLA has too few threads for the CPU devices of `mesh`.
    """
    chosen = resolve_backend(backend, mesh)
    chosen.check(mesh)
    if native.is_local(mesh):
        warn_of_few_threads(mesh.size)
    return chosen


def default_backend(mesh: Mesh | AbstractMesh | None) -> AbstractBackend:
    """Return the backend for `mesh` if the user has not chosen one."""
    return Native() if mesh is not None and native.is_local(mesh) and native.works() else XLA()
