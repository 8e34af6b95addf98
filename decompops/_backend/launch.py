"""What `MPI.initialize()` and `CuDecomp.initialize()` do: start JAX over the ranks of an MPI communicator."""

import atexit
import ctypes
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import jax
from jax.sharding import Mesh

from . import grids
from .library import load, register


@dataclass(frozen=True)
class Communicator:
    """A communicator that has been made known: its number in the kernels, and the rank of each JAX process in it."""

    number: int
    handle: Any
    ranks: dict[int, int]


known: dict[str, Communicator] = {}


def initialize(communicator: Any, key: str, timeout: float, reuse_memory: bool) -> None:
    """What `MPI.initialize` does."""
    library = load()
    first = not known

    def make_known(communicator: Any) -> int:
        if library.decompops_add_communicator(len(known), communicator.py2f()) != 0:
            raise RuntimeError(f"`communicator` could not be duplicated; got {communicator}.")
        if first:
            register()
            library.decompops_set_timeout(timeout)
            library.decompops_watch_signals()
            if reuse_memory:
                _reuse_memory()
            _end_together(library, communicator)
        return len(known)

    # Programs run one after the other: the kernels of several in flight could not tell two runs of the same one apart.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    _start(communicator, key, "cpu", make_known)


def initialize_gpus(communicator: Any, key: str, device: int | None) -> None:
    """What `CuDecomp.initialize` does."""
    platform = "cpu" if grids.platform() == "cpu" else "cuda"

    def choose(communicator: Any) -> int:
        from mpi4py import MPI

        node = communicator.Split_type(MPI.COMM_TYPE_SHARED)
        rank = node.rank
        node.Free()
        return grids.use_device(-1 - rank if device is None else device)

    def make_known(communicator: Any) -> int:
        if not known:
            grids.register()
            _end_by_abort(communicator)
        return len(known)

    _start(communicator, key, platform, make_known, choose)


def _start(
    communicator: Any,
    key: str,
    platform: str,
    make_known: Callable[[Any], int],
    choose_device: Callable[[Any], int | None] = lambda _: None,
) -> None:
    """Check the communicator, start JAX over it if it is the first one, and let `make_known` do the rest."""
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
        _start_jax(communicator, platform, choose_device(communicator))
    if jax.local_device_count() != 1 or jax.local_devices()[0].platform != _DEVICES[platform]:
        hint = "" if platform == "cpu" else ' JAX must be installed with CUDA, as by pip install "jax[cuda13]".'
        raise RuntimeError(
            f"`initialize()` needs one {_DEVICES[platform].upper()} device in each process; got "
            f"{jax.local_device_count()} of platform {jax.default_backend()!r}. Call it before any JAX computation."
            f"{hint}"
        )
    indices = communicator.allgather(jax.process_index())
    if not known and indices != list(range(communicator.size)):
        raise RuntimeError(f"the processes of JAX must be the ranks of `communicator`; got {indices} in its order.")
    number = make_known(communicator)
    known[key] = Communicator(number, communicator, {index: rank for rank, index in enumerate(indices)})


_DEVICES = {"cpu": "cpu", "cuda": "gpu"}  # platforms, and what JAX's devices call them


def find(key: str, backend: Any) -> Communicator:
    """The communicator of that key."""
    if key not in known:
        raise RuntimeError(
            f"`{type(backend).__name__}.initialize()` must be called before an operator is built with "
            f"`backend={backend}`; known communicators: {tuple(known)}."
        )
    return known[key]


def ranks_of(mesh: Any, key: str, platform: str, backend: Any) -> list[int]:
    """The ranks of the mesh's devices, in its order. Raises where `backend` cannot serve the mesh."""
    ranks = find(key, backend).ranks
    if not isinstance(mesh, Mesh):
        raise ValueError(f"`mesh` must have devices for `backend={backend}`, which are its ranks; got {mesh}.")
    devices = list(mesh.devices.flat)
    indices = [device.process_index for device in devices]
    if any(device.platform != platform for device in devices) or not set(indices) <= ranks.keys():
        raise ValueError(f"`mesh` must consist of {platform.upper()} devices of the ranks of `{key}`; got {mesh}.")
    return [ranks[index] for index in indices]


def _start_jax(communicator: Any, platform: str, device: int | None) -> None:
    """One device in each rank."""
    jax.config.update("jax_platforms", platform if platform == "cpu" else f"{platform},cpu")
    try:
        jax.config.update("jax_num_cpu_devices", 1)
    except RuntimeError as error:  # JAX is in use: with one rank that may do
        if communicator.size > 1:
            raise RuntimeError("`initialize()` must be called before any JAX computation.") from error
    if communicator.size > 1 or platform == "cuda":
        jax.distributed.initialize(
            coordinator_address=_coordinator(communicator),
            num_processes=communicator.size,
            process_id=communicator.rank,
            local_device_ids=device,
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


def _end_by_abort(communicator: Any) -> None:
    """A rank that raises ends the job: others may be waiting for it on their GPUs, where nothing can tell them."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, value, traceback)
        sys.stdout.flush()
        sys.stderr.flush()
        if communicator.size > 1:
            communicator.Abort(1)

    sys.excepthook = hook


def _reuse_memory() -> None:
    """glibc: no `mmap` for large blocks, and nothing given back at the end of the heap. See docs/cluster.md."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mmap_max, trim_threshold = -4, -1
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, -1)
