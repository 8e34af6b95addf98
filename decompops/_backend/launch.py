"""What `dops.MPI.initialize()` does: JAX over the ranks of an MPI communicator."""

import atexit
import ctypes
import socket
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import jax

from .library import load, register


@dataclass(frozen=True)
class Communicator:
    """A communicator that has been made known: its number in the kernels, and the rank of each JAX process in it."""

    number: int
    handle: Any
    ranks: dict[int, int]


known: dict[str, Communicator] = {}


def initialize(communicator: Any, key: str, timeout: float, reuse_memory: bool) -> None:
    library = load()
    from mpi4py import MPI

    if communicator is None:
        communicator = known[key].handle if key in known else MPI.COMM_WORLD
    if key in known:
        if MPI.Comm.Compare(known[key].handle, communicator) != MPI.IDENT:
            raise ValueError(f"`key` must be new for another communicator; {key!r} is known already.")
        return
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "MPI must be initialised with thread level MPI_THREAD_MULTIPLE, which is mpi4py's default; got level "
            f"{MPI.Query_thread()}."
        )
    if not known:
        _start_jax(communicator)
    if jax.local_device_count() != 1 or jax.default_backend() != "cpu":
        raise RuntimeError(
            "`MPI.initialize()` needs one CPU device in each process; got "
            f"{jax.local_device_count()} of platform {jax.default_backend()!r}. Call it before any JAX computation."
        )
    indices = communicator.allgather(jax.process_index())
    if not known and indices != list(range(communicator.size)):
        raise RuntimeError(f"the processes of JAX must be the ranks of `communicator`; got {indices} in its order.")
    if library.decompops_add_communicator(len(known), communicator.py2f()) != 0:
        raise RuntimeError(f"`communicator` could not be duplicated; got {communicator}.")
    if not known:
        register()
        library.decompops_set_timeout(timeout)
        library.decompops_watch_signals()
        if reuse_memory:
            _reuse_memory()
        _end_together(library, communicator)
    known[key] = Communicator(len(known), communicator, {index: rank for rank, index in enumerate(indices)})


def _start_jax(communicator: Any) -> None:
    """One CPU device in each rank, and programs that run one after the other: the kernels of several programs in
    flight could not tell two runs of the same one apart."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_platforms", "cpu")
    try:
        jax.config.update("jax_num_cpu_devices", 1)
    except RuntimeError as error:  # JAX is in use: with one rank that may do
        if communicator.size > 1:
            raise RuntimeError("`MPI.initialize()` must be called before any JAX computation.") from error
    if communicator.size > 1:
        jax.distributed.initialize(
            coordinator_address=_coordinator(communicator),
            num_processes=communicator.size,
            process_id=communicator.rank,
        )


def _coordinator(communicator: Any) -> str:
    """The address of rank 0, with a free port: on loopback if all ranks are on one host."""
    from mpi4py import MPI

    node = communicator.Split_type(MPI.COMM_TYPE_SHARED)
    alone = communicator.allreduce(node.size == communicator.size, MPI.LAND)
    node.Free()
    address = None
    if communicator.rank == 0:
        # By name, which the others look up: a host may know itself by an address that only it can use.
        host = "127.0.0.1" if alone else socket.gethostname()
        with socket.socket() as free:
            free.bind(("", 0))
            address = f"{host}:{free.getsockname()[1]}"
    return communicator.bcast(address)


def _end_together(library: ctypes.CDLL, communicator: Any) -> None:
    """A rank that raises ends the job; one that ends tells the others, which may be waiting for it."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, value, traceback)
        library.decompops_give_up(f"{kind.__name__}: {value}".encode(errors="replace"))
        sys.stdout.flush()
        sys.stderr.flush()
        if communicator.size > 1:
            time.sleep(1)  # for ranks that wait for this one to say in which operator
            communicator.Abort(1)

    sys.excepthook = hook
    atexit.register(library.decompops_leave)


def _reuse_memory() -> None:
    """glibc: no `mmap` for large blocks, and nothing given back at the end of the heap. See docs/cluster.md."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mmap_max, trim_threshold = -4, -1
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, -1)
